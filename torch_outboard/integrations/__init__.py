# SPDX-License-Identifier: BSD-3-Clause
"""Patches that make libraries with a list of vendors choose the attached driver's device.

Each module here serves one library, or one family of libraries, and is imported only on request. Attach a driver, then
call the module's `use()` before the library's first use:

    import torch_outboard
    from torch_outboard.integrations import huggingface

    torch_outboard.attach("mychip")
    huggingface.use()

`use()` patches the library until `close()`, the end of a `with`, or the end of the process. Each patch has a name and a
reason, which `patches()` of the result lists.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

__all__ = ["use_all"]

# The modules with `use()`, and the packages that they serve.
_SERVED = {
    "huggingface": ("accelerate", "transformers", "peft"),
    "lightning": ("lightning", "pytorch_lightning"),
    "safetensors": ("safetensors",),
    "deepspeed": ("deepspeed",),
    "vllm": ("vllm",),
}


def use_all() -> list[Any]:
    """Call `use()` of each module whose library is installed, and return the results."""
    return [import_module(f"{__name__}.{module}").use() for module in _installed()]


def _installed() -> Iterator[str]:
    for module, packages in _SERVED.items():
        if any(find_spec(package) is not None for package in packages):
            yield module
