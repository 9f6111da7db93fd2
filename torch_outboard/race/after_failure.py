# SPDX-License-Identifier: BSD-3-Clause
"""The state after a failed driver call and the end of the program; examined in the program's process."""

from __future__ import annotations

import gc
from typing import Any

from torch_outboard._errors import OutboardError

__all__ = ["describe_end", "probe_devices"]

_MAX_WAITS = 6
_MAX_ERROR_CHARACTERS = 400  # characters shown of an error's text


def describe_end(error: BaseException) -> dict[str, Any]:
    """Describe the exception that ends a program. `is_named` is true if the exception's type identifies the failure.

    An exception raised from such an error, or an exit while handling one, is the program's own choice.
    """
    import torch

    named = (torch.OutOfMemoryError, torch.AcceleratorError, OutboardError, torch.distributed.DistError)
    chain, at = [error], error.__context__ if isinstance(error, SystemExit) else error.__cause__
    while at is not None and at not in chain:
        chain.append(at)
        at = at.__cause__ or at.__context__
    kind = type(error)
    return {
        "type": kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}",
        "text": str(error)[:_MAX_ERROR_CHARACTERS],
        "is_named": any(isinstance(error, named) for error in chain),
    }


def probe_devices(module: Any) -> dict[str, Any]:
    """Wait for all devices until a wait succeeds, compute something, and count the memory still in use.

    `waits` lists the types of errors that waits raised, followed by "never" if none succeeded. `computes` is "right",
    "wrong", or an error's type. A lost device stays lost, so nothing is tried after torch.AcceleratorError.
    """
    waits: list[str] = []
    count = module.device_count()
    while len(waits) < _MAX_WAITS:
        try:
            for index in range(count):
                module.synchronize(index)
            break
        except Exception as error:  # noqa: BLE001 - its type is the result
            waits.append(describe_end(error)["type"])
            if waits[-1].endswith("AcceleratorError"):
                return {"waits": waits, "computes": "lost", "memory": 0}
    else:
        waits.append("never")
    gc.collect()
    computes = _compute(module, count)
    gc.collect()
    return {"waits": waits, "computes": computes, "memory": 0 if computes == "lost" else _in_use(module, count)}


def _compute(module: Any, count: int) -> str:
    import torch

    outcome = "right"
    for _ in range(2):  # one of these calls may be the failing one
        try:
            for index in range(count):
                x = torch.arange(64.0, device=torch.device(module.__name__.rpartition(".")[2], index))
                if (x * 2 + 1).tolist() != [2.0 * value + 1 for value in range(64)]:
                    return "wrong"
            return "right"
        except Exception as error:  # noqa: BLE001 - its type is the result
            outcome = describe_end(error)["type"]
            if outcome.endswith("AcceleratorError"):
                return "lost"
    return outcome


def _in_use(module: Any, count: int) -> int:
    """Return the bytes in use on all devices and in pinned memory."""
    pinned = int(module.host_memory_stats().get("active_bytes.current", 0))
    return pinned + sum(int(module.memory_allocated(index)) for index in range(count))
