# SPDX-License-Identifier: BSD-3-Clause
"""Builds torch.<name>. Import it only after checking the extension's torch against the running torch."""

from __future__ import annotations

import sys
from types import ModuleType

from torch_outboard.device import (
    _context,
    _utils,
    amp,
    devices,
    graphs,
    memory,
    memory_history,
    memory_pools,
    random,
    streams,
    unsupported,
)
from torch_outboard.driver import Driver

__all__ = ["build_module"]

_PARTS = (devices, streams, graphs, memory, memory_history, memory_pools, random, unsupported)
# Modules that are also available as torch.<name>.<part>, as under torch.cuda.
_SUBMODULES = {"amp": amp, "memory": memory, "random": random, "streams": streams, "graphs": graphs}
# Names with a leading underscore that torch reads.
_PRIVATE = {
    devices: (
        "_DeviceGuard",
        "_exchange_device",
        "_get_device",
        "_is_in_bad_fork",
        "_lazy_init",
        "_maybe_exchange_device",
    ),
    streams: ("_get_current_raw_stream", "_set_stream_by_id", "_sleep"),
    random: ("_get_generator",),
}


def build_module(driver: Driver) -> ModuleType:
    """Build the module torch.<name>; `attach` registers it with torch."""
    _context.set_name(driver.name)
    # Dynamo takes the device's name from the module's name, and needs a real module.
    module = ModuleType(f"torch.{driver.name}", f"The {driver.name} device, by torch-outboard.")
    public: list[str] = ["default_generators"]
    for part in _PARTS:
        for name in part.__all__:
            setattr(module, name, getattr(part, name))
            public.append(name)
        for name in _PRIVATE.get(part, ()):
            setattr(module, name, getattr(part, name))
    for name, submodule in _SUBMODULES.items():
        setattr(module, name, submodule)
        sys.modules[f"{module.__name__}.{name}"] = submodule
        public.append(name)
    # The rest of amp stays in torch.<name>.amp, as under torch.cuda; torch.autocast looks for this
    # function here.
    module.get_amp_supported_dtype = amp.get_amp_supported_dtype  # type: ignore[attr-defined]
    public.append("get_amp_supported_dtype")
    module._utils = _utils  # type: ignore[attr-defined]
    module.__getattr__ = devices._module_getattr  # type: ignore[method-assign]
    module.__all__ = sorted(public)  # type: ignore[attr-defined]
    return module
