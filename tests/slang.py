# SPDX-License-Identifier: BSD-3-Clause
"""Slang's compiler of an installed package, and SPIR-V's validator, without a device."""

from __future__ import annotations

import ctypes
import importlib.util
import struct
import subprocess
from functools import cache
from pathlib import Path

__all__ = ["compile_slang", "compiler_of_slang", "refusal_of_spirv"]

_SOURCE = 3  # the instruction OpSource, whose number for Slang older validators do not know


@cache
def compiler_of_slang() -> Path | None:
    """Return the library of the package slangtorch, which is not imported; None if it is not installed."""
    spec = importlib.util.find_spec("slangtorch")
    folders = spec.submodule_search_locations if spec is not None else None
    libraries = [place for folder in folders or () for place in Path(folder, "bin").glob("libslang-compiler.so*")]
    return libraries[0] if libraries else None


@cache
def _library() -> tuple[ctypes.CDLL, ctypes.c_void_p]:
    library = ctypes.CDLL(str(compiler_of_slang()))
    for name in ("spCreateSession", "spCreateCompileRequest", "spGetCompileRequestCode"):
        getattr(library, name).restype = ctypes.c_void_p
    library.spGetDiagnosticOutput.restype = ctypes.c_char_p
    return library, ctypes.c_void_p(library.spCreateSession(None))


def compile_slang(text: str, options: str) -> bytes:
    """Return the SPIR-V of a program. Raise ValueError with the compiler's messages."""
    library, session = _library()
    request = ctypes.c_void_p(library.spCreateCompileRequest(session))
    try:
        words = ["-target", "spirv", *options.split()]
        library.spProcessCommandLineArguments(
            request, (ctypes.c_char_p * len(words))(*(word.encode() for word in words)), len(words)
        )
        unit = library.spAddTranslationUnit(request, 1, b"program")
        library.spAddTranslationUnitSourceString(request, unit, b"program.slang", text.encode())
        if library.spCompile(request) != 0:
            raise ValueError(library.spGetDiagnosticOutput(request).decode())
        size = ctypes.c_size_t()
        code = library.spGetCompileRequestCode(request, ctypes.byref(size))
        return ctypes.string_at(code, size.value)
    finally:
        library.spDestroyCompileRequest(request)


def refusal_of_spirv(code: bytes, folder: Path) -> str:
    """Return what the validator of SPIR-V finds wrong; "" for a valid module."""
    words = struct.unpack(f"<{len(code) // 4}I", code)
    kept, at = list(words[:5]), 5
    while at < len(words):
        count = words[at] >> 16
        if words[at] & 0xFFFF != _SOURCE:
            kept += words[at : at + count]
        at += count
    place = folder / "program.spv"
    place.write_bytes(struct.pack(f"<{len(kept)}I", *kept))
    answer = subprocess.run(["spirv-val", "--target-env", "vulkan1.3", place], capture_output=True, text=True)
    return answer.stderr
