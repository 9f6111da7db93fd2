# SPDX-License-Identifier: BSD-3-Clause
"""What the generated Python code calls."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any

from torch._dynamo.graph_bytecode_inputs import get_external_object_by_index
from torch._inductor.async_compile import AsyncCompile, get_compile_threads
from torch._inductor.codecache import LambdaFuture

from torch_outboard import _C
from torch_outboard.compile.kernel_cache import KernelCache

__all__ = ["argument_type", "cpp_kernel", "in_cpp", "kernel_letters"]

# The letters of csrc/ops/compiled_kernel.h.
_NUMBERS = {"int64_t": "i", "long": "i", "int": "i", "float": "f", "double": "d"}


def cpp_kernel(async_compile: AsyncCompile, name: str, types: list[str], source: str) -> Any:
    """Compiles a kernel in C++, in a worker if there are any, and gives its launcher or the future of it.

    The launcher takes tensors and numbers in the order of `types`; _C.compiled_kernel says what it does with them. A
    compiler that fails raises torch's CppCompileError, with its output.
    """
    kinds = kernel_letters(name, types)

    def launcher(library: Any) -> Callable[..., None]:
        address = ctypes.cast(library.outboard_entry, ctypes.c_void_p).value
        return _C.compiled_kernel(name, address or 0, kinds)

    if get_compile_threads() <= 1:
        return launcher(KernelCache.load(source))
    library = KernelCache.load_async(source, submit_fn=async_compile.submit)
    return LambdaFuture(lambda: launcher(library()))


def in_cpp(function: Callable[[Any], Any], streams: Sequence[int] = ()) -> Callable[[Any], Any]:
    """Gives a function of one argument that calls generated C++, and raises the errors of ours with their types.

    `streams` are those that the generated code changes to, by their numbers in Dynamo's table of a call's objects.
    """
    if not streams:
        return functools.partial(_C.call_compiled, function, ())

    def call(argument: Any) -> Any:
        given = [get_external_object_by_index(number) for number in streams]
        ids = tuple(part for stream in given for part in (stream.device_index, stream.stream_id))
        return _C.call_compiled(function, ids, argument)

    return call


def argument_type(kind: str) -> str:
    """Gives the C++ type of a kernel's argument without the const of a number."""
    return kind if kind.endswith("*") else kind.removeprefix("const ")


def kernel_letters(name: str, types: list[str]) -> str:
    """Gives a letter for each C++ type. TypeError for a type that a launch cannot pass."""
    return "".join(_letter(name, kind) for kind in types)


def _letter(name: str, type_name: str) -> str:
    if type_name.endswith("*"):
        return "r" if type_name.startswith("const ") else "w"
    kind = _NUMBERS.get(type_name.removeprefix("const "))
    if kind is None:
        raise TypeError(f"the kernel {name} has an argument of type {type_name!r}, which a launch cannot pass")
    return kind
