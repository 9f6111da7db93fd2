# SPDX-License-Identifier: BSD-3-Clause
"""NVIDIA GPUs through CUDA's driver API."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from torch_outboard.driver import Check, Driver, Option, TritonTarget, package_folders
from torch_outboard_nv.architectures import ARCHITECTURES, compile_cuda, own_programs, packs, runnable

if TYPE_CHECKING:  # `outboard info` loads the class without torch
    from torch_outboard import DeviceProperties

__all__ = ["NvDriver"]


class NvDriver(Driver):
    """NVIDIA's GPUs, beside a CUDA build of torch or without one; see the README of torch-outboard-nv."""

    name = "nv"
    library = Path(__file__).parent / "libtorch_outboard_nv.so"
    autocast = "default"
    architectures = ARCHITECTURES
    kernel_packs = packs()
    options = {
        "library": Option(str, None, "NVIDIA's driver library (default: libcuda.so.1)."),
        "compiler": Option(
            str,
            None,
            "The generator of kernels for torch.compile (default: Triton if it is installed and supports the GPU).",
            ("triton", "cuda_cpp"),
        ),
        "matrix_units": Option(
            bool,
            None,
            "Use matrix units in generated products, convolutions and attention (default: from sm_80 on).",
        ),
        "nvrtc": Option(
            str,
            None,
            "NVRTC, for CUDA C++: files separated by ':' (default: found as packages or by their usual names).",
        ),
        "cublaslt": Option(str, None, "cuBLASLt, for products (default: found by its usual names or as a package)."),
        "cudnn": Option(str, None, "cuDNN, for convolutions (default: found by its usual name or as a package)."),
        "nccl": Option(str, None, "NCCL, for collectives (default: found by its usual name or as a package)."),
    }

    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        compiler = self.option_values.pop("compiler")  # the library has no such option
        if compiler is None and find_spec("triton") is None:
            compiler = "cuda_cpp"
        if compiler is not None:
            self.code_generator = compiler  # type: ignore[method-assign, assignment]
        self._uses_units = self.option_values.pop("matrix_units")
        for option, file in _PACKAGED.items():
            if self.option_values[option] is None and (files := _packaged(file)):
                # All NVRTCs: the version that compiles for a GPU is known only once the GPU is
                # known.
                self.option_values[option] = os.pathsep.join(files) if option == "nvrtc" else files[0]

    def libraries(self) -> dict[str, str]:
        """Return the files of NVIDIA's libraries, or the names that are searched for at their first use."""
        files: dict[str, str] = {}
        for option, library in _PACKAGED.items():
            usual = (
                f"none among the installed packages; the loader's, if it finds one; else install {_PACKAGES[option]}"
            )
            files[library] = str(self.option_values[option] or usual)
        return files

    def checks(self) -> Sequence[Check]:
        """Return whether NVIDIA's libraries open, and whether NVRTC compiles for the GPUs."""
        from torch_outboard_nv.checks import checks

        files = {option: None if (file := self.option_values[option]) is None else str(file) for option in _PACKAGED}
        return checks(str(self.option_values["library"] or "libcuda.so.1"), files)

    def kernel_generator(self, devices: Sequence[DeviceProperties]) -> str:
        """Return "ptx_cuda_cpp", with matrix units, if the option is set or all GPUs have them; else "cuda_cpp"."""
        uses_units = self._uses_units
        if uses_units is None:
            uses_units = len(devices) > 0 and all((device.major, device.minor) >= (8, 0) for device in devices)
        return "ptx_cuda_cpp" if uses_units else "cuda_cpp"

    def code_generator(self, device: int) -> str:
        """Return "triton" for GPUs that Triton compiles for, from Ampere on; else "cuda_cpp", which NVRTC compiles."""
        return "triton" if _capability(device) >= (8, 0) else "cuda_cpp"

    def compile_program(self, architecture: str, language: str, code: bytes, options: str) -> bytes:
        """Return NVRTC's output: machine code for a GPU, or PTX for a virtual architecture."""
        return compile_cuda(
            str(self.library), str(self.option_values["nvrtc"] or ""), architecture, language, code, options
        )

    def own_programs(self) -> Sequence[tuple[str, bytes, str]]:
        """Return the kernels for strided copies, fills and biases, in CUDA C++."""
        return own_programs(str(self.library))

    def compatible_architectures(self, architecture: str) -> Sequence[str]:
        """Return the GPU's own architecture, older ones of its generation, and PTX, the newest first."""
        return runnable(architecture)

    def triton_target(self, device: int) -> TritonTarget:
        """Return Triton's target for the GPU, with the compute capability as Triton writes it."""
        major, minor = _capability(device)
        return TritonTarget(
            backend="cuda",
            arch=major * 10 + minor,
            language="cubin",
            warp_size=32,
            hidden=("global_scratch", "profile_scratch"),
        )


def _capability(device: int) -> tuple[int, int]:
    import torch  # not at the top: `outboard info` loads this class without torch

    major, minor = torch.get_device_module(NvDriver.name).get_device_capability(device)
    return int(major), int(minor)


# Option -> the library that it names.
_PACKAGED = {"nvrtc": "libnvrtc", "cublaslt": "libcublasLt", "cudnn": "libcudnn", "nccl": "libnccl"}

# Option -> the packages that contain the library.
_PACKAGES = {
    "nvrtc": "nvidia-cuda-nvrtc",
    "cublaslt": "nvidia-cublas",
    "cudnn": "nvidia-cudnn-cu13 or nvidia-cudnn-cu12",
    "nccl": "nvidia-nccl-cu13 or nvidia-nccl-cu12",
}


def _packaged(library: str) -> list[str]:
    """Return the paths of a library installed by pip, where loaders do not search; the newest in each folder first.

    `sys.path` may name the process's current folder. A library in that folder is not loaded.
    """
    paths = [path for folder in package_folders() for path in _versions(folder, library)]
    return list(dict.fromkeys(map(str, paths)))


def _versions(folder: Path, library: str) -> list[Path]:
    """Return a library's files in a folder of packages, the newest first."""

    def version(path: Path) -> list[int]:
        return [int(part) for part in path.name.removeprefix(f"{library}.so.").split(".") if part.isdecimal()]

    return sorted(folder.glob(f"nvidia/*/lib/{library}.so.*"), key=version, reverse=True)
