# SPDX-License-Identifier: BSD-3-Clause
"""OpenCL devices with shared virtual memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch_outboard.driver import Check, Driver, Option
from torch_outboard.drivers import library_path

if TYPE_CHECKING:  # `outboard info` loads the class without torch
    from torch_outboard._properties import DeviceProperties

__all__ = ["OpenCLDriver"]


class OpenCLDriver(Driver):
    """GPUs, accelerators and CPUs through their OpenCL runtimes; see drivers/opencl/README.md.

    The driver is attached as "opencl". Its devices are named "ocl", because torch reserves torch.device("opencl").
    """

    name = "ocl"
    library = library_path("opencl")
    autocast = "default"
    options = {
        "platform": Option(
            str,
            None,
            "Part of a platform's name, in any case. Only its devices are used. Default: OUTBOARD_OPENCL_PLATFORM.",
            is_in_environment=False,
        ),
        "device_type": Option(str, None, "Use only devices of this type.", ("all", "gpu", "cpu", "accelerator")),
        "library": Option(str, None, "The OpenCL loader (default: libOpenCL.so.1)."),
        "cache": Option(bool, None, "Store compiled programs on disk (default: unless the runtime stores them)."),
        "host_access": Option(bool, None, "False hides devices' memory from the host, as on a GPU (default: true)."),
        "matrix_units": Option(
            bool,
            None,
            "Use NVIDIA's matrix units in generated kernels, through inline PTX (default: from sm_80 on).",
        ),
    }

    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self._uses_units = self.option_values.pop("matrix_units")  # the library has no such option

    def checks(self) -> Sequence[Check]:
        """Return whether OpenCL's loader opens, and how many platforms it finds."""
        import ctypes

        name = str(self.option_values["library"] or "libOpenCL.so.1")
        install = "install the vendor's OpenCL runtime, or for the CPU: apt-get install pocl-opencl-icd"
        try:
            loader = ctypes.CDLL(name)
        except OSError as error:
            return [Check("OpenCL's loader", "unused", str(error), f"apt-get install ocl-icd-libopencl1; {install}")]
        count = ctypes.c_uint()
        status = loader.clGetPlatformIDs(0, None, ctypes.byref(count))
        if status != 0 or count.value == 0:
            return [Check("OpenCL's loader", "unused", f"{name} opens and finds no platform ({status})", install)]
        return [Check("OpenCL's loader", "right", f"{name} opens; platforms: {count.value}")]

    def kernel_generator(self, devices: Sequence[DeviceProperties]) -> str:
        """Return "ptx_opencl_c", with matrix units, if the option is set or all devices have them; else "opencl_c".

        A device's `major` is its OpenCL version's, but with NVIDIA's runtime it is its compute capability's.
        """
        uses_units = self._uses_units
        if uses_units is None:
            uses_units = len(devices) > 0 and all(
                device.vendor.startswith("NVIDIA") and device.major >= 8 for device in devices
            )
        return "ptx_opencl_c" if uses_units else "opencl_c"

    def code_generator(self, device: int) -> str:
        """Return "cpp" if the host can reach the device's memory, as for CPUs; else the device's own language."""
        from torch_outboard import _C  # not at the top: `outboard info` loads the class without torch

        return "cpp" if _C.reaches_memory(device) else "opencl_c"
