# SPDX-License-Identifier: BSD-3-Clause
"""The helpers that kernels call.

They are defined in this folder's files; a kernel's text includes only the helpers that it needs.

A file is a list of blocks, separated by blank lines. A block defines functions, tables or types. A block with a line
such as `// family T, S: float, f32; double, f64` is a family with one member per type: in the first member, `float`
replaces `T`, and `f32` replaces `S` at the end of a name. The last word of a member is its suffix. Blocks use only
earlier blocks, in the order of the files.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["needed_by", "prelude", "weight_of"]

# In dependency order.
_FILES = (
    *("integer", "memory", "float", "elementary", "half", "float8", "random"),
    *("bessel", "gamma", "polynomial", "failure"),
)
# A helper, or a C library function, which a file named by a dialect may define.
_NAME = re.compile(r"\bob_\w+|\bOB_LIB\((?P<function>\w+)\)")
_DEFINITION = re.compile(r"OB_DEVICE \w+ (ob_\w+)\(|OB_TABLE \w+ (ob_\w+)\[|^OB_STRUCT\((ob_\w+)\)", re.MULTILINE)
# The head of a family: its words, and its members, which may be on separate lines.
_FAMILY = re.compile(r"^// family (?P<words>[\w, ]+):(?P<members>.*(?:\n//   .*)*)\n", re.MULTILINE)


@dataclass(frozen=True)
class _Block:
    # The text by suffix, and the names that it defines and uses. The suffix is "" if the block is
    # not a family.
    texts: Mapping[str, str]
    defines: Mapping[str, frozenset[str]]
    uses: Mapping[str, frozenset[str]]

    def written(self, suffixes: frozenset[str]) -> str:
        """Return the text of these members of the family."""
        return "".join(text for suffix, text in self.texts.items() if suffix in suffixes)

    @property
    def weight(self) -> int:
        """The time to compile the block, measured in characters of a kernel."""
        text = next(iter(self.texts.values()))
        return len(text) if "" in self.texts else _LINE * (text.count("\n") + 1)


# The weight of each line of a family, and of its head.
_LINE = 116


@functools.cache
def prelude(library: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the texts of the prelude's files, preceded by the files that a dialect names (`Dialect.library`)."""
    folder = Path(__file__).parent
    return tuple((folder / f"{name}.h").read_text(encoding="utf-8") for name in (*library, *_FILES))


def needed_by(text: str, library: tuple[str, ...] = (), without: Container[str] = ()) -> list[str]:
    """Return the blocks that a text needs, directly or indirectly, leaving out the families' members `without`."""
    blocks, wanted = _blocks(library)[0], _wanted_by(text, library, without)
    return [blocks[number].written(frozenset(wanted[number])) for number in sorted(wanted)]


def weight_of(text: str) -> int:
    """Return the time to compile the blocks that a text needs, measured in characters of a kernel."""
    blocks = _blocks(())[0]
    return sum(blocks[number].weight for number in _wanted_by(text, (), ()))


def _wanted_by(text: str, library: tuple[str, ...], without: Container[str]) -> dict[int, set[str]]:
    """Return the needed blocks by number, with the suffixes of the needed members."""
    blocks, places = _blocks(library)
    wanted: dict[int, set[str]] = {}
    pending = _names(text)
    while pending:
        # No block: a name from the dialect's header or the text itself. Several blocks: overloads.
        for number, suffix in places.get(pending.pop(), ()):
            if suffix not in without and suffix not in wanted.setdefault(number, set()):
                wanted[number].add(suffix)
                pending.extend(blocks[number].uses[suffix])
    return wanted


@functools.cache
def _blocks(library: tuple[str, ...]) -> tuple[tuple[_Block, ...], Mapping[str, Sequence[tuple[int, str]]]]:
    blocks = tuple(_read(text) for file in prelude(library) for text in re.split(r"\n\s*\n", file))
    places: dict[str, list[tuple[int, str]]] = {}
    for number, block in enumerate(blocks):
        for suffix, names in block.defines.items():
            for name in names:
                places.setdefault(name, []).append((number, suffix))
    return blocks, places


def _names(text: str) -> list[str]:
    """Return the helpers that a text calls, in order."""
    return [f"ob_lib_{match['function']}" if match["function"] else match[0] for match in _NAME.finditer(text)]


def _read(text: str) -> _Block:
    text = text.rstrip("\n") + "\n"
    family = _FAMILY.search(text)
    texts = {"": text} if family is None else dict(_members(family, text))
    defines = {
        suffix: frozenset(name for names in _DEFINITION.findall(prelude) for name in names if name)
        for suffix, prelude in texts.items()
    }
    uses = {suffix: frozenset(_names(prelude)) - defines[suffix] for suffix, prelude in texts.items()}
    return _Block(texts, defines, uses)


def _members(family: re.Match[str], text: str) -> Iterator[tuple[str, str]]:
    """Yield the suffix and the text of each member of a family."""
    body = text[: family.start()] + text[family.end() :]
    words = family["words"].split(", ")
    pattern = re.compile(rf"\b(?:{'|'.join(words)})\b|(?<=_)S\b")
    for member in family["members"].replace("//", "").split(";"):
        substitutes = dict(zip(words, (word.strip() for word in member.split(",")), strict=True))
        yield substitutes["S"], pattern.sub(lambda match, substitutes=substitutes: substitutes[match[0]], body)  # type: ignore[misc]
