# SPDX-License-Identifier: BSD-3-Clause
"""A compiled kernel as a module that a torch.fx graph calls."""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor.codecache import LambdaFuture, PyCodeCache
from torch._subclasses.fake_tensor import FakeTensor

__all__ = ["CompiledKernel"]

_MODULE = """
from torch._inductor.async_compile import AsyncCompile
from torch_outboard.compile.runtime import cpp_kernel, device_kernel
{imports}

async_compile = AsyncCompile()
kernel = {definition}
"""


class CompiledKernel(torch.nn.Module):
    """A kernel that writes to some of its arguments and returns nothing.

    The module can be pickled. Loading it takes the compiled kernel from a cache or compiles the kernel. A call with
    fake tensors does nothing; `_C.compiled_kernel` documents other calls.

    Attributes
    ----------
    kernel_name : str
        The name, also in profiles.
    definition : str
        The generated code: a Python expression that contains the source.
    types : tuple of str
        C types of the arguments. Types that end in `*` are tensors; tensors without `const` are written.
    imports : tuple of str
        Lines that the definition needs in addition to the imports of cpp_kernel and device_kernel.
    """

    # Read by torch.fx: dead code elimination then keeps the node, although it has no users.
    _is_impure = True

    def __init__(
        self, kernel_name: str, definition: str, types: tuple[str, ...], imports: tuple[str, ...] = ()
    ) -> None:
        super().__init__()
        self.kernel_name = kernel_name
        self.definition = definition
        self.types = types
        self.imports = imports
        self._launcher = PyCodeCache.load(_MODULE.format(definition=definition, imports="\n".join(imports))).kernel

    def wait(self) -> None:
        """Wait for the compiler, and raise its error if it failed."""
        if isinstance(self._launcher, LambdaFuture):
            self._launcher = self._launcher.result()

    def forward(self, *arguments: Any) -> None:
        if any(isinstance(argument, FakeTensor) for argument in arguments):
            return
        self.wait()
        self._launcher(*arguments)

    def extra_repr(self) -> str:
        return ", ".join(self.types)

    def __reduce__(self) -> Any:
        return CompiledKernel, (self.kernel_name, self.definition, self.types, self.imports)
