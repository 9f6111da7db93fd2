# SPDX-License-Identifier: BSD-3-Clause
"""NVIDIA GPUs through CUDA's driver API."""

import sys
from pathlib import Path

from torch_outboard.driver import Driver, Option
from torch_outboard.drivers import library_path

__all__ = ["NvDriver"]


class NvDriver(Driver):
    """NVIDIA's GPUs, beside a CUDA build of torch or without one; drivers/nv/README.md describes it."""

    name = "nv"
    library = library_path("nv")
    code_generator = "cuda_cpp"
    kernel_generator = "cuda_cpp"
    options = {
        "library": Option(str, None, "NVIDIA's driver library; libcuda.so.1 if not given."),
        "nvrtc": Option(str, None, "NVRTC, for programs in CUDA C++; found by its usual names or as a package."),
    }

    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        if self.option_values["nvrtc"] is None:
            self.option_values["nvrtc"] = _packaged_nvrtc()


def _packaged_nvrtc() -> str | None:
    """Finds NVRTC as pip installs it: below a folder of sys.path, where no loader looks."""
    for folder in sys.path:
        for found in sorted(Path(folder).glob("nvidia/*/lib/libnvrtc.so.*"), reverse=True):
            return str(found)
    return None
