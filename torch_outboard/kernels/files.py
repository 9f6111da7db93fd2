# SPDX-License-Identifier: BSD-3-Clause
"""Files of plans: what the builder answered for a call, one a file, in folders of the user's and in packs.

The plans of a class lie beside each other: a file's name begins with the hash of the class's key and ends with what the
answer is. Its first line is the hash of the rest, which is JSON and has that key once more.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_outboard._sealed import sealed, unsealed
from torch_outboard.kernels.key import Sizes

__all__ = ["Answer", "Entry", "Folder", "written"]

_log = logging.getLogger(__name__)

# (text, kernels, refusal, whether it is of the class)
Answer = tuple[str, list[tuple[Any, ...]], str, bool]

_OF_CLASS = "refusal"
_OF_CALL = "refusal-"


@dataclass(frozen=True)
class Entry:
    """A file: its class, as `key_of` describes it, the sizes of the call that was asked for, and the answer.

    The answer is None if the file is damaged.
    """

    path: Path
    size: int
    key: Mapping[str, Any]
    sizes: Sizes
    answer: Answer | None


class Folder:
    """Reads files of plans.

    Parameters
    ----------
    path : Path
        Where they lie, in folders by the first two digits of their names. It need not exist.
    is_damaged : callable
        Is given each file that isn't what was written.
    """

    def __init__(self, path: Path, is_damaged: Callable[[Path], None]) -> None:
        self.path = path
        self._is_damaged = is_damaged

    def plans(self, key: str) -> list[Answer]:
        """Gives the plans of a class; if there are none, the refusal of the class."""
        read = [self._read(path, key) for path in self.files(key)]
        found = [answer for answer in read if answer is not None]
        if not found and (refusal := self._read(self._path(key, _OF_CLASS), key)) is not None:
            found.append(refusal)
        return found

    def refusal(self, key: str, sizes: Sizes) -> Answer | None:
        """Gives the refusal of a single call."""
        return self._read(self._path(key, _name_of_call(sizes)), key)

    def files(self, key: str) -> list[Path]:
        """Gives the files of a class's plans, by name."""
        start = self._path(key, "")
        try:
            with os.scandir(start.parent) as listed:
                names = [one.name for one in listed if one.name.startswith(start.name)]
        except FileNotFoundError:
            return []
        return [start.parent / one for one in sorted(names) if not one.startswith(start.name + _OF_CLASS)]

    def place_of(self, key: str, sizes: Sizes, answer: Answer) -> Path:
        """Gives the file for an answer: one for each plan, one for the class's refusal or for that of the call."""
        text, kernels, refusal, is_of_class = answer
        if not refusal:
            return self._path(key, _short_hash(json.dumps([text, _listed(kernels)])))
        return self._path(key, _OF_CLASS if is_of_class else _name_of_call(sizes))

    def entries(self) -> Iterator[Entry]:
        """Gives all that lies there, in no order."""
        for path in self.path.glob("??/*.*"):
            content = path.read_bytes()
            found = _verified(content)
            if found is None:
                yield Entry(path, len(content), {}, [], None)
            else:
                yield Entry(path, len(content), json.loads(found["key"]), found["sizes"], _answer(found))

    def _path(self, key: str, name: str) -> Path:
        digest = hashlib.sha256(key.encode()).hexdigest()
        return self.path / digest[:2] / f"{digest[2:]}.{name}"

    def _read(self, path: Path, key: str) -> Answer | None:
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            _log.warning("a plan can't be read (%s); it is built again", error)
            return None
        found = _verified(content)
        if found is None or found["key"] != key:
            self._is_damaged(path)
            return None
        return _answer(found)


def written(key: str, sizes: Sizes, answer: Answer) -> bytes:
    """Gives the content of a file."""
    text, kernels, refusal, is_of_class = answer
    entry = {
        "key": key,
        "sizes": sizes,
        "plan": text,
        "kernels": _listed(kernels),
        "refusal": refusal,
        "is_of_class": is_of_class,
    }
    return sealed(json.dumps(entry, indent=1).encode())


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _name_of_call(sizes: Sizes) -> str:
    return _OF_CALL + _short_hash(json.dumps(sizes))


def _listed(kernels: list[tuple[Any, ...]]) -> list[Any]:
    return [[name, language, _encoded(code), *rest] for name, language, code, *rest in kernels]


def _encoded(code: bytes) -> Any:
    """Text as it is, so that a reader can read it; a binary in base64."""
    try:
        return code.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(code).decode()}


def _decoded(code: Any) -> bytes:
    return base64.b64decode(code["base64"]) if isinstance(code, dict) else code.encode()


def _verified(content: bytes) -> Any:
    """Gives what a file says, or None if it isn't what was written."""
    rest = unsealed(content)
    return None if rest is None else json.loads(rest)


def _answer(found: Any) -> Answer:
    kernels = [(name, language, _decoded(code), *rest) for name, language, code, *rest in found["kernels"]]
    return found["plan"], kernels, found["refusal"], found["is_of_class"]
