# SPDX-License-Identifier: BSD-3-Clause
"""Pieces of generated code that name the device."""

from __future__ import annotations

from torch._inductor.codegen.common import DeviceOpOverrides

from torch_outboard import _C

__all__ = ["OutboardOpOverrides"]


class OutboardOpOverrides(DeviceOpOverrides):
    """Pieces for the Python wrapper. Pieces for other wrappers raise NotImplementedError, as in the base class."""

    def import_get_raw_stream_as(self, name: str) -> str:
        return f"from torch_outboard._C import current_raw_stream as {name}"

    def set_device(self, device_idx: int) -> str:
        return f"torch.{_C.driver_name()}.set_device({device_idx})"

    def synchronize(self) -> str:
        return "torch.accelerator.synchronize()"

    def device_guard(self, device_idx: int) -> str:
        return f"torch.{_C.driver_name()}._DeviceGuard({device_idx})"

    def current_stream(self) -> str:
        return "torch.accelerator.current_stream()"

    def cpp_kernel_type(self) -> str:
        return "void*"

    def aten_device_type(self) -> str:
        """Return the device type in C++ for torch 2.15; older versions use a table of torch's own devices."""
        return "at::kPrivateUse1"
