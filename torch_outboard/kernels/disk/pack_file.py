# SPDX-License-Identifier: BSD-3-Clause
"""The file of a pack: shared plans, and programs for each architecture. It is compressed, sealed, and never modified.

The file is an SQLite database, because SQLite finds a row without reading the others, whereas zipfile parses the names
of all entries when it opens a file. SQLite reads the file instead of mapping it, so a file that is truncated while in
use causes an error, not SIGBUS.

A row has a name and a seal, the hash of its name and content. Each row is checked when it is read, so opening the file
need not check all rows. A row's number is the beginning of the hash of its name. There are five kinds of rows:

    about                             the versions that the pack was made for, and its content
    class, its key                    the key, and the hashes of the class's answers with the sizes of their calls
    answer, the hash of its content   a plan with its kernels' texts, or a refusal
    program, architecture and text    where the program lies: a block's number, the first byte, and the size
    block, its number                 programs of several kernels, one after the other
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import lzma
import os
import sqlite3
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch_outboard import _C
from torch_outboard._private_files import printable_path
from torch_outboard.codegen.program import KernelRecord
from torch_outboard.kernels.disk.files import Answer, Entry, answer_from_json, answer_to_json
from torch_outboard.kernels.disk.key import Sizes

__all__ = ["DamagedPack", "PackFile", "is_pack", "program_name", "write_pack_file"]

_FORMAT = 3
# In the file's header, to distinguish a pack from other databases.
_APPLICATION = 0x0B4A5C1D
_SCHEMA = "CREATE TABLE rows (number INTEGER PRIMARY KEY, kind TEXT, seal BLOB, content BLOB)"
# Kernels of a class are similar, and many kernels begin with the same prelude. Each answer is
# therefore compressed with another answer, its base, as zlib's dictionary. The base is the first
# answer of the class; the first answer's own base is the first answer of the operator. A fixed
# dictionary with the text that all rows share would need 2.5 times the space. A row begins with the
# hash of its base, or with zeros if it has no base.
_NO_BASE = bytes(hashlib.sha256().digest_size)
_MAX_DICTIONARY_BYTES = 32 << 10
_MAX_CACHED_BASES = 64  # bases that a reader keeps
# Programs of one operator are similar: sixteen programs compressed together take a third of the
# space that they take separately, and a reader expands them in one or two milliseconds. LZMA's
# dictionary takes memory of the reader.
_PROGRAMS_PER_BLOCK = 16
_LZMA = [{"id": lzma.FILTER_LZMA1, "preset": 9, "dict_size": 1 << 20}]
_EXPANDING = (zlib.error, lzma.LZMAError, EOFError)


class DamagedPack(Exception):
    """The file is not a pack, or its content has changed."""


def program_name(architecture: str, kernel: KernelRecord) -> str:
    """Return the name of the row of a kernel's program for an architecture."""
    parts = (architecture.encode(), kernel.language.encode(), kernel.options.encode(), kernel.code)
    return hashlib.sha256(b"".join(b"%d:%b" % (len(part), part) for part in parts)).hexdigest()


def is_pack(path: Path) -> bool:
    """Return True if a file is a pack of any version; False for a link or an unreadable file."""
    try:
        with path.open("rb") as file:
            head = file.read(100)
    except OSError:
        return False
    return not path.is_symlink() and head.startswith(b"SQLite format 3\0") and head[68:72] == _mark()


def _mark() -> bytes:
    return _APPLICATION.to_bytes(4, "big")


class PackFile:
    """A pack that is open for reading. Only one thread may use it.

    The constructor and the methods raise OSError if the file does not exist or another user may have written it, and
    `DamagedPack`. `trusted` is an additional user whose files are accepted; -1 means no such user.

    Attributes
    ----------
    about : mapping of str to object
        The row `about`.
    """

    def __init__(self, path: Path, trusted: int = -1) -> None:
        self.path = path
        if _C.check_private(path, trusted) is None:
            raise FileNotFoundError(f"{printable_path(path)} does not exist")
        if not is_pack(path):
            raise DamagedPack(f"{printable_path(path)} is not a pack of kernels")
        with _damage(path):
            # Nobody writes the file, so SQLite need not lock it or look for a journal.
            self._rows = sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True, check_same_thread=False)
            self._rows.execute("PRAGMA trusted_schema = OFF")
        self._shared = b""
        self._base = functools.lru_cache(_MAX_CACHED_BASES)(self._read_base)
        self._block: tuple[str, bytes] = ("", b"")  # the block that was read last
        about = self._json("about", "")
        if about is None or about.get("format") != _FORMAT:
            raise DamagedPack(f"{printable_path(path)} is a pack of another format version")
        self.about: Mapping[str, Any] = about
        self._shared = str(about["shared"]).encode()

    def plans(self, key: str) -> list[Answer]:
        """Return the plans of a class, or its refusal."""
        row = self._json("class", key)
        return [] if row is None else [self._answer(name) for name, _ in row["answers"]]

    def has_plan(self, key: str, text: str) -> bool:
        """Return True if a class has a plan of this text."""
        return any(answer.text == text for answer in self.plans(key))

    def entries(self) -> Iterator[Entry]:
        """Yield a class's answers, with the sizes of the calls that requested them."""
        with _damage(self.path):
            rows = self._rows.execute("SELECT content FROM rows WHERE kind = 'class'").fetchall()
            classes = [json.loads(self._decompress("class", content)) for (content,) in rows]
        for row in classes:
            for name, sizes in row["answers"]:
                size = len(self._row("answer", name) or b"")
                yield Entry(self.path, size, json.loads(row["key"]), sizes, self._answer(name))

    def program(self, kernel: KernelRecord, architectures: Sequence[str]) -> bytes:
        """Return a kernel's program for the first of these architectures that has one, or b"" if none has."""
        for architecture in architectures:
            if (place := self._row("program", program_name(architecture, kernel))) is not None:
                return self._program(*place.decode().split())
        return b""

    def _answer(self, name: str) -> Answer:
        row = self._json("answer", name)
        answer = None if row is None else answer_from_json(row)
        if answer is None:
            raise DamagedPack(f"{printable_path(self.path)} lacks a plan")
        return answer

    def _program(self, block: str, first: str, size: str) -> bytes:
        if block != self._block[0]:
            self._block = block, self._row("block", block) or b""
        end = int(first) + int(size)
        if end > len(self._block[1]):
            raise DamagedPack(f"{printable_path(self.path)} lacks a program")
        return self._block[1][int(first) : end]

    def _json(self, kind: str, name: str) -> Any:
        content = self._row(kind, name)
        with _damage(self.path):
            return None if content is None else json.loads(content)

    def _row(self, kind: str, name: str) -> bytes | None:
        """Return the content of a row, or None if there is no such row."""
        with _damage(self.path):
            row = self._rows.execute(
                "SELECT seal, content FROM rows WHERE number = ?", (_number(kind, name),)
            ).fetchone()
            if row is None:
                return None
            content = self._decompress(kind, row[1])
            if row[0] != _seal(kind, name, content):
                raise ValueError("the hash of a row does not match its content")
            return content

    def _decompress(self, kind: str, content: bytes) -> bytes:
        if kind == "program":
            return content
        if kind == "block":
            return lzma.decompress(content, lzma.FORMAT_RAW, filters=_LZMA)
        dictionary = self._shared
        if kind == "answer":
            base, content = content[: len(_NO_BASE)], content[len(_NO_BASE) :]
            dictionary = dictionary if base == _NO_BASE else self._base(base)
        expander = zlib.decompressobj(zdict=dictionary)
        return expander.decompress(content) + expander.flush()

    def _read_base(self, digest: bytes) -> bytes:
        return _dictionary(self._row("answer", digest.hex()) or b"")


@contextlib.contextmanager
def _damage(path: Path) -> Iterator[None]:
    """Raise `DamagedPack` instead of any error that a changed file causes during a read."""
    try:
        yield
    except (sqlite3.Error, *_EXPANDING, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedPack(f"{printable_path(path)} is damaged ({error})") from error


def _dictionary(content: bytes) -> bytes:
    return content[-_MAX_DICTIONARY_BYTES:]


@functools.cache
def _kind_hash(kind: str) -> Any:
    return hashlib.sha256(f"{kind}\n".encode())


def _name_hash(kind: str, name: str) -> Any:
    hasher = _kind_hash(kind).copy()
    hasher.update(hashlib.sha256(name.encode()).digest())
    return hasher


def _number(kind: str, name: str) -> int:
    return int.from_bytes(_name_hash(kind, name).digest()[:8], "big", signed=True)


def _seal(kind: str, name: str, content: bytes) -> bytes:
    hasher = _name_hash(kind, name)
    hasher.update(content)
    return hasher.digest()  # type: ignore[no-any-return]


def write_pack_file(
    path: Path,
    about: Mapping[str, Any],
    plans: Iterable[tuple[str, Sizes, Answer]],
    programs: Iterable[tuple[str, bytes]],
) -> None:
    """Write a pack with plans by key and programs by the names from `program_name`; similar programs follow each other.

    The complete file replaces an older pack in one step. Whatever the owner's umask is, other users may read but not
    write the file; otherwise it would not be used. Equal contents produce equal files.
    """
    classes: dict[str, list[tuple[str, Sizes]]] = {}
    answers: dict[str, bytes] = {}
    for key, sizes, answer in plans:
        content = json.dumps(answer_to_json(answer)).encode()
        name = hashlib.sha256(content).hexdigest()
        answers[name] = content
        classes.setdefault(key, []).append((name, sizes))
    shared = _common_dictionary(answers.values())
    bases = _bases_of(classes)
    rows = [("answer", name, content) for name, content in answers.items()]
    rows += [
        ("class", key, json.dumps({"key": key, "answers": sorted(texts)}).encode()) for key, texts in classes.items()
    ]
    rows += _rows_of_programs(list(programs))
    written = {**about, "format": _FORMAT, "shared": shared.decode()}
    rows.append(("about", "", json.dumps(written).encode()))

    def compressed(kind: str, name: str, content: bytes) -> bytes:
        if kind == "program":
            return content
        if kind == "block":
            return lzma.compress(content, lzma.FORMAT_RAW, filters=_LZMA)
        if kind == "answer" and (base := bases[name]):
            return bytes.fromhex(base) + _compress(content, _dictionary(answers[base]))
        start = _NO_BASE if kind == "answer" else b""
        return start + _compress(content, b"" if kind == "about" else shared)

    _write_rows(path, rows, compressed)


def _bases_of(classes: Mapping[str, Sequence[tuple[str, Sizes]]]) -> dict[str, str]:
    """Return the names of the answers' bases, "" for an answer without a base."""
    bases: dict[str, str] = {}
    firsts: dict[str, str] = {}  # the first answer of each operator
    for key, texts in sorted(classes.items()):
        names = sorted(name for name, _ in texts)
        operator = json.loads(key)["operator"]
        bases.setdefault(names[0], firsts.get(operator, ""))
        firsts.setdefault(operator, names[0])
        for name in names[1:]:
            bases.setdefault(name, names[0])
    return bases


def _rows_of_programs(programs: Sequence[tuple[str, bytes]]) -> Iterator[tuple[str, str, bytes]]:
    for number, start in enumerate(range(0, len(programs), _PROGRAMS_PER_BLOCK)):
        together, first = programs[start : start + _PROGRAMS_PER_BLOCK], 0
        yield "block", str(number), b"".join(content for _, content in together)
        for name, content in together:
            yield "program", name, f"{number} {first} {len(content)}".encode()
            first += len(content)


def _common_dictionary(contents: Iterable[bytes]) -> bytes:
    """Return a text to compress all answers against: the answer of median length."""
    ordered = sorted(contents, key=lambda row: (len(row), row))
    return ordered[len(ordered) // 2][:_MAX_DICTIONARY_BYTES] if ordered else b""


def _write_rows(
    path: Path, rows: Iterable[tuple[str, str, bytes]], compressed: Callable[[str, str, bytes], bytes]
) -> None:
    file, temporary = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.", suffix=".part")
    os.close(file)
    try:
        database = sqlite3.connect(temporary, isolation_level=None)
        with contextlib.closing(database):
            database.execute("PRAGMA page_size = 4096")
            database.execute("PRAGMA journal_mode = OFF")
            database.execute(f"PRAGMA application_id = {_APPLICATION}")
            database.execute(_SCHEMA)
            packed = (
                (_number(kind, name), kind, _seal(kind, name, content), compressed(kind, name, content))
                for kind, name, content in rows
            )
            database.execute("BEGIN")
            database.executemany("INSERT INTO rows VALUES (?, ?, ?, ?)", sorted(packed))
            database.execute("COMMIT")
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:  # always re-raised, after removing the temporary file
        os.unlink(temporary)
        raise


def _compress(content: bytes, dictionary: bytes) -> bytes:
    compressor = zlib.compressobj(9, zdict=dictionary)
    return compressor.compress(content) + compressor.flush()
