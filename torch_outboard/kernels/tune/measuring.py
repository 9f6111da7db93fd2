# SPDX-License-Identifier: BSD-3-Clause
"""Measuring and choosing the schedules of templates on a device, one parameter at a time.

In each round, all values of a parameter take turns, timed by the driver's events. A value is chosen if its median gain
over the previous choice exceeds noise. The next parameter is measured with the chosen value.
"""

from __future__ import annotations

import itertools
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

from torch_outboard import _C
from torch_outboard._compat.imports import import_inductor
from torch_outboard._errors import NotSupportedError
from torch_outboard.codegen.mapping.machine import is_cpu, limits_of
from torch_outboard.compile.generators import generators
from torch_outboard.kernels.switches import allowed
from torch_outboard.kernels.templates.schedules.registry import Device, way_of
from torch_outboard.kernels.tune.schedule_table import use_schedules
from torch_outboard.kernels.tune.schedules import PARAMETERS, Schedule, default_of, tuned_name
from torch_outboard.kernels.tune.timing import has_timing, median_ratio, rounds_of

__all__ = ["Choice", "names_of", "tune"]

# Minimum seconds of a measurement; the call is repeated to fill them.
_MIN_MEASURED_SECONDS = 0.02
# The share of the time that a value must save to be chosen.
_MIN_SAVED_SHARE = 0.03

# The measured call of an operator family: a function and its tensors.
_Case = tuple[Callable[..., Any], list[torch.Tensor]]


@dataclass
class Choice:
    """The result for a schedule.

    Attributes
    ----------
    name : str
        Such as "product.tiles float32".
    schedule : mapping
        The chosen schedule.
    seconds, before : float
        Seconds per call with the chosen and with the untuned schedule: medians over rounds in which both take turns.
    refused : dict of str to str
        Values that could not be chosen, such as "steps 8", with the reason: the device does not run them, or their
        results differ. The key "" holds the reason why nothing could be measured.
    """

    name: str
    schedule: Schedule
    seconds: float = 0.0
    before: float = 0.0
    refused: dict[str, str] = field(default_factory=dict)


def names_of(device: torch.device, only: str, dtypes: Sequence[str]) -> list[str]:
    """Return the names of the device's schedules that match the regular expression `only`."""
    dialect = generators().eager().dialect  # type: ignore[attr-defined]
    names = []
    for dtype, family in itertools.product(dtypes, _CASES):
        target = Device(allowed(dialect, family), is_cpu(device), getattr(torch, dtype), limits_of(dialect, device))
        names.append(tuned_name(family, way_of(family, target), dtype))
    return [name for name in names if re.search(only, name)]


def tune(
    device: torch.device, names: Sequence[str], size: int, rounds: int, say: Callable[[str], None] = lambda text: None
) -> Iterator[Choice]:
    """Yield the choice for each schedule. The process must build no other plans meanwhile.

    Parameters
    ----------
    size : int
        Rows and columns of products, and positions of attention; images have a sixteenth as many.
    say : callable
        Called with a description of the next attempt, which may take long to compile.

    Raises
    ------
    NotSupportedError
        The driver's events record no times.
    """
    if not has_timing():
        raise NotSupportedError(
            f"Tuning needs event timing. Implement event_elapsed or event_timestamp in driver {_C.driver_name()!r}."
        )
    import_inductor()
    variants = itertools.count(1)
    try:
        for name in names:
            yield _choose(name, size, variants, device, rounds, say)
    finally:
        _C.set_plan_variant(0)


def _choose(
    name: str, size: int, variants: Iterator[int], device: torch.device, rounds: int, say: Callable[[str], None]
) -> Choice:
    family, dtype = name.partition(".")[0], name.partition(" ")[2]
    choice = Choice(name, default_of(name))
    say(f"{name}, untuned")
    try:
        case = _CASES[family](device, getattr(torch, dtype), size)
        first = _Trial(name, choice.schedule, case, next(variants), device)
    except Exception as error:  # noqa: BLE001 - on any failure the schedule stays untuned
        choice.refused[""] = _text_of(error)
        return choice
    best = first
    for parameter, values in PARAMETERS[name.partition(" ")[0]].items():
        tried = {best.schedule[parameter]: best}
        for value in values:
            if value in tried:
                continue
            say(f"{name}, {parameter} {value}")
            try:
                tried[value] = trial = _Trial(name, {**best.schedule, parameter: value}, case, next(variants), device)
                trial.check(first)
            except Exception as error:  # noqa: BLE001 - the value is skipped, and the reason is reported
                tried.pop(value, None)
                choice.refused[f"{parameter} {value}"] = _text_of(error)
        best = _fastest(tried, best, device, rounds)
    seconds = rounds_of({"before": first, "now": best}, device, rounds, _MIN_MEASURED_SECONDS)
    choice.before, now = (statistics.median(seconds[variant]) for variant in ("before", "now"))
    # Measure again: a schedule that was fastest by chance will not be fastest twice.
    if median_ratio(seconds["now"], seconds["before"]) <= 1 - _MIN_SAVED_SHARE and now < choice.before:
        choice.schedule, choice.seconds = best.schedule, now
    else:
        choice.seconds = choice.before
    return choice


def _fastest(tried: Mapping[int, _Trial], current: _Trial, device: torch.device, rounds: int) -> _Trial:
    if len(tried) < 2:
        return current
    seconds = rounds_of({str(value): trial for value, trial in tried.items()}, device, rounds, _MIN_MEASURED_SECONDS)
    before = seconds[str(next(value for value, trial in tried.items() if trial is current))]
    ratios = {value: median_ratio(seconds[str(value)], before) for value in tried}
    best = min(ratios, key=ratios.__getitem__)
    return tried[best] if ratios[best] <= 1 - _MIN_SAVED_SHARE else current


class _Trial:
    """A schedule whose plan was built and run; further calls use that plan."""

    def __init__(self, name: str, schedule: Schedule, case: _Case, variant: int, device: torch.device) -> None:
        self.schedule = schedule
        self._function, self._arguments = case
        self._variant = variant
        _C.set_plan_variant(variant)
        with use_schedules({name: schedule}):
            results = self._function(*self._arguments)
        torch.accelerator.synchronize(device)
        self._results = [result.cpu() for result in (results if isinstance(results, tuple) else (results,))]

    def __call__(self) -> None:
        _C.set_plan_variant(self._variant)
        self._function(*self._arguments)

    def check(self, reference: _Trial) -> None:
        """Raise AssertionError if the results differ from another schedule's by more than rounding allows."""
        for result, wanted in zip(self._results, reference._results, strict=True):
            relative, absolute = _BOUNDS[result.dtype]
            torch.testing.assert_close(result, wanted, rtol=relative, atol=absolute)


# Relative and absolute bounds for sums of normally distributed numbers in another order, far wider
# than the actual differences.
_BOUNDS = {
    torch.float32: (1e-3, 1e-2),
    torch.bfloat16: (2e-2, 1e-1),
    torch.float16: (2e-3, 1e-1),
}


def _text_of(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _random(device: torch.device, dtype: torch.dtype, *sizes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(size, generator=generator).to(dtype).to(device) for size in sizes]


def _product(device: torch.device, dtype: torch.dtype, size: int) -> _Case:
    return torch.mm, _random(device, dtype, (size, size), (size, size))


def _images(device: torch.device, dtype: torch.dtype, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    side = max(8, size // 16)
    images, weight = _random(device, dtype, (4, 64, side, side), (64, 64, 3, 3))
    return images, weight


def _convolution(device: torch.device, dtype: torch.dtype, size: int) -> _Case:
    return lambda images, weight: F.conv2d(images, weight, padding=1), [*_images(device, dtype, size)]


def _convolution_gradients(device: torch.device, dtype: torch.dtype, size: int) -> _Case:
    images, weight = _images(device, dtype, size)

    def gradients(grad: torch.Tensor, images: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ones, none = [1, 1], [0, 0]
        grads = torch.ops.aten.convolution_backward(
            grad, images, weight, None, ones, ones, ones, False, none, 1, [True, True, False]
        )
        return tuple(grads[:2])

    return gradients, [*_random(device, dtype, images.shape), images, weight]


def _heads(device: torch.device, dtype: torch.dtype, size: int) -> list[torch.Tensor]:
    return _random(device, dtype, *[(1, 8, size, 64)] * 3)


def _attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[Any, ...]:
    attend = torch.ops.aten._scaled_dot_product_fused_attention_overrideable
    return tuple(attend(query, key, value, None, 0.0, True))


def _attention(device: torch.device, dtype: torch.dtype, size: int) -> _Case:
    return lambda *heads: _attend(*heads)[0], _heads(device, dtype, size)


def _attention_gradients(device: torch.device, dtype: torch.dtype, size: int) -> _Case:
    query, key, value = heads = _heads(device, dtype, size)
    result, logsumexp, _, _, _, _, seed, offset, _ = _attend(query, key, value)
    backward = torch.ops.aten._scaled_dot_product_fused_attention_overrideable_backward

    def gradients(grad: torch.Tensor, *heads: torch.Tensor) -> tuple[torch.Tensor, ...]:
        wanted, none = [True, True, True, False], None
        grads = backward(grad, *heads, none, wanted, result, logsumexp, none, none, size, size, 0.0, True, seed, offset)
        return tuple(grads[:3])

    return gradients, [*_random(device, dtype, result.shape), *heads]


# Family, as schedules.py names it -> its measured call.
_CASES: Mapping[str, Callable[[torch.device, torch.dtype, int], _Case]] = {
    "product": _product,
    "convolution": _convolution,
    "convolution_gradients": _convolution_gradients,
    "attention": _attention,
    "attention_gradients": _attention_gradients,
}
