# SPDX-License-Identifier: BSD-3-Clause
"""Programs written for CUDA, unchanged, on the attached driver's devices.

    import torch_outboard

    with torch_outboard.as_cuda():
        model = Model().to("cuda")

`torch_outboard.as_cuda()` is the function `start` of this module. docs/as-cuda.md lists what works and what does not.
It works by patching torch: `patches()` lists the patches, `close` undoes them, and nothing else in the package depends
on them.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from torch_outboard.as_cuda.session import AsCuda, patches, start

__all__ = ["AsCuda", "patches", "start"]


class _Callable(ModuleType):
    """A module that can be called like the function of the same name: the submodule hides the package's function."""

    def __call__(self, *arguments: Any, **named: Any) -> AsCuda:
        return start(*arguments, **named)


sys.modules[__name__].__class__ = _Callable
