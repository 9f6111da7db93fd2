# SPDX-License-Identifier: BSD-3-Clause
"""The words of generated texts that docs/vendor-questions.md does not list: what a strict language would reject."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path

from torch_outboard.codegen.dialects.dialect import Dialect

__all__ = ["foreign_words", "listed"]

PAGE = Path(__file__).parents[1] / "docs" / "vendor-questions.md"
_TOKEN = re.compile(r"[A-Za-z_]\w*|\d[\w.]*(?:(?<=[eE])[+-]\d+\w*)?|->|[^\s\w]")
_DOUBLE = re.compile(r"(?:\d+\.\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)")


@functools.cache
def listed() -> dict[str, frozenset[str]]:
    """Return the words of the page's table, by the first column."""
    section = PAGE.read_text(encoding="utf-8").partition("### The words\n")[2].partition("\n#")[0]
    rows = re.findall(r"^\| (\w+) \| (`[^|]*) \|$", section, re.MULTILINE)
    fields = r"with (?:halves in )?`\w+`"
    return {
        kind: frozenset(" ".join(re.findall(r"`([^`]*)`", re.sub(fields, "", words))).split()) for kind, words in rows
    }


def foreign_words(text: str, dialect: Dialect) -> set[str]:
    """Return what a text has beyond the listed words and its own names: words, directives, functions, doubles."""
    words = listed()
    text = re.sub(r'//.*|"(?:[^"\\]|\\.)*"', " ", text)
    for own in (dialect.item, dialect.unroll, dialect.kernel.partition(" ")[0]):
        text = text.replace(own, " ")
    words_found = {f"OB_LIB({name})" for name in re.findall(r"OB_LIB\((\w+)\)", text) if name not in words["functions"]}
    text = re.sub(r"OB_LIB\(\w+\)", " OB_LIB", text)
    words_found |= {
        f"#{name}" for name in re.findall(r"^\s*#\s*(\w+)", text, re.MULTILINE) if name not in words["directives"]
    }
    text = re.sub(r"^\s*#\s*(?:ifn?def|undef|else|endif|if|elif)\b.*", "", text, flags=re.MULTILINE)
    names = set[str]()
    for name, parameters in re.findall(r"^\s*#\s*define (\w+)(?:\(([^)]*)\))?", text, re.MULTILINE):
        names |= {name, *re.findall(r"\w+", parameters)}
    text = re.sub(r"^\s*#\s*define \w+(?:\([^)]*\))?", " ;", text, flags=re.MULTILINE)
    names |= set(re.findall(r"\bOB_(?:OWN|TABLE_OF)\(\w+, (\w+)", text))
    tokens = _TOKEN.findall(text)
    names |= set(_declared(tokens, words["types"]))
    known = frozenset().union(*words.values()) - words["functions"]
    for before, token in zip(["", *tokens], tokens, strict=False):
        if before in (".", "->"):
            continue
        if _DOUBLE.fullmatch(token):
            words_found.add(f"{token} (a double)")
        elif re.match(r"OB_|[A-Za-z_]", token) and not token.startswith("ob_") and token not in known | names:
            words_found.add(token)
    return words_found


def _declared(tokens: list[str], types: frozenset[str]) -> Iterator[str]:
    """Yield the names that a text declares: behind a type, or behind a comma of the same declaration."""
    depth, declares_at = 0, -1
    earlier, last = "", ""
    for token, after in zip(tokens, [*tokens[1:], ""], strict=True):
        if token in "([":
            depth += 1
        elif token in ")]":
            depth -= 1
        elif token == ";":
            declares_at = -1
        elif re.match(r"[A-Za-z_]", token) and token not in types:
            is_type = [
                last in types or last.startswith("ob_"),
                last == "*" and (earlier in types or earlier.startswith("ob_")),
            ]
            if any(is_type) or last == "OB_RESTRICT" or (earlier == "enum" and last == "{"):
                declares_at = depth
                yield token
            elif last == "," and depth == declares_at and after in "=[,;":
                yield token
        earlier, last = last, token
