# SPDX-License-Identifier: BSD-3-Clause
"""Kernels in C++, for memory that the host can reach."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from torch._inductor.async_compile import AsyncCompile, get_compile_threads
from torch._inductor.codecache import LambdaFuture

from torch_outboard import _C
from torch_outboard.codegen.letters import kernel_letters
from torch_outboard.compile.runtime.library import KernelCache

__all__ = ["cpp_kernel"]


def cpp_kernel(async_compile: AsyncCompile, name: str, types: list[str], source: str) -> Any:
    """Compile a C++ kernel, in a worker if there are any, and return its launcher or a future of the launcher.

    The launcher takes tensors and numbers in the order of `types`; _C.compiled_kernel documents the launch. A failed
    compilation raises torch's CppCompileError, with the compiler's output.
    """
    kinds = kernel_letters(name, types)

    def launcher(library: Any) -> Callable[..., None]:
        address = ctypes.cast(library.outboard_entry, ctypes.c_void_p).value
        return _C.compiled_kernel(name, address or 0, kinds)

    if get_compile_threads() <= 1:
        return launcher(KernelCache.load(source))
    library = KernelCache.load_async(source, submit_fn=async_compile.submit)
    return LambdaFuture(lambda: launcher(library()))
