# SPDX-License-Identifier: BSD-3-Clause
"""All versions of torch that are served: Inductor knows its C++ generator by the device's name, "cpu"."""

from __future__ import annotations

import functools
import inspect
from typing import Any

__all__ = ["fuse_as_on_cpu", "needs_fuse_as_on_cpu"]


def needs_fuse_as_on_cpu() -> bool:
    """Whether the scheduler asks for the device's name, and not for what the device's scheduling can do."""
    from torch._inductor import ir, scheduler

    asked = (inspect.unwrap(function) for function in (scheduler.BaseSchedulerNode.is_cpu, ir.is_cpu))
    return any('"cpu"' in inspect.getsource(function) for function in asked)


def fuse_as_on_cpu(device: str) -> None:
    """Makes Inductor fuse loops for the device as it does for the CPU, whose kernels it gets.

    Reordering and reindexing of loops make code that the C++ generator can't write, or groups that it doesn't have
    (a TypeError in _try_reindex_pointwise_for_reduction); torch leaves them out for devices called "cpu". The
    thresholds at which a value is stored rather than computed again are the CPU's too, so that its kernels come out.
    There is no hook: a scheduling is not asked. Upstream: https://github.com/pytorch/pytorch/issues/189135.
    """
    if not needs_fuse_as_on_cpu():
        return
    from torch._inductor import ir, scheduler

    of_node = scheduler.BaseSchedulerNode.is_cpu
    of_value = ir.is_cpu

    @functools.wraps(of_node)
    def is_cpu_node(self: Any) -> bool:
        where = self.get_device()
        return of_node(self) or (where is not None and where.type == device)

    @functools.wraps(of_value)
    def is_cpu_value(value: Any) -> bool:
        return of_value(value) or ir.get_device_type(value) == device

    scheduler.BaseSchedulerNode.is_cpu = is_cpu_node  # type: ignore[method-assign]
    ir.is_cpu = is_cpu_value  # type: ignore[assignment]
