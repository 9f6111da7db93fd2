# SPDX-License-Identifier: BSD-3-Clause
"""Results of the provider 'generated' for entries of torch's operator database; the CPU may run nothing."""

from __future__ import annotations

import copy
import itertools
import zlib
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils._pytree import tree_leaves, tree_map

from torch_outboard._errors import NotSupportedError
from torch_outboard.testing.database.calls import CPU, Call, all_samples_of, poison, seed
from torch_outboard.testing.database.compare import Bounds, TorchBounds, value_difference
from torch_outboard.testing.database.lists import ON_NO_DEVICE, RANDOM, UNINITIALISED

__all__ = ["STATES", "entries_of", "run_entry"]

# States, worst first; an entry has the worst state of its samples. 'ran' means 'right' without
# values to compare.
STATES = ("wrong", "failed", "refused", "right", "ran", "skipped")

# The signs of vectors are arbitrary: compare the values that torch's own tests derive from the
# results.
_HAVE_ARBITRARY_SIGNS = frozenset({"linalg.eigh", "linalg.svd", "svd"})

# Squaring doubles the rounding error of a power, which one of two kernels may avoid by chance.
_ERROR_FACTORS = {"matrix_exp": 8}


def entries_of(dtype: torch.dtype, parts: int = 1) -> list[OpInfo]:
    """Return the entries that support this type on the CPU and can run without the CPU.

    With `parts` above 1, return one of that many parts, always the same.
    """
    return [
        info
        for info in op_db
        if dtype in info.supported_dtypes("cpu")  # type: ignore[no-untyped-call]
        and info.full_name not in ON_NO_DEVICE
        and zlib.crc32(info.full_name.encode()) % parts == 0
    ]


def run_entry(
    info: Any, dtype: torch.dtype, samples: int, device: torch.device, *, has_gradients: bool = False
) -> tuple[str, str]:
    """Return the state of an entry's first samples, and the reason.

    The caller must make copies to the CPU raise errors.

    With `has_gradients`, also check the gradients of all inputs, for fixed gradients of the results.
    """
    chosen = itertools.islice(all_samples_of(info, dtype, has_gradients), samples)
    states = [_run_sample(info, sample, number, device, has_gradients) for number, sample in enumerate(chosen)]
    return min(states, key=lambda state: STATES.index(state[0]), default=("skipped", "no sample"))


def _run_sample(info: Any, sample: Any, number: int, device: torch.device, has_gradients: bool) -> tuple[str, str]:
    theirs = Call(info, sample, CPU)
    seed(number, CPU)
    try:
        expected = _results(theirs, has_gradients)
    except Exception as error:  # noqa: BLE001 - an error on the CPU is not a finding
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
    except Exception as error:  # noqa: BLE001 - any error on the device is the finding
        return "failed", f"{type(error).__name__}: {error}"
    if info.full_name in _TIED_INDICES and not has_gradients:
        place = _TIED_INDICES[info.full_name]
        results[place] = _resolve_ties(results[place], expected[place], theirs.inputs[0])
    difference = _difference(results, expected, _bounds(info, has_gradients))
    if difference is not None and not _is_within_error(info, sample, results, expected, has_gradients):
        return "wrong", difference
    return ("ran" if _has_no_values(info) else "right"), ""


def _results(call: Call, has_gradients: bool) -> list[Any]:
    """Return the operator's results and the arguments after the call, or the gradients."""
    output = call.forward()
    if call.info.full_name in _HAVE_ARBITRARY_SIGNS and not has_gradients:
        output = call.process(output)
    returned = tree_leaves(output)
    if not has_gradients:
        return [*returned, *call.inputs]
    results = [
        leaf
        for leaf in tree_leaves(call.process(returned[0] if len(returned) == 1 else tuple(returned)))
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad and leaf.layout == torch.strided
    ]
    inputs = [tensor for tensor in call.inputs if tensor.requires_grad]
    if not results or not inputs:
        return []
    generator = torch.Generator().manual_seed(7)
    seeds = [torch.randn(tensor.shape, dtype=tensor.dtype, generator=generator).to(call.device) for tensor in results]
    return list(torch.autograd.grad(results, inputs, seeds, allow_unused=True))


def _has_no_values(info: Any) -> bool:
    return info.full_name in RANDOM or info.full_name in UNINITIALISED


# The order of equal elements is undefined. Operator -> position of the indices among the results.
_TIED_INDICES = {"argsort": 0, "kthvalue": 1, "mode": 1, "sort": 1, "topk": 1}


def _resolve_ties(got: torch.Tensor, want: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Return the CPU's indices if both select equal values along some dimension, else the device's."""
    if got.dtype != torch.int64 or got.shape != want.shape or got.numel() == 0:
        return got
    ours, is_whole = got.cpu(), got.dim() == source.dim()
    for dim in range(source.dim()):
        pair = [tensor if is_whole else tensor.unsqueeze(dim) for tensor in (ours, want)]
        others = [size for place, size in enumerate(source.shape) if place != dim]
        fits = others == [size for place, size in enumerate(pair[0].shape) if place != dim]
        if fits and all(int(tensor.min()) >= 0 and int(tensor.max()) < source.shape[dim] for tensor in pair):
            pointed = [source.gather(dim, tensor) for tensor in pair]
            steps = [tensor.sort(dim).values.diff(dim=dim) != 0 for tensor in pair]
            if torch.equal(*pointed) and torch.equal(*steps):
                return want
    return got


class _DoubledBounds:
    """Doubled bounds, because a gradient is rounded by two kernels."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds

    def of(self, dtype: torch.dtype) -> tuple[float, float]:
        relative, absolute = self._bounds.of(dtype)
        return 2 * relative, 2 * absolute


def _bounds(info: Any, has_gradients: bool) -> Bounds | None:
    if _has_no_values(info):
        return None
    return _DoubledBounds(TorchBounds(info)) if has_gradients else TorchBounds(info)


def _is_within_error(info: Any, sample: Any, results: list[Any], expected: list[Any], has_gradients: bool) -> bool:
    """Return True if the error against double precision is at most twice the CPU's largest error.

    Some entries have another factor than two. Some gradients are small differences of large numbers. For halves, some
    of the CPU's kernels round intermediate results that generated kernels do not round.
    """
    if not (has_gradients or (expected and _is_rounded(expected[0]))):
        return False

    def widened(value: Any) -> Any:
        if not _is_rounded(value):
            return value
        dtype = torch.complex128 if value.is_complex() else torch.float64
        return value.detach().to(dtype).requires_grad_(value.requires_grad)

    times = _ERROR_FACTORS.get(info.full_name, 2)
    wide = copy.copy(sample)
    wide.input, wide.args, wide.kwargs = tree_map(widened, (sample.input, sample.args, sample.kwargs))
    for got, want, exact in zip(results, expected, _results(Call(info, wide, CPU), has_gradients), strict=True):
        if not isinstance(want, torch.Tensor) or not isinstance(exact, torch.Tensor) or got is None:
            if got is not want:
                return False
        elif got.shape != want.shape or got.dtype != want.dtype or not _are_within_error(got, want, exact, times):
            return False
    return True


def _is_rounded(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def _are_within_error(got: torch.Tensor, want: torch.Tensor, exact: torch.Tensor, times: int) -> bool:
    got = got.detach().cpu()
    if not _is_rounded(got):
        return torch.equal(got, want)
    return bool(((got - exact).abs() <= times * (want - exact).abs().max()).all())


def _difference(results: list[Any], expected: list[Any], bounds: Bounds | None) -> str | None:
    """Return how results differ, or None if they agree. Without bounds, only types and shapes are compared."""
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
