# SPDX-License-Identifier: BSD-3-Clause
"""The helpers that kernels call, files of prelude/, of which a kernel's text gets what it needs and no more.

A file is a list of blocks, between blank lines. A block defines functions, tables or types; one that begins with a
macro defines a family of them for each type that the macro is used with, whose suffix is its last argument, as in
OB_FLOATING(float, f32). Blocks use others that stand before them, in the order of the files.
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
    # By suffix, the names that it defines and those that it uses; of a block that is no family by "".
    defines: Mapping[str, frozenset[str]]
    uses: Mapping[str, frozenset[str]]

    def written(self, suffixes: frozenset[str]) -> str:
        """Gives the text with those members of the family only."""
        return _MEMBER.sub(lambda member: member[0] if member["suffix"] in suffixes else "", self.text)


@functools.cache
def prelude() -> tuple[str, ...]:
    """Gives the files of the prelude."""
    folder = Path(__file__).with_name("prelude")
    return tuple((folder / f"{name}.h").read_text(encoding="utf-8") for name in _FILES)


def needed_by(text: str) -> list[str]:
    """Gives the blocks that a text needs, and those that they need."""
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
