# SPDX-License-Identifier: BSD-3-Clause
"""Functions that torch.<name> does not support yet, or cannot support: each raises an error that explains why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from torch_outboard.device._context import not_supported

__all__ = [
    "clock_rate",
    "list_gpu_processes",
    "memory_usage",
    "power_draw",
    "temperature",
    "utilization",
]

_SENSORS = "the driver contract has no sensors"


def _missing(name: str, why: str) -> Callable[..., NoReturn]:
    def function(*args: object, **kwargs: object) -> NoReturn:
        not_supported(name, why)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Raise NotSupportedError: {why}."
    return function


clock_rate: Any = _missing("clock_rate", _SENSORS)
list_gpu_processes: Any = _missing("list_gpu_processes", "the driver contract does not list processes")
memory_usage: Any = _missing("memory_usage", _SENSORS)
power_draw: Any = _missing("power_draw", _SENSORS)
temperature: Any = _missing("temperature", _SENSORS)
utilization: Any = _missing("utilization", _SENSORS)
