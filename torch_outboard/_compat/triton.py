# SPDX-License-Identifier: BSD-3-Clause
"""All versions of torch that are served: which devices Inductor writes Triton for, and with which templates.

Until torch 2.13 they are a list of names. 2.15 asks the devices that it knows when Inductor is imported. And all
versions of Triton: which driver launches a kernel.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from torch_outboard._compat.source import mentions

__all__ = [
    "choose_driver",
    "count_as_triton",
    "list_as_gpu",
    "needs_choose_driver",
    "needs_count_as_triton",
    "needs_list_as_gpu",
    "needs_share_templates",
    "share_templates",
]


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


def needs_count_as_triton() -> bool:
    """Whether torch looks for Triton on devices of its own alone."""
    from torch.utils import _triton

    return mentions(_triton.has_triton, "mtia")


def count_as_triton() -> None:
    """Makes torch say that there is a device with Triton, where Triton is installed.

    Dynamo asks it whether a function may be a kernel in Triton.
    """
    if needs_count_as_triton():
        from torch.utils import _triton

        _triton.has_triton = _triton.has_triton_package


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


def needs_choose_driver() -> bool:
    """Whether a process has one driver of Triton's, whatever the device of a launch's tensors is."""
    if find_spec("triton") is None:
        return False
    return "active" in vars(import_module("triton.runtime.driver").DriverConfig)


def choose_driver(
    choose: Callable[[Iterable[Any]], tuple[Any, dict[str, object]] | None], stand_in: Callable[[], Any]
) -> None:
    """Has launches of Triton's kernels ask a driver that is chosen by their arguments.

    `choose` gives the driver and options for its back end, or None for the one that is active anyhow. The choice holds
    for the thread and the launch, in which Triton asks `driver.active` at many places. Where Triton has no driver that
    is active, which torch's compiler asks what kernels are for, it gets the one that `stand_in` makes. Once a process.
    """
    from triton.backends import backends
    from triton.runtime import autotuner, jit

    drivers: Any = jit.driver
    kind = type(drivers)
    if hasattr(kind, "_outboard"):
        return
    chosen = threading.local()

    class ChosenByLaunch(kind):  # type: ignore[misc, valid-type]
        _outboard = True

        @property
        def active(self) -> Any:
            by_launch = getattr(chosen, "driver", None)
            if by_launch is not None:
                return by_launch
            if self._active is None and not any(one.driver.is_active() for one in backends.values()):
                self.set_active(stand_in())
            return super().active

    drivers.__class__ = ChosenByLaunch

    def with_choice(run: Callable[..., Any], takes_options: bool) -> Callable[..., Any]:
        @functools.wraps(run)
        def run_there(self: Any, *args: Any, **kwargs: Any) -> Any:
            found = choose((*args, *kwargs.values()))
            if found is None:
                return run(self, *args, **kwargs)
            driver, options = found
            before = getattr(chosen, "driver", None)
            chosen.driver = driver
            try:
                return run(self, *args, **({**options, **kwargs} if takes_options else kwargs))
            finally:
                chosen.driver = before

        return run_there

    jit.JITFunction.run = with_choice(jit.JITFunction.run, takes_options=True)
    autotuner.Autotuner.run = with_choice(autotuner.Autotuner.run, takes_options=False)
