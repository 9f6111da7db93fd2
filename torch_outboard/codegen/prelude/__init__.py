# SPDX-License-Identifier: BSD-3-Clause
"""The helpers that kernels call. They come from the files of this folder; a kernel's text includes only those it needs.

A file is a list of blocks, separated by blank lines. A block defines functions, tables or types. A block that begins
with a macro defines a family: one member for each use of the macro, with the macro's last argument as the suffix, as in
OB_FLOATING(float, f32). Blocks use only blocks before them, in the order of the files.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["needed_by", "prelude"]

# In the order in which they use each other.
_FILES = ("integer", "float", "half", "float8", "random", "bessel", "gamma", "polynomial", "failure")
_NAME = re.compile(r"\bob_\w+")
_DEFINITION = re.compile(r"OB_DEVICE \w+ (ob_\w+)\(|OB_TABLE \w+ (ob_\w+)\[|^\} (ob_\w+);", re.MULTILINE)
_MEMBER = re.compile(r"^OB_\w+\((?:\w+, )*(?P<suffix>\w+)\)\n?", re.MULTILINE)


@dataclass(frozen=True)
class _Block:
    text: str
    # Names that the block defines and uses, by suffix. The suffix is "" if the block is not a family.
    defines: Mapping[str, frozenset[str]]
    uses: Mapping[str, frozenset[str]]

    def written(self, suffixes: frozenset[str]) -> str:
        """Return the text with only these members of the family."""
        return _MEMBER.sub(lambda member: member[0] if member["suffix"] in suffixes else "", self.text)


@functools.cache
def prelude() -> tuple[str, ...]:
    """Return the texts of the prelude's files."""
    folder = Path(__file__).parent
    return tuple((folder / f"{name}.h").read_text(encoding="utf-8") for name in _FILES)


def needed_by(text: str) -> list[str]:
    """Return the blocks that a text needs, and the blocks that these need."""
    blocks, places = _blocks()
    wanted: dict[int, set[str]] = {}
    left = list(_NAME.findall(text))
    while left:
        place = places.get(left.pop())
        if place is None:
            continue  # a name of the dialect's header, or of the text's own
        number, suffix = place
        if suffix not in wanted.setdefault(number, set()):
            wanted[number].add(suffix)
            left.extend(blocks[number].uses[suffix])
    return [blocks[number].written(frozenset(wanted[number])) for number in sorted(wanted)]


@functools.cache
def _blocks() -> tuple[tuple[_Block, ...], Mapping[str, tuple[int, str]]]:
    blocks = tuple(_read(text) for file in prelude() for text in re.split(r"\n\s*\n", file))
    places = {
        name: (number, suffix)
        for number, block in enumerate(blocks)
        for suffix, names in block.defines.items()
        for name in names
    }
    return blocks, places


def _read(text: str) -> _Block:
    suffixes: Iterable[str] = _MEMBER.findall(text) or ("",)
    expanded = {suffix: text.replace("##S", suffix) for suffix in suffixes}
    defines = {
        suffix: frozenset(name for names in _DEFINITION.findall(one) for name in names if name)
        for suffix, one in expanded.items()
    }
    uses = {suffix: frozenset(_NAME.findall(one)) - defines[suffix] for suffix, one in expanded.items()}
    return _Block(text.rstrip("\n") + "\n", defines, uses)
