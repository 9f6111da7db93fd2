# SPDX-License-Identifier: BSD-3-Clause
"""Files of plans in the user's folders. Each file holds one answer of the builder.

The plans of a class are in the same folder. A file's name begins with the hash of the class's key and ends with the
kind of answer. Its first line is the hash of the rest, which is JSON and repeats the key.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch_outboard._private_files import parse_checked, printable_path, read_private, reason_of, with_checksum
from torch_outboard.codegen.program import KernelRecord
from torch_outboard.kernels.disk.key import Sizes

__all__ = [
    "DROP_LOG",
    "Answer",
    "Entry",
    "Folder",
    "answer_from_json",
    "answer_to_json",
    "folders_in",
    "is_plan_file_name",
    "versions_in",
    "written",
]


class Answer(NamedTuple):
    """The builder's answer: a plan and its kernels, or why there is none. csrc/bindings/kernels.cpp reads it."""

    text: str
    kernels: list[KernelRecord]
    refusal: str = ""
    is_of_class: bool = False  # the refusal is for the whole class: it is stored on disk, like plans


# In a version's folder: a line for each plan that was dropped.
DROP_LOG = "dropped"
_REFUSAL_SUFFIX = "class"
_NAMES = ("key", "sizes", "plan", "kernels", "refusal")
_VERSION = re.compile("[0-9a-f]{16}")
_FOLDER = re.compile("[0-9a-f]{2}")
# Older versions stored refusals under other names, which are not read. The last form is the name of
# an unfinished file.
_FILE = re.compile(r"[0-9a-f]{62}\.([0-9a-f]{32}|class|operator|refusal|refusal-[0-9a-f]{32})(\.[^.]+\.part)?")


@dataclass(frozen=True)
class Entry:
    """A stored answer with its file, its class (as in `key_of`), and the sizes of the call that requested it.

    The answer is None if the file is not used; `obstacle` is the reason.
    """

    path: Path
    size: int
    key: Mapping[str, Any]
    sizes: Sizes
    answer: Answer | None
    obstacle: str = ""


def is_plan_file_name(name: str) -> bool:
    """Return True if a file of plans may have this name."""
    return _FILE.fullmatch(name) is not None


def versions_in(folder: Path) -> list[Path]:
    """Return the folders of all versions that have stored plans there. Links and other names belong to the user."""
    try:
        with os.scandir(folder) as listed:
            names = [
                entry.name for entry in listed if _VERSION.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
            ]
    except FileNotFoundError:
        return []
    return [folder / name for name in sorted(names)]


def folders_in(folder: Path) -> list[Path]:
    """Return the folders there that contain files of plans. Links and other names belong to the user.

    Raises OSError if the folder cannot be read.
    """
    with os.scandir(folder) as listed:
        names = [
            entry.name for entry in listed if _FOLDER.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
        ]
    return [folder / name for name in sorted(names)]


class Folder:
    """A reader of files of plans. A faulty file raises no error.

    Parameters
    ----------
    path : Path
        The folder. Files are in subfolders named by the first two digits of the files' names. The folder need not
        exist.
    on_refused : callable
        Called with each file that is not used and the reason: the file is damaged, or other users may have written it.
    on_unreadable : callable
        Called with the error of each file or folder that cannot be read now.
    """

    def __init__(
        self,
        path: Path,
        on_refused: Callable[[Path, str], None],
        on_unreadable: Callable[[OSError], None],
    ) -> None:
        self.path = path
        self._on_refused = on_refused
        self._on_unreadable = on_unreadable

    def plans(self, key: str, sizes: Sizes | None = None) -> list[Answer]:
        """Return the plans of a class, of these sizes only if they are given; if there are none, its refusal."""
        stored = [read for path in self.files(key) if (read := self._read(path, key)) is not None]
        answers = [answer for sizes_of_call, answer in stored if sizes in (None, sizes_of_call)]
        if not answers and (refusal := self._read(self._path(key, _REFUSAL_SUFFIX), key)) is not None:
            answers.append(refusal[1])
        return answers

    def files(self, key: str) -> list[Path]:
        """Return the files of a class's plans, by name."""
        start = self._path(key, "")
        try:
            with os.scandir(start.parent) as listed:
                names = [entry.name for entry in listed if entry.name.startswith(start.name)]
        except FileNotFoundError:
            return []
        except OSError as error:
            self._on_unreadable(error)
            return []
        return [
            start.parent / name
            for name in sorted(names)
            if is_plan_file_name(name) and re.fullmatch("[0-9a-f]{32}", name.partition(".")[2])
        ]

    def names(self, key: str) -> list[str]:
        """Return the names of the files stored for a class: its plans, and its refusal."""
        refusal = self._path(key, _REFUSAL_SUFFIX)
        return [file.name for file in (*self.files(key), refusal) if file != refusal or file.exists()]

    def lock_path_of(self, key: str) -> Path:
        """Return the path of the lock file for building a plan of a class, which has the name of an unfinished file."""
        return self._path(key, f"{_REFUSAL_SUFFIX}.building.part")

    def text(self, path: Path, key: str) -> str | None:
        """Return the text of a file's plan, or None if the file is not used."""
        read = self._read(path, key)
        return None if read is None else read[1].text

    def place_of(self, key: str, answer: Answer) -> Path:
        """Return the path of an answer's file: each plan has its own file, and the refusal has another."""
        if answer.refusal:
            return self._path(key, _REFUSAL_SUFFIX)
        return self._path(key, _short_hash(json.dumps([answer.text, _kernels_to_json(answer.kernels)])))

    def entries(self) -> Iterator[Entry]:
        """Yield all entries of the folder, in no particular order."""
        try:
            paths = [path for folder in folders_in(self.path) for path in sorted(folder.iterdir())]
        except FileNotFoundError:
            return
        except OSError as error:
            self._on_unreadable(error)
            return
        for path in paths:
            if is_plan_file_name(path.name) and not path.name.endswith(".part"):
                yield self._entry(path)

    def _entry(self, path: Path) -> Entry:
        try:
            content = read_private(path)
        except OSError as error:
            return Entry(path, 0, {}, [], None, reason_of(error))
        fields = parse_checked(content or b"", _NAMES)
        answer = None if fields is None or not _are_sizes(fields["sizes"]) else answer_from_json(fields)
        key = None if answer is None else _parsed_key(fields["key"])  # type: ignore[index]
        if fields is None or answer is None or key is None:
            return Entry(path, len(content or b""), {}, [], None, f"{printable_path(path)} is damaged")
        return Entry(path, len(content or b""), key, fields["sizes"], answer)

    def _path(self, key: str, name: str) -> Path:
        digest = hashlib.sha256(key.encode()).hexdigest()
        return self.path / digest[:2] / f"{digest[2:]}.{name}"

    def _read(self, path: Path, key: str) -> tuple[Sizes, Answer] | None:
        """Return the sizes of the call for which an answer was built, and the answer; None if the file is not used."""
        try:
            content = read_private(path)
        except PermissionError as error:
            self._on_refused(path, reason_of(error))
            return None
        except OSError as error:
            self._on_unreadable(error)
            return None
        if content is None:
            return None
        fields = parse_checked(content, _NAMES)
        is_right = fields is not None and fields["key"] == key and _are_sizes(fields["sizes"])
        answer = answer_from_json(fields) if is_right else None  # type: ignore[arg-type]
        if fields is None or answer is None:
            self._on_refused(path, f"{printable_path(path)} is damaged")
            return None
        return fields["sizes"], answer


def written(key: str, sizes: Sizes, answer: Answer) -> bytes:
    """Return the content of an answer's file."""
    return with_checksum(json.dumps({"key": key, "sizes": sizes, **answer_to_json(answer)}, indent=1).encode())


def answer_to_json(answer: Answer) -> dict[str, Any]:
    """Return an answer as JSON data, without the functions that read its kernels' programs."""
    return {"plan": answer.text, "kernels": _kernels_to_json(answer.kernels), "refusal": answer.refusal}


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _kernels_to_json(kernels: list[KernelRecord]) -> list[Any]:
    fields = [name for name in KernelRecord._fields if name != "read_binary"]
    return [{name: getattr(kernel, name) for name in fields} | {"code": _encoded(kernel.code)} for kernel in kernels]


def _encoded(code: bytes) -> Any:
    """Return text unchanged, so that people can read it, and a binary in base64."""
    try:
        return code.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(code).decode()}


def _decoded(code: Any) -> bytes:
    return base64.b64decode(code["base64"]) if isinstance(code, dict) else code.encode()


def answer_from_json(fields: Mapping[str, Any]) -> Answer | None:
    """Return the answer that `answer_to_json` converted; None if the structure differs."""
    text, refusal = fields["plan"], fields["refusal"]
    if not isinstance(text, str) or not isinstance(refusal, str) or not isinstance(fields["kernels"], list):
        return None
    try:
        _ = (text + refusal).encode()  # a lone UTF-16 surrogate cannot be encoded
        return Answer(text, [_kernel_from_json(kernel) for kernel in fields["kernels"]], refusal, bool(refusal))
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _kernel_from_json(kernel: Any) -> KernelRecord:
    """Return a kernel in the form that _C takes. Raise TypeError or a similar error for other fields or types."""
    record = KernelRecord(**kernel | {"code": _decoded(kernel["code"]), "read_binary": None})
    for value in (record.geometry, record.checks):
        if not isinstance(value, list):
            raise TypeError("not a list of strings")
    others = ("code", "geometry", "checks", "read_binary")
    texts = [value for name, value in record._asdict().items() if name not in others]
    if not all(isinstance(text, str) for text in [*texts, *record.geometry, *record.checks]):
        raise TypeError("not a string")
    return record._replace(geometry=tuple(record.geometry), checks=tuple(record.checks))


def _are_sizes(sizes: Any) -> bool:
    pairs = sizes if isinstance(sizes, list) else [None]
    lists = [
        pair_or_part
        for pair in pairs
        for pair_or_part in (pair if isinstance(pair, list) and len(pair) == 2 else [None])
    ]
    return all(isinstance(numbers, list) and all(isinstance(number, int) for number in numbers) for numbers in lists)


def _parsed_key(text: Any) -> Mapping[str, Any] | None:
    try:
        key = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return None
    return key if isinstance(key, dict) else None
