# SPDX-License-Identifier: BSD-3-Clause
"""The CUDA runtime functions that programs call through torch.cuda.cudart(), as far as the driver supports them."""

from __future__ import annotations

import enum
from types import ModuleType
from typing import NoReturn

from torch_outboard import _C
from torch_outboard._errors import NotSupportedError

__all__ = ["Cudart"]


class _Error(enum.IntEnum):
    """CUDA's error numbers that these functions return."""

    success = 0
    invalid_argument = 1
    out_of_memory = 2
    already_registered = 712
    not_registered = 713

    @classmethod
    def _missing_(cls, value: object) -> _Error | None:
        if not isinstance(value, int):
            return None
        error = int.__new__(cls, value)
        error._name_, error._value_ = "unrecognized_error_code", value
        return error


class Cudart:
    """Stands in for the module torch._C._cudart. Its functions return error numbers for torch.cuda.check_error."""

    cudaError = _Error  # noqa: N815 - CUDA's names

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotSupportedError(
            f"torch.cuda.cudart().{name} is not supported under as_cuda(): the driver contract has no counterpart"
        )

    def cudaGetErrorString(self, error: int) -> str:  # noqa: N802
        return _Error(error).name.replace("_", " ")

    def cudaMemGetInfo(self, device: int) -> tuple[int, int]:  # noqa: N802
        free, total = self._module.mem_get_info(device)
        return free, total

    def cudaHostRegister(self, address: int, size: int, flags: int) -> _Error:  # noqa: N802
        try:
            _C.host_register(address, size)
        except ValueError:
            return _Error.already_registered
        return _Error.success

    def cudaHostUnregister(self, address: int) -> _Error:  # noqa: N802
        try:
            _C.host_unregister(address)
        except ValueError:
            return _Error.not_registered
        return _Error.success
