# SPDX-License-Identifier: BSD-3-Clause
"""Plans on disk, so that a process needs not build what an earlier one has built, nor import what builds it.

A file holds what the builder answered for one call. Its name is the hash of all that the answer depends on; its first
line the hash of the rest, which is JSON and has that key once more. The folder is the user's alone: what lies there is
handed to the driver's compiler. Damage is told in the log, and the plan is built again.

Processes may share a folder: a file comes into being whole, and who comes second replaces it by the same.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import json
import logging
import os
import re
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from torch_outboard.kernels.operators import overload_of

__all__ = ["Answer", "Entry", "Store", "default_folder", "key_of", "versions_in"]

_log = logging.getLogger(__name__)

# (text, kernels, refusal, whether it is of the class)
Answer = tuple[str, list[tuple[Any, ...]], str, bool]

VARIABLE = "OUTBOARD_KERNEL_CACHE_DIR"
# A folder of one version has as many files at most; those of other versions go when nobody has used them for so long.
_MOST_FILES = 8192
_KEPT_SECONDS = 30 * 24 * 3600
_VERSION = re.compile("[0-9a-f]{16}")


class _NoKey(Exception):
    """An argument has no text that says all of it."""


def key_of(
    name: str, arguments: Sequence[Any], by_value: Sequence[int], is_aliased: bool, device: int, form: str = "steps"
) -> str | None:
    """Gives all that the plan of a call depends on as JSON, or None for a call whose plan no file keeps.

    Of numbers that plans read at each call the type counts. `form` says what kind of plan it is: one of steps, or of a
    launch over "chunks".
    """
    schema = overload_of(name)._schema.arguments
    try:
        described = [
            _describe(value, is_read=place in by_value or str(declared.type) in ("Tensor", "Optional[Tensor]"))
            for place, (value, declared) in enumerate(zip(arguments, schema, strict=True))
        ]
    except _NoKey:
        return None
    return json.dumps(
        {
            "operator": name,
            "form": form,
            "arguments": described,
            "by_value": sorted(by_value),
            "is_aliased": is_aliased,
            "default_dtype": str(torch.get_default_dtype()),
            "is_deterministic": torch.are_deterministic_algorithms_enabled(),
            "device": _device(device),
            "settings": _settings(),
        }
    )


def _describe(value: Any, *, is_read: bool = False) -> Any:
    match value:
        case torch.Tensor():
            return ["tensor", str(value.dtype), list(value.shape), list(value.stride()), value.device.type]
        case bool() | int() | float() if is_read:
            return ["read", type(value).__name__]
        case None | bool() | int() | str():
            return value
        case float():
            return ["float", value.hex()]
        case list() | tuple():
            return ["list", [_describe(one) for one in value]]
        case torch.dtype() | torch.layout() | torch.memory_format():
            return [type(value).__name__, str(value)]
        case torch.device():
            return ["device", value.type]
        case torch.Generator():
            return ["generator"]
    raise _NoKey


@functools.cache
def _device(device: int) -> dict[str, Any]:
    """Gives what plans depend on of a device: what it is, its driver, who generates for it."""
    from torch_outboard.compile.generators import generators
    from torch_outboard.device.devices import get_device_properties

    properties = get_device_properties(device)
    generator = type(generators().eager())(generators().driver)
    generated = json.dumps(sorted(generator.cache_key().items())).encode()
    return {
        "driver": generators().driver.name,
        "driver_version": properties.driver_version,
        "device": [properties.vendor, properties.name, properties.architecture, properties.machine],
        "generator": f"{type(generator).__module__}.{type(generator).__qualname__}",
        "generated_by": hashlib.sha256(generated).hexdigest(),
    }


def _settings() -> list[str]:
    """Gives what a user has set of Inductor's: variables, and what differs from what they and the defaults say."""
    given = [
        f"{name}={value}"
        for name, value in os.environ.items()
        if name.startswith("TORCHINDUCTOR_") and name != "TORCHINDUCTOR_CACHE_DIR"
    ]
    config: Any = sys.modules.get("torch._inductor.config")
    if config is not None:
        entries = config._config
        for name, value in config.get_config_copy().items():
            entry = entries[name]
            if entry.alias is None and value not in (entry.default, entry.env_value_default, entry.env_value_force):
                given.append(f"{name} = {value!r}")
    return sorted(given)


@functools.cache
def _version() -> str:
    """Gives a hash of the versions of torch, of Python and of this package's code."""
    from torch_outboard.compile.own_code import own_code

    code = own_code(Path(__file__).parent)
    return hashlib.sha256(f"{torch.__version__} {sys.version_info[:2]} {code}".encode()).hexdigest()[:16]


def default_folder() -> Path | None:
    """Gives where plans are kept: as the variable says, else in the user's cache; None for nowhere."""
    if (given := os.environ.get(VARIABLE)) is not None:
        return Path(given) if given else None
    root = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(root):
        home = os.environ.get("HOME", "")
        if not os.path.isabs(home):
            return None
        root = os.path.join(home, ".cache")
    return Path(root, "torch_outboard", "kernels")


@dataclass(frozen=True)
class Entry:
    """A file of a store: what its plan is for, as `key_of` describes it, and the answer; None if it is damaged."""

    path: Path
    size: int
    key: Mapping[str, Any]
    answer: Answer | None


def versions_in(folder: Path) -> list[Path]:
    """Gives the folders of all versions that have left plans there. What else lies in a user's folder is the user's."""
    if not folder.is_dir():
        return []
    return sorted(
        one for one in folder.iterdir() if _VERSION.fullmatch(one.name) and one.is_dir() and not one.is_symlink()
    )


class Store:
    """The plans of a folder, or of none. Threads may share it.

    Attributes
    ----------
    loaded, saved : int
        How many plans came from files, and how many went there.
    """

    def __init__(self, folder: Path | None) -> None:
        self.loaded = self.saved = 0
        self._folder = None if folder is None else folder / _version()
        self._lock = threading.Lock()
        self._is_open_here: bool | None = None  # unknown

    @property
    def is_usable(self) -> bool:
        """Whether there is a folder, and nobody else may write there; the folder is made when this is first asked."""
        return self._folder is not None and self._is_open()

    def load(self, key: str) -> Answer | None:
        """Gives what was saved under a key; None if nothing was, or not this."""
        path = self._path(key)
        if path is None:
            return None
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            _log.warning("a plan can't be read (%s); it is built again", error)
            return None
        answer = _read(content, key)
        if answer is None:
            _log.warning("the plan in %s is damaged; it is built again", path)
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            return None
        with self._lock:
            self.loaded += 1
        return answer

    def save(self, key: str, answer: Answer) -> None:
        """Writes an answer. A folder that can't be written is told in the log once, and no more tried."""
        path = self._path(key)
        if path is None:
            return
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            file, name = tempfile.mkstemp(dir=path.parent)
            try:
                with os.fdopen(file, "wb") as stream:
                    stream.write(_written(key, answer))
                os.replace(name, path)
            except BaseException:
                os.unlink(name)
                raise
        except OSError as error:
            _log.warning("plans are not kept: %s", error)
            self._is_open_here = False
            return
        with self._lock:
            self.saved += 1
            is_first = self.saved == 1
        if is_first:
            self._prune()

    def entries(self) -> Iterator[Entry]:
        """Gives what lies there of this version, in no order."""
        if not self.is_usable:
            return
        assert self._folder is not None
        for path in self._folder.glob("*/*"):
            content = path.read_bytes()
            found = _verified(content)
            if found is None:
                yield Entry(path, len(content), {}, None)
            else:
                yield Entry(path, len(content), json.loads(found["key"]), _answer(found))

    def _path(self, key: str) -> Path | None:
        if not self.is_usable:
            return None
        assert self._folder is not None
        digest = hashlib.sha256(key.encode()).hexdigest()
        return self._folder / digest[:2] / digest[2:]

    def _is_open(self) -> bool:
        """Makes the folder, once, and looks whether anybody else may write there."""
        with self._lock:
            if self._is_open_here is None:
                assert self._folder is not None
                try:
                    self._folder.parent.parent.mkdir(parents=True, exist_ok=True)
                    for folder in (self._folder.parent, self._folder):
                        folder.mkdir(mode=0o700, exist_ok=True)
                        _check_private(folder)
                    os.utime(self._folder)
                    self._is_open_here = True
                except OSError as error:
                    _log.warning("plans are not kept: %s", error)
                    self._is_open_here = False
            return self._is_open_here

    def _prune(self) -> None:
        """Removes what is beyond the bounds: the oldest files of this version, and versions that nobody uses."""
        import shutil

        assert self._folder is not None
        with contextlib.suppress(OSError):  # another process prunes too
            for other in versions_in(self._folder.parent):
                if other != self._folder and time.time() - other.stat().st_mtime > _KEPT_SECONDS:
                    shutil.rmtree(other, ignore_errors=True)
            files = [(one.stat().st_mtime, one) for one in self._folder.glob("*/*")]
            for _, one in sorted(files)[: max(len(files) - _MOST_FILES, 0)]:
                one.unlink(missing_ok=True)


def _check_private(folder: Path) -> None:
    about = folder.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"{folder} is no folder that its user alone may write")


def _written(key: str, answer: Answer) -> bytes:
    text, kernels, refusal, is_of_class = answer
    listed = [[name, language, _encoded(code), *rest] for name, language, code, *rest in kernels]
    entry = {"key": key, "plan": text, "kernels": listed, "refusal": refusal, "is_of_class": is_of_class}
    content = json.dumps(entry, indent=1).encode()
    return hashlib.sha256(content).hexdigest().encode() + b"\n" + content


def _encoded(code: bytes) -> Any:
    """Text as it is, so that a reader can read it; a binary in base64."""
    try:
        return code.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(code).decode()}


def _decoded(code: Any) -> bytes:
    return base64.b64decode(code["base64"]) if isinstance(code, dict) else code.encode()


def _read(content: bytes, key: str) -> Answer | None:
    found = _verified(content)
    return None if found is None or found["key"] != key else _answer(found)


def _verified(content: bytes) -> Any:
    """Gives what a file says, or None if it isn't what was written."""
    digest, _, rest = content.partition(b"\n")
    return json.loads(rest) if hashlib.sha256(rest).hexdigest().encode() == digest else None


def _answer(found: Any) -> Answer:
    kernels = [(name, language, _decoded(code), *rest) for name, language, code, *rest in found["kernels"]]
    return found["plan"], kernels, found["refusal"], found["is_of_class"]
