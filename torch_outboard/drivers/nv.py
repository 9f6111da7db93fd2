# SPDX-License-Identifier: BSD-3-Clause
"""NVIDIA GPUs through CUDA's driver API."""

import sys
from importlib.util import find_spec
from pathlib import Path

from torch_outboard.driver import Driver, Option, TritonTarget
from torch_outboard.drivers import library_path

__all__ = ["NvDriver"]


class NvDriver(Driver):
    """NVIDIA's GPUs, beside a CUDA build of torch or without one; drivers/nv/README.md describes it."""

    name = "nv"
    library = library_path("nv")
    kernel_generator = "cuda_cpp"
    options = {
        "library": Option(str, None, "NVIDIA's driver library; libcuda.so.1 if not given."),
        "compiler": Option(
            str,
            None,
            "Who generates kernels for torch.compile; Triton where it is installed and knows the GPU if not given.",
            ("triton", "cuda_cpp"),
        ),
        "nvrtc": Option(str, None, "NVRTC, for programs in CUDA C++; found by its usual names or as a package."),
    }

    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        compiler = self.option_values.pop("compiler")  # the library has no such option
        if compiler is None and find_spec("triton") is None:
            compiler = "cuda_cpp"
        if compiler is not None:
            self.code_generator = compiler  # type: ignore[method-assign, assignment]
        if self.option_values["nvrtc"] is None:
            self.option_values["nvrtc"] = _packaged_nvrtc()

    def code_generator(self, device: int) -> str:
        """Triton for GPUs of a generation that it compiles for, from Ampere on, else CUDA C++ by NVRTC."""
        return "triton" if _capability(device) >= (8, 0) else "cuda_cpp"

    def triton_target(self, device: int) -> TritonTarget:
        """The GPU's compute capability, as Triton counts it."""
        major, minor = _capability(device)
        return TritonTarget(
            backend="cuda",
            arch=major * 10 + minor,
            language="cubin",
            warp_size=32,
            hidden=("global_scratch", "profile_scratch"),
        )


def _capability(device: int) -> tuple[int, int]:
    # Not at the top: that module needs an attached driver.
    from torch_outboard.device.devices import get_device_capability

    return get_device_capability(device)


def _packaged_nvrtc() -> str | None:
    """Finds NVRTC as pip installs it: below a folder of sys.path, where no loader looks."""
    for folder in sys.path:
        for found in sorted(Path(folder).glob("nvidia/*/lib/libnvrtc.so.*"), reverse=True):
            return str(found)
    return None
