# SPDX-License-Identifier: BSD-3-Clause
"""All supported versions of torch: the devices for which Inductor writes Triton, and the templates that it uses.

Up to torch 2.13, the devices are a list of names. Torch 2.15 queries the registered devices when Inductor is imported.
For all versions of Triton, this file also chooses the driver that launches a kernel.
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
    "share_templates",
]


def needs_list_as_gpu() -> bool:
    """Return True if the list of GPUs is fixed to torch's own devices instead of asking device interfaces."""
    from torch._inductor import utils

    return not hasattr(utils, "_gpu_types")


def list_as_gpu(device: str) -> None:
    """Make Inductor treat a device type like GPUs with Triton.

    This adds the type to the list, and stops the scheduler from checking that one of torch's own GPUs has Triton. A
    pass that moves constants to the GPU assumes a single GPU type; this function makes it use the device type, even if
    there is also CUDA. Newer versions of torch query the registered devices when Inductor is imported; this function
    also adds a device that is attached later.
    """
    from torch._inductor import scheduler, utils

    if device in utils.GPU_TYPES:
        return
    own = list(utils.GPU_TYPES)
    utils.get_gpu_type.cache_clear()
    utils.GPU_TYPES[:] = [device]
    try:
        utils.get_gpu_type()  # caches its result
    finally:
        utils.GPU_TYPES[:] = [*own, device]
    scheduler.has_triton = lambda: True  # type: ignore[assignment, attr-defined]


def needs_count_as_triton() -> bool:
    """Return True if torch checks only its own devices for Triton."""
    from torch.utils import _triton

    return mentions(_triton.has_triton, "mtia")


def count_as_triton() -> None:
    """Make torch report that a device supports Triton if Triton is installed.

    Dynamo uses the result to decide whether a function may be a Triton kernel.
    """
    if needs_count_as_triton():
        from torch.utils import _triton

        _triton.has_triton = _triton.has_triton_package


def share_templates(device: str, backend: str) -> None:
    """Register torch's template configurations for a Triton target for a device type as well.

    Torch registers them for its own device types, which have the targets' names. Configurations that a vendor
    registered for the device are kept.
    """
    registry = _registry()
    known = getattr(registry, "_TEMPLATE_HEURISTIC_REGISTRY", {})
    for (template, of, operator), heuristic in list(known.items()):
        if of == backend and (template, device, operator) not in known:
            registry.register_template_heuristic(template, device, op_name=operator)(heuristic)


def _registry() -> Any:
    import_module("torch._inductor.choices")  # registers torch's own
    names = ("torch._inductor.heuristics.registry", "torch._inductor.template_heuristics.registry")
    return next((sys.modules[name] for name in names if name in sys.modules), None)


def needs_choose_driver() -> bool:
    """Return True if a process has a single Triton driver, whatever the device of a launch's tensors."""
    if find_spec("triton") is None:
        return False
    return "active" in vars(import_module("triton.runtime.driver").DriverConfig)


def choose_driver(
    choose: Callable[[Iterable[Any]], tuple[Any, dict[str, object]] | None], stand_in: Callable[[], Any]
) -> None:
    """Make launches of Triton kernels use a driver chosen by their arguments. Call it once per process.

    `choose` returns the driver and options for its back end, or None to use the active driver. The choice applies to
    the thread for the duration of the launch, in which Triton reads `driver.active` in many places. If Triton has no
    active driver, the driver created by `stand_in` becomes active, because torch's compiler queries the active driver
    for the kernels' target.
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
            if self._active is None and not any(backend.driver.is_active() for backend in backends.values()):
                self.set_active(stand_in())
            return super().active

    drivers.__class__ = ChosenByLaunch

    def with_choice(run: Callable[..., Any], takes_options: bool) -> Callable[..., Any]:
        @functools.wraps(run)
        def run_there(self: Any, *args: Any, **kwargs: Any) -> Any:
            choice = choose((*args, *kwargs.values()))
            if choice is None:
                return run(self, *args, **kwargs)
            driver, options = choice
            before = getattr(chosen, "driver", None)
            chosen.driver = driver
            try:
                return run(self, *args, **({**options, **kwargs} if takes_options else kwargs))
            finally:
                chosen.driver = before

        return run_there

    jit.JITFunction.run = with_choice(jit.JITFunction.run, takes_options=True)
    autotuner.Autotuner.run = with_choice(autotuner.Autotuner.run, takes_options=False)
