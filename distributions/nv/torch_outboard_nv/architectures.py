# SPDX-License-Identifier: BSD-3-Clause
"""The architectures for which NVRTC compiles without a GPU: real ones, and virtual ones, whose PTX later GPUs run."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch_outboard.driver import DriverError, Status

__all__ = ["ARCHITECTURES", "compile_cuda", "own_programs", "packs", "runnable"]

# Compute capability -> KiB of shared memory per multiprocessor, from NVIDIA's programming guide.
# Tegra chips are left out, because they do not run other chips' machine code.
_SHARED = {
    50: 64, 52: 96, 60: 64, 61: 96, 70: 96, 75: 64, 80: 164, 86: 100, 89: 100, 90: 228, 100: 228, 103: 228, 120: 100,
    121: 100,
}  # fmt: skip


def _properties(capability: int) -> dict[str, Any]:
    return {
        "vendor": "NVIDIA",
        "machine": "gpu",
        "major": capability // 10,
        "minor": capability % 10,
        "warp_size": 32,
        "max_threads_per_block": 1024,
        "shared_memory_per_block": 48 << 10,
        "shared_memory_per_multiprocessor": _SHARED[capability] << 10,
        "follows_addresses": True,
        "addresses_host_memory": True,
    }


ARCHITECTURES: Mapping[str, Mapping[str, Any]] = {
    f"{kind}_{capability}": _properties(capability) for kind in ("sm", "compute") for capability in _SHARED
}


def runnable(architecture: str) -> Sequence[str]:
    """Return the architectures whose code a GPU ("sm_89") runs: machine code of the same generation, then PTX."""
    kind, _, number = architecture.partition("_")
    if kind != "sm" or not number.isdecimal():
        return (architecture,)
    older = [version for version in sorted(_SHARED, reverse=True) if version <= int(number)]
    same = [version for version in older if version // 10 == int(number) // 10] if int(number) in _SHARED else []
    return (*(f"sm_{version}" for version in same), *(f"compute_{version}" for version in older))


def packs() -> Sequence[Path]:
    """Return the pack of the package torch-outboard-nv-kernels, if it is installed."""
    package = find_spec("torch_outboard_nv_kernels")
    return [] if package is None or package.origin is None else [Path(package.origin).parent / "kernels.pack"]


@functools.cache
def _function(library: str, name: str, result: Any) -> Any:
    function = getattr(ctypes.CDLL(library), name)
    function.restype = result
    return function


_TAKE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


def compile_cuda(library: str, nvrtc: str, architecture: str, language: str, code: bytes, options: str) -> bytes:
    """Compile CUDA C++ with NVRTC; `nvrtc` names its files. Raise DriverError with the build log."""
    if language != "cuda":
        raise DriverError(f"NVRTC compiles 'cuda', not {language!r}", Status.INVALID_ARGUMENT)
    outputs: list[bytes] = []
    take = _TAKE(lambda _, content, size: outputs.append(ctypes.string_at(content, size)))
    words = (nvrtc.encode(), architecture.encode(), code, ctypes.c_size_t(len(code)), options.encode(), None, take)
    status = _function(library, "ob_nv_compile", ctypes.c_int32)(*words)
    if status != Status.OK:
        raise DriverError(outputs[0].decode(errors="replace").rstrip("\0"), status)
    return outputs[0]


def own_programs(library: str) -> list[tuple[str, bytes, str]]:
    """Return the language, text and NVRTC's options of each program that the driver's library compiles for itself."""
    texts: list[bytes] = []
    take = _TAKE(lambda _, content, size: texts.append(ctypes.string_at(content, size)))
    options = _function(library, "ob_nv_own_sources", ctypes.c_char_p)(None, take).decode()
    return [("cuda", text, options) for text in texts]
