# SPDX-License-Identifier: BSD-3-Clause
"""Kernels in the driver's language."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch_outboard import _C
from torch_outboard.codegen.program import DeviceProgram

__all__ = ["device_kernel"]


def device_kernel(
    name: str,
    language: str,
    types: Sequence[str],
    code: str | bytes,
    *,
    entry: str,
    grid: Sequence[str],
    block: Sequence[str] = ("1",),
    local_bytes: str = "0",
    options: str = "",
    checks: Sequence[str] = (),
    device: int | None = None,
) -> Callable[..., None]:
    """Return the launcher of a kernel in the driver's language. DeviceProgram documents the arguments.

    The launcher takes tensors and numbers in the order of `types`, and queues a launch on the current stream of its
    tensors' device. With `device`, the program is built for that device at once, and a compiler error is raised at
    once. For other devices, the first launch builds it.
    """
    program = DeviceProgram(
        name, language, tuple(types), code, entry, tuple(grid), tuple(block), local_bytes, options, tuple(checks)
    )
    launcher = _C.device_kernel(program.record())
    if device is not None:
        _C.build_kernel(launcher, device)
    return launcher
