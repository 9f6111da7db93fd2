# SPDX-License-Identifier: BSD-3-Clause
"""Operators with a number beside a tensor, and numbers inside, at and beyond the limits of types."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

__all__ = ["DTYPES", "OPERATORS", "difference", "numbers_of", "outcome", "tensor_of"]

Operator = Callable[[torch.Tensor, float], torch.Tensor]

DTYPES = (
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
)

_BY_NAME = (
    *("add", "bitwise_and", "bitwise_left_shift", "bitwise_or", "bitwise_right_shift", "bitwise_xor", "clamp_max"),
    *("clamp_min", "copysign", "div", "eq", "fill", "float_power", "floor_divide", "fmod", "full_like", "ge", "gt"),
    *("isin", "le", "lt", "mul", "ne", "pow", "remainder", "rsub", "sub", "true_divide", "xlogy"),
)
_FIRST = ("add", "bitwise_and", "div", "float_power", "floor_divide", "mul", "pow", "remainder", "sub", "xlogy")
_IN_PLACE = ("add_", "clamp_max_", "div_", "mul_", "pow_", "remainder_")
_OUT = ("add", "div", "mul", "sub")
_LISTS = ("add", "clamp_max", "clamp_min", "div", "maximum", "minimum", "mul", "pow", "sub")

_zeta, _xlog1py = torch.special.zeta, torch.special.xlog1py


def _in_place(name: str) -> Operator:
    return lambda x, n: getattr(x.clone(), name)(n)


def _first(name: str) -> Operator:
    return lambda x, n: getattr(torch, name)(n, x)


def _out(name: str) -> Operator:
    return lambda x, n: getattr(torch, name)(x, n, out=torch.empty(x.shape, device=x.device))


def _list(name: str) -> Operator:
    return lambda x, n: getattr(torch, "_foreach_" + name)([x, x], n)[1]


def _number_list(name: str) -> Operator:
    return lambda x, n: getattr(torch, "_foreach_" + name)([x, x], [n, n])[1]


OPERATORS: dict[str, Operator] = {
    **{name: getattr(torch, name) for name in _BY_NAME},
    **{f"{name} of a number": _first(name) for name in _FIRST},
    **{name: _in_place(name) for name in _IN_PLACE},
    **{f"{name} to float32": _out(name) for name in _OUT},
    **{f"_foreach_{name}": _list(name) for name in _LISTS},
    **{f"_foreach_{name} of numbers": _number_list(name) for name in _LISTS},
    "_foreach_addcdiv": lambda x, n: torch._foreach_addcdiv([x], [x], [x], value=n)[0],
    "_foreach_addcmul": lambda x, n: torch._foreach_addcmul([x], [x], [x], value=n)[0],
    "_foreach_lerp": lambda x, n: torch._foreach_lerp([x], [x.flip(0)], n)[0],
    "add of a product": lambda x, n: torch.add(x, x, alpha=n),
    "add of no dimensions": lambda x, n: torch.add(x[1], n),
    "addcdiv": lambda x, n: torch.addcdiv(x, x, x, value=n),
    "addcmul": lambda x, n: torch.addcmul(x, x, x, value=n),
    "clamp from": lambda x, n: torch.clamp(x, min=n),
    "clamp from 0": lambda x, n: torch.clamp(x, 0, n),
    "clamp to": lambda x, n: torch.clamp(x, max=n),
    "div of no dimensions": lambda x, n: torch.div(x[1], n),
    "div rounded down": lambda x, n: torch.div(x, n, rounding_mode="floor"),
    "div rounded to 0": lambda x, n: torch.div(x, n, rounding_mode="trunc"),
    "fmod of a tensor": lambda x, n: torch.fmod(torch.tensor(n, device=x.device), x),
    "frac": lambda x, n: torch.frac(x) + n,
    "hardtanh": lambda x, n: torch.nn.functional.hardtanh(x, -1, n),
    "leaky_relu": lambda x, n: torch.nn.functional.leaky_relu(x, n),
    "lerp": lambda x, n: torch.lerp(x, x.flip(0), n),
    "masked_fill": lambda x, n: x.masked_fill(x > 1, n),
    "nan_to_num": lambda x, n: torch.nan_to_num(x, n),
    "scatter": lambda x, n: x.scatter(0, torch.tensor([1], device=x.device), n),
    "sub of a product": lambda x, n: torch.sub(x, x, alpha=n),
    "threshold": lambda x, n: torch.nn.functional.threshold(x, n, n),
    "where": lambda x, n: torch.where(x > 1, x, n),
    "where not": lambda x, n: torch.where(x > 1, n, x),
    "xlog1py": _xlog1py,
    "xlog1py of a number": lambda x, n: _xlog1py(n, x),
    "zeta": _zeta,
    "zeta of a number": lambda x, n: _zeta(n, x),
}


def numbers_of(dtype: torch.dtype) -> list[float]:
    """Return numbers inside, at and beyond the limits of a type."""
    common = [0, 3, -1, True, 2.5, -0.0, math.inf, -math.inf, math.nan]
    if dtype == torch.bool:
        return [*common, 2, 256]
    if not dtype.is_floating_point:
        limits = torch.iinfo(dtype)
        beyond = [] if dtype == torch.int64 else [limits.max + 1, limits.min - 1, 2 * limits.max + 2, 1 << 40]
        return [*common, limits.max, limits.min, limits.max + 1.5, *beyond]
    most = torch.finfo(dtype).max
    return [*common, most, 1e-30, 70000, 1e39, *([2 * most] if dtype != torch.float64 else [])]


def tensor_of(dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.bool:
        return torch.tensor([True, False, True])
    if dtype.is_floating_point:
        return torch.tensor([1, 2, -0.5, 0, 100, math.inf, -0.0], dtype=dtype)
    return torch.tensor([1, 2 if dtype == torch.uint8 else -2, 100, 0], dtype=dtype)


def outcome(operator: Operator, x: torch.Tensor, number: float) -> torch.Tensor | Exception:
    """Return a call's result on the CPU, or its exception, after all queued work."""
    try:
        result = operator(x, number).cpu()
        if x.device.type != "cpu":
            torch.accelerator.synchronize(x.device)
    except Exception as error:
        return error
    return result


def difference(got: torch.Tensor | Exception, want: torch.Tensor | Exception) -> str:
    """Return the difference of an outcome from the CPU's, or "" if there is none."""
    if isinstance(got, Exception) or isinstance(want, Exception):
        return "" if type(got) is type(want) else f"{got!r:.200}, and the CPU's is {want!r:.200}"
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"a {got.dtype} of {got.shape}, and the CPU's is a {want.dtype} of {want.shape}"
    try:
        torch.testing.assert_close(got, want, equal_nan=True)
    except AssertionError:
        return f"{got.tolist()}, and the CPU's is {want.tolist()}"
    return ""
