# SPDX-License-Identifier: BSD-3-Clause
"""All versions of torch that are served: which devices Inductor writes Triton for, and with which templates.

Until torch 2.13 they are a list of names. 2.15 asks the devices that it knows when Inductor is imported.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

__all__ = ["list_as_gpu", "needs_list_as_gpu", "needs_share_templates", "share_templates"]


def needs_list_as_gpu() -> bool:
    """Whether the list of GPUs has torch's own alone, and not those whose interface says so."""
    from torch._inductor import utils

    return not hasattr(utils, "_gpu_types")


def list_as_gpu(device: str) -> None:
    """Makes Inductor take a type of devices for GPUs that have Triton.

    The list of types has it then, the scheduler doesn't ask whether one of torch's own GPUs has Triton, and what asks
    for the one GPU type that there is (a pass that moves constants) is told this one, beside CUDA too. Newer versions
    of torch ask the devices that they know when Inductor is imported; one that is attached later is added as well.
    """
    from torch._inductor import scheduler, utils

    if device in utils.GPU_TYPES:
        return
    own = list(utils.GPU_TYPES)
    utils.get_gpu_type.cache_clear()
    utils.GPU_TYPES[:] = [device]
    try:
        utils.get_gpu_type()  # keeps its answer
    finally:
        utils.GPU_TYPES[:] = [*own, device]
    scheduler.has_triton = lambda: True  # type: ignore[assignment, attr-defined]


def needs_share_templates() -> bool:
    """Whether configurations of templates belong to types of devices, not to what Triton compiles for."""
    return _heuristics() is not None


def share_templates(device: str, backend: str) -> None:
    """Gives a type of devices the configurations of templates that torch has for a target of Triton.

    They are registered for torch's own types, which are called as the targets. Those that a vendor has registered for
    the device stay.
    """
    known = _heuristics()
    if known is None:
        return
    for (template, of, operator), heuristic in list(known.items()):
        if of == backend:
            known.setdefault((template, device, operator), heuristic)


def _heuristics() -> dict[tuple[str | None, ...], Any] | None:
    import_module("torch._inductor.choices")  # registers them
    for name in ("heuristics", "template_heuristics"):
        module = sys.modules.get(f"torch._inductor.{name}.registry")
        if module is not None:
            return getattr(module, "_TEMPLATE_HEURISTIC_REGISTRY", None)
    return None
