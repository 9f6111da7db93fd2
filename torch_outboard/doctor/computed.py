# SPDX-License-Identifier: BSD-3-Clause
"""Check that a driver's devices compute the CPU's results: python -m torch_outboard.doctor.computed DRIVER OPTIONS.

OPTIONS are JSON. The last line of the output is JSON too. Run it as a separate process, because a vendor's driver may
crash it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from typing import Any

import torch

import torch_outboard
from torch_outboard import _C


def _compute(driver: str, options: dict[str, Any]) -> dict[str, Any]:
    """Attach a driver, and compare the results of each of its devices with the CPU's."""
    module = torch_outboard.attach(driver, **options)
    if not module.device_count():
        return {"error": _C.probe_error() or "the driver finds no device"}
    devices = []
    for index in range(module.device_count()):
        device = torch.device(module.__name__.rpartition(".")[2], index)
        properties = module.get_device_properties(index)
        report = {field.name: getattr(properties, field.name) for field in fields(properties)}
        report["dtypes"] = sorted(str(dtype).removeprefix("torch.") for dtype in properties.dtypes)
        results = {}
        for name, dtype, compute, bound in _questions(properties.dtypes):
            print(f"{device}: {name}", flush=True)
            results[name] = _verdict(torch.device(device), dtype, compute, bound)
        devices.append({"properties": {key: _plain(value) for key, value in report.items()}, "results": results})
    return {"devices": devices}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    return value if isinstance(value, bool | int | float | str | list) else str(value)


_Computes = Callable[..., Any]


def _questions(dtypes: Iterable[Any]) -> Iterator[tuple[str, Any, _Computes, float]]:
    """Yield functions of two matrices, and the allowed error relative to the largest value."""
    known = set(dtypes)
    for dtype, bound in ((torch.float32, 1e-5), (torch.float64, 1e-12), (torch.float16, 2e-3), (torch.bfloat16, 1e-2)):
        if dtype not in known:
            continue
        name = str(dtype).removeprefix("torch.")
        yield f"sum of rows, {name}", dtype, lambda x, y: (x + y).sum(1), bound
        yield f"product, {name}", dtype, lambda x, y: x @ y.t(), bound
    yield "exponentials, float32", torch.float32, lambda x, y: torch.exp(x) * torch.sin(y), 1e-5
    yield "transposed copy, float32", torch.float32, lambda x, y: x.t().contiguous(), 0
    yield "sorted rows, int64", torch.int64, lambda x, y: (x * 1000 + y).sort(1).values, 0
    yield "quotients, int32", torch.int32, lambda x, y: x // (y.abs() + 1), 0


def _verdict(device: Any, dtype: Any, compute: _Computes, bound: float) -> dict[str, Any]:
    """Return whether a device's result equals the CPU's result in double precision, within the bound."""
    torch.manual_seed(0)
    pair = [torch.randn(130, 150) if dtype.is_floating_point else torch.randint(-99, 99, (130, 150)) for _ in range(2)]
    pair = [tensor.to(dtype) for tensor in pair]
    start = time.perf_counter()
    try:
        result = compute(*(tensor.to(device) for tensor in pair)).cpu()
    except Exception as error:  # noqa: BLE001 - the report contains any error of a device
        return {"state": "failed", "found": f"{type(error).__name__}: {error}"[:2000]}
    seconds = round(time.perf_counter() - start, 3)
    wanted = compute(*(tensor.double() if dtype.is_floating_point else tensor for tensor in pair)).double()
    off = float((result.double() - wanted).abs().max() / wanted.abs().max())
    state = "right" if off <= bound else "wrong"  # NaN is wrong
    return {"state": state, "found": f"largest error {off:.2g}, allowed {bound:.2g}", "seconds": seconds}


if __name__ == "__main__":
    print(json.dumps(_compute(sys.argv[1], json.loads(sys.argv[2]))))
