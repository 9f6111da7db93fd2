# SPDX-License-Identifier: BSD-3-Clause
"""The function that generated Python code calls to turn a kernel's text into a launcher."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch_outboard import _C
from torch_outboard._errors import OutboardError
from torch_outboard._private_files import write_atomically
from torch_outboard.codegen.dialects import find_dialect
from torch_outboard.compile.runtime.library import check_library, hash_file, private_folder

__all__ = ["FLAGS", "host_source", "simt_kernel"]

_log = logging.getLogger(__name__)

Parameter = tuple[str, str, str]  # declaration, name, letter

# No option changes floating-point results. Tests add sanitizer options. With a later standard, the
# headers take longer to compile than most kernels.
FLAGS = ("-std=c++14", "-O2", "-ftree-vectorize", "-ffp-contract=off", "-fPIC", "-shared", "-w")


def simt_kernel(name: str, dialect: str, parameters: Sequence[Parameter], items: str, text: str) -> Callable[..., None]:
    """Return the launcher of a kernel.

    Raises
    ------
    OutboardError
        If the kernel's text does not compile; the message has the compiler's output.
    """
    letters = "".join(letter for _, _, letter in parameters)
    source = host_source(name, dialect, parameters, items, text)
    entry = ctypes.cast(_library(source).outboard_entry, ctypes.c_void_p).value
    return _C.compiled_kernel(name, entry or 0, letters)


def host_source(name: str, dialect: str, parameters: Sequence[Parameter], items: str, text: str) -> str:
    """Return the text of a library: the kernel, and an entry point that calls the kernel for each item."""
    arguments = "\n".join(
        f"  {declared} = {_word(letter, declared, place)};" for place, (declared, _, letter) in enumerate(parameters)
    )
    names = ", ".join(parameter for _, parameter, _ in parameters)
    entry = (
        f'extern "C" void outboard_entry(const uint64_t* words) {{\n{arguments}\n'
        f"  const ob_i64 items = {items};\n"
        f"  for (ob_i64 item = 0; item < items; ++item) {name}(item, {names});\n}}\n"
    )
    return find_dialect(dialect).source(text) + "\n" + entry


def _word(letter: str, declared: str, place: int) -> str:
    if letter == "i":
        return f"(ob_i64)words[{place}]"
    kind = declared[: declared.index("*") + 1].removeprefix("OB_GLOBAL ")
    return f"reinterpret_cast<{kind}>(words[{place}])"


@functools.cache
def _library(source: str) -> Any:
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    key = hashlib.sha256("\0".join((source, *FLAGS)).encode()).hexdigest()
    library = Path(cache_dir(), "outboard_simt", key[:2], f"{key}.so")
    for folder in (library.parent.parent, library.parent):
        private_folder(folder)
    try:
        is_kept = check_library(library) is None
    except FileNotFoundError:
        is_kept = False
    except OSError as error:
        _log.warning("%s; it is compiled again", error)
        is_kept = False
    if not is_kept:
        _compile(source, library)
    return ctypes.CDLL(str(library))


def _compile(source: str, library: Path) -> None:
    """Compile a library and write its hash. Raise OutboardError if the text does not compile."""
    text = library.with_suffix(".cpp")
    write_atomically(text, source.encode())
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        built = Path(folder, library.name)
        done = subprocess.run(
            [os.environ.get("CXX", "c++"), *FLAGS, str(text), "-o", str(built)], capture_output=True, text=True
        )
        if done.returncode != 0:
            raise OutboardError(f"the kernel in {text} does not compile:\n{done.stderr}")
        built.chmod(0o700)
        write_atomically(hash_file(library), hashlib.sha256(built.read_bytes()).hexdigest().encode())
        built.replace(library)
