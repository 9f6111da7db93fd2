# SPDX-License-Identifier: BSD-3-Clause
"""The checks of `outboard doctor`: whether NVIDIA's libraries open, and whether NVRTC compiles for the GPUs."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence

from torch_outboard.driver import Check

__all__ = ["checks"]

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*

# Option -> the usual names of its library, the packages that contain it, and the effect if it is
# missing.
_LIBRARIES = {
    "cublaslt": (("libcublasLt.so.13", "libcublasLt.so.12"), "nvidia-cublas", "products run by generated kernels"),
    "cudnn": (
        ("libcudnn.so.9",),
        "nvidia-cudnn-cu13",
        "convolutions, attention and recurrent nets run by generated kernels",
    ),
    "nccl": (("libnccl.so.2",), "nvidia-nccl-cu13", "collectives go through Gloo"),
}


def checks(driver_library: str, libraries: dict[str, str | None]) -> Sequence[Check]:
    """Return the checks of the driver library, NVRTC and the other libraries. Options may name the files."""
    capabilities, trouble = _capabilities(driver_library)
    found_checks = [_of_driver(driver_library, capabilities, trouble), _of_nvrtc(libraries["nvrtc"], capabilities)]
    for option, (usual, package, without) in _LIBRARIES.items():
        found_checks.append(_of_library(option, libraries[option], usual, package, without))
    return found_checks


def _of_driver(name: str, capabilities: Sequence[tuple[int, int]], trouble: str) -> Check:
    if trouble:
        return Check("NVIDIA's driver", "unused", trouble, "install NVIDIA's driver if this machine has its GPUs")
    chips = ", ".join(f"sm_{major}{minor}" for major, minor in capabilities)
    return Check("NVIDIA's driver", "right", f"{name} opens; GPUs: {chips or 'none'}")


def _of_nvrtc(paths: str | None, capabilities: Sequence[tuple[int, int]]) -> Check:
    names = paths.split(os.pathsep) if paths else ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"]
    targets: dict[int, str] = {}
    troubles = []
    for name in names:
        try:
            supported = _targets(ctypes.CDLL(name))
        except (OSError, AttributeError) as error:
            troubles.append(f"{name}: {error}")
            continue
        for target in supported:
            targets.setdefault(target, name)
    if not targets:
        return Check(
            "NVRTC", "wrong" if capabilities else "unused", f"none opens ({'; '.join(troubles)})", _install_nvrtc(13)
        )
    # NVRTC compiles for the newest target that is no newer than the GPU.
    without = [
        f"sm_{major}{minor}"
        for major, minor in dict.fromkeys(capabilities)
        if not any(target // 10 == major and target <= major * 10 + minor for target in targets)
    ]
    span = f"sm_{min(targets)} to sm_{max(targets)}, by {', '.join(dict.fromkeys(targets.values()))}"
    if without:
        return Check(
            "NVRTC", "wrong", f"no NVRTC here compiles for {', '.join(without)}, only for {span}", _install_nvrtc(12)
        )
    return Check("NVRTC", "right", f"compiles for {span}")


def _install_nvrtc(major: int) -> str:
    package = "nvidia-cuda-nvrtc" if major == 13 else "nvidia-cuda-nvrtc-cu12"
    why = "" if major == 13 else ", whose version 12.9 compiles for sm_50 and later"
    return f"pip install {package}{why}"


def _targets(library: ctypes.CDLL) -> list[int]:
    count = ctypes.c_int()
    if library.nvrtcGetNumSupportedArchs(ctypes.byref(count)) != 0:
        raise OSError("it does not say what it compiles for")
    targets = (ctypes.c_int * count.value)()
    if library.nvrtcGetSupportedArchs(targets) != 0:
        raise OSError("it does not say what it compiles for")
    return list(targets)


def _of_library(option: str, path: str | None, usual: Sequence[str], package: str, without: str) -> Check:
    troubles = []
    for name in [path] if path else usual:
        try:
            ctypes.CDLL(name)
        except OSError as error:
            troubles.append(str(error))
            continue
        return Check(option, "right", f"{name} opens")
    # A missing library may be intended. A named file that does not open is a fault.
    state = f"{'; '.join(troubles)}: {without}"
    return Check(option, "wrong" if path else "unused", state, f"pip install {package}")


def _capabilities(driver_library: str) -> tuple[list[tuple[int, int]], str]:
    """Return the GPUs' compute capabilities, and the reason if there are none."""
    try:
        cuda = ctypes.CDLL(driver_library)
    except OSError as error:
        return [], str(error)
    if (status := cuda.cuInit(0)) != 0:
        return [], f"{driver_library} opens, but cuInit returns {status}"
    count = ctypes.c_int()
    cuda.cuDeviceGetCount(ctypes.byref(count))
    capabilities = []
    for index in range(count.value):
        device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        cuda.cuDeviceGet(ctypes.byref(device), index)
        cuda.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, device)
        cuda.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, device)
        capabilities.append((major.value, minor.value))
    return capabilities, ""
