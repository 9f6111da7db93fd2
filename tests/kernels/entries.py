# SPDX-License-Identifier: BSD-3-Clause
"""What the provider 'compiled' makes of an entry of torch's operator database, with nothing allowed on the CPU."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import torch
from operators.compare import Bounds, TorchsBounds, value_difference
from operators.lists import RANDOM, UNINITIALISED
from operators.outcome import CPU, poison, seed
from operators.samples import Call, all_samples_of
from torch.utils._pytree import tree_leaves, tree_map

from torch_outboard import NotSupportedError

__all__ = ["STATES", "run_entry"]

# The worst first, which is that of an entry whose samples differ. 'ran' is right of what nothing can be compared with.
STATES = ("wrong", "failed", "refused", "right", "ran", "skipped")


def run_entry(
    info: Any, dtype: torch.dtype, samples: int, device: torch.device, *, has_gradients: bool = False
) -> tuple[str, str]:
    """Gives what became of an entry's first samples, and why. Copies to the CPU must be errors where it is called.

    With `has_gradients`, also of the gradients of all inputs from fixed ones of the results.
    """
    given = itertools.islice(all_samples_of(info, dtype, has_gradients), samples)
    states = [_run_sample(info, sample, number, device, has_gradients) for number, sample in enumerate(given)]
    return min(states, key=lambda state: STATES.index(state[0]), default=("skipped", "no sample"))


def _run_sample(info: Any, sample: Any, number: int, device: torch.device, has_gradients: bool) -> tuple[str, str]:
    theirs = Call(info, sample, CPU)
    seed(number, CPU)
    try:
        expected = _results(theirs, has_gradients)
    except Exception as error:
        return "skipped", f"the CPU raises {type(error).__name__}"
    if has_gradients and len(expected) == 0:
        return "skipped", "it has no gradients"
    ours = Call(info, sample, device)
    poison(device)
    try:
        results = _results(ours, has_gradients)
        torch.accelerator.synchronize(device)
    except NotSupportedError as error:
        return "refused", str(error)
    except Exception as error:
        return "failed", f"{type(error).__name__}: {error}"
    difference = _difference(results, expected, _bounds(info, has_gradients))
    if difference is not None and not (has_gradients and _is_as_near(info, sample, results, expected)):
        return "wrong", difference
    return ("ran" if _has_no_values(info) else "right"), ""


def _results(call: Call, has_gradients: bool) -> list[Any]:
    """Gives what the operator returns and what became of its arguments, or gradients."""
    returned = tree_leaves(call.forward())
    if not has_gradients:
        return [*returned, *call.inputs]
    results = [
        one
        for one in tree_leaves(call.process(returned[0] if len(returned) == 1 else tuple(returned)))
        if isinstance(one, torch.Tensor) and one.requires_grad and one.layout == torch.strided
    ]
    inputs = [one for one in call.inputs if one.requires_grad]
    if not results or not inputs:
        return []
    generator = torch.Generator().manual_seed(7)
    seeds = [torch.randn(one.shape, dtype=one.dtype, generator=generator).to(call.device) for one in results]
    return list(torch.autograd.grad(results, inputs, seeds, allow_unused=True))


def _has_no_values(info: Any) -> bool:
    return info.full_name in RANDOM or info.full_name in UNINITIALISED


class _Doubled:
    """Twice the bounds: of a gradient, two kernels round."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds

    def of(self, dtype: torch.dtype) -> tuple[float, float]:
        relative, absolute = self._bounds.of(dtype)
        return 2 * relative, 2 * absolute


def _bounds(info: Any, has_gradients: bool) -> Bounds | None:
    if _has_no_values(info):
        return None
    return _Doubled(TorchsBounds(info)) if has_gradients else TorchsBounds(info)


def _is_as_near(info: Any, sample: Any, results: list[Any], expected: list[Any]) -> bool:
    """Whether gradients differ from those of float64 by twice of what the CPU's do, at most: some are small differences
    of large numbers."""

    def widened(one: Any) -> Any:
        is_real = isinstance(one, torch.Tensor) and one.is_floating_point()
        return one.detach().double().requires_grad_(one.requires_grad) if is_real else one

    wide = copy.copy(sample)
    wide.input, wide.args, wide.kwargs = tree_map(widened, (sample.input, sample.args, sample.kwargs))
    for got, want, exact in zip(results, expected, _results(Call(info, wide, CPU), True), strict=True):
        if (got is None) != (want is None) or (exact is None and want is not None):
            return False
        if want is not None and ((got.cpu() - exact).abs() > 2 * (want - exact).abs().max()).any():
            return False
    return True


def _difference(results: list[Any], expected: list[Any], bounds: Bounds | None) -> str | None:
    """Says how results differ; without bounds only their types and shapes count."""
    for got, want in zip(results, expected, strict=True):
        if not isinstance(want, torch.Tensor):
            if got != want and got == got:
                return f"{got} for {want}"
            continue
        if got is None or got.shape != want.shape or got.dtype != want.dtype:
            return f"{None if got is None else (got.dtype, tuple(got.shape))} for {want.dtype} {tuple(want.shape)}"
        if bounds is not None:
            difference = value_difference(got.detach().cpu(), want.detach(), bounds)
            if difference is not None:
                return difference
    return None
