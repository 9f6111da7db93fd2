# SPDX-License-Identifier: BSD-3-Clause
"""Sampling of images at the points of a two- or three-dimensional grid, and its gradients.

Along each axis a point has some neighbours, each with an index, a weight, and the slope of the weight. A sample is the
sum over all combinations of neighbours, and a gradient takes the same path back. Neighbours outside the image count as
0.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from torch_outboard.kernels.book.facts import Facts
from torch_outboard.kernels.book.rounding import ROUNDED_BETWEEN
from torch_outboard.kernels.book.row import Operator

__all__ = ["OPERATORS"]

_LINEAR, _NEAREST, _CUBIC = range(3)
_ZEROS, _BORDER, _REFLECTION = range(3)
_SHARPNESS = -0.75  # sharpness of cubic weights, as in torch's kernels


class _Neighbour(NamedTuple):
    """A neighbour of each point along an axis; `slope` is the weight's derivative by the grid coordinate."""

    place: torch.Tensor
    weight: torch.Tensor
    slope: torch.Tensor


class _Sampled(NamedTuple):
    """One combination of neighbours: whether it is inside, its indices by axis, its weight, and its slopes by axis.

    Tensors have the shape [batch, 1, *places], or [combination, batch, 1, *places] for all combinations at once.
    """

    is_inside: torch.Tensor
    indices: list[torch.Tensor]
    weight: torch.Tensor
    slopes: list[torch.Tensor]


def _grid_sampler(
    input: torch.Tensor, grid: torch.Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> torch.Tensor:
    sampled = _sampled(input, grid, interpolation_mode, padding_mode, align_corners)
    if interpolation_mode == _CUBIC:  # compilers take minutes for a formula with all 16
        return _product(input, _stacked(sampled)).sum(0).to(input.dtype)
    return functools.reduce(torch.add, (_product(input, sample) for sample in sampled)).to(input.dtype)


def _product(input: torch.Tensor, sampled: _Sampled) -> torch.Tensor:
    """Return each combination's share of a sample. Outside the image it is 0 times the weight, so a NaN remains."""
    return _read(input, sampled) * sampled.weight


def _read(input: torch.Tensor, sampled: _Sampled) -> torch.Tensor:
    """Return the image's values, and 0 outside. Outside, read the first pixel, so that no index needs a check."""
    places = list(_places(input, sampled.indices))
    values: torch.Tensor = torch.ops.aten._unsafe_index.Tensor(input, places)
    return torch.where(sampled.is_inside, values.to(sampled.weight.dtype), 0)


def _grid_sampler_backward(
    grad_output: torch.Tensor,
    input: torch.Tensor,
    grid: torch.Tensor,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> tuple[torch.Tensor | None, torch.Tensor]:
    sampled = _stacked(_sampled(input, grid, interpolation_mode, padding_mode, align_corners))
    grad = grad_output.to(sampled.weight.dtype)
    of_input = None
    if output_mask[0]:
        sums = torch.zeros(input.shape, dtype=grad.dtype, device=input.device)
        places, parts = _places(input, sampled.indices), torch.where(sampled.is_inside, grad * sampled.weight, 0)
        of_input = torch.ops.aten.index_put(sums, list(places), parts, True).to(input.dtype)
    if interpolation_mode == _NEAREST:
        return of_input, torch.zeros(grid.shape, dtype=grid.dtype, device=grid.device)
    products = (_read(input, sampled) * grad).sum(2, keepdim=True)
    # The grid's last dimension lists the axes in reverse order.
    of_grid = [(products * slope).sum((0, 2)) for slope in reversed(sampled.slopes)]
    return of_input, torch.stack(of_grid, -1).to(grid.dtype)


def _places(input: torch.Tensor, indices: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Return the indices of all dimensions of the image, which broadcast to [..., batch, channel, *places]."""
    ones = [1] * len(indices)
    batch = torch.arange(input.shape[0], device=input.device).view(-1, 1, *ones)
    channel = torch.arange(input.shape[1], device=input.device).view(-1, *ones)
    return batch, channel, *indices


def _sampled(
    input: torch.Tensor, grid: torch.Tensor, interpolation: int, padding: int, align: bool
) -> Iterator[_Sampled]:
    """Yield all combinations of neighbours along all axes."""
    sizes = input.shape[2:]
    real = torch.promote_types(input.dtype, torch.float32)
    axes = [
        list(_neighbours(grid[..., len(sizes) - 1 - axis].to(real).unsqueeze(1), size, interpolation, padding, align))
        for axis, size in enumerate(sizes)
    ]
    for combination in itertools.product(*axes):
        is_inside = _all(
            torch.logical_and(axis.place >= 0, axis.place < size) for axis, size in zip(combination, sizes, strict=True)
        )
        weight = math.prod((axis.weight for axis in combination[1:]), start=combination[0].weight)
        slopes = []
        for axis in combination:
            others = [other_axis.weight for other_axis in combination if other_axis is not axis]
            slopes.append(math.prod(others, start=axis.slope))
        if len(sizes) == 3:  # only in two dimensions does the CPU's kernel multiply 0 by the weights of outside pixels
            weight, *slopes = (torch.where(is_inside, factor, 0) for factor in (weight, *slopes))
        indices = [torch.where(is_inside, axis.place, 0).to(torch.int64) for axis in combination]
        yield _Sampled(is_inside, indices, weight, slopes)


def _stacked(sampled: Iterator[_Sampled]) -> _Sampled:
    is_inside, indices, weight, slopes = zip(*sampled, strict=True)
    by_axis = ([torch.stack(tensors) for tensors in zip(*values, strict=True)] for values in (indices, slopes))
    return _Sampled(torch.stack(is_inside), next(by_axis), torch.stack(weight), next(by_axis))


def _all(conditions: Iterator[torch.Tensor]) -> torch.Tensor:
    result = next(conditions)
    for condition in conditions:
        result = torch.logical_and(result, condition)
    return result


def _neighbours(at: torch.Tensor, size: Any, interpolation: int, padding: int, align: bool) -> Iterator[_Neighbour]:
    """Yield the neighbours of coordinates in [-1, 1] along an axis of the given size."""
    scale = (size - 1) / 2 if align else size / 2
    place, slope = at * scale + (size - 1) / 2, torch.full_like(at, 1) * scale
    if interpolation == _CUBIC:  # here each neighbour is padded instead
        below = place.floor()
        for step, weight, change in zip((-1, 0, 1, 2), *_cubic(place - below), strict=True):
            near_by, _ = _padded(below + step, slope, size, padding, align)
            yield _Neighbour(near_by.trunc(), weight, change * slope)
        return
    place, slope = _padded(place, slope, size, padding, align)
    if interpolation == _NEAREST:
        yield _Neighbour(place.round(), torch.ones_like(place), torch.zeros_like(place))
        return
    below = place.floor()
    yield _Neighbour(below, below + 1 - place, -slope)
    yield _Neighbour(below + 1, place - below, slope)


def _cubic(t: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the weights of the four neighbours of a point `t` past the second one, and their derivatives."""
    a = _SHARPNESS

    def far(x: torch.Tensor) -> torch.Tensor:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    def near(x: torch.Tensor) -> torch.Tensor:
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far_slope(x: torch.Tensor) -> torch.Tensor:
        return (3 * a * x - 10 * a) * x + 8 * a

    def near_slope(x: torch.Tensor) -> torch.Tensor:
        return (3 * (a + 2) * x - 2 * (a + 3)) * x

    weights = [far(t + 1), near(t), near(1 - t), far(2 - t)]
    return weights, [far_slope(t + 1), near_slope(t), -near_slope(1 - t), -far_slope(2 - t)]


def _padded(
    place: torch.Tensor, slope: torch.Tensor, size: Any, padding: int, align: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return coordinates moved into the image by the padding mode, and their slopes."""
    if padding == _ZEROS:
        return place, slope
    if padding == _REFLECTION:
        low, span = (0, size - 1) if align else (-0.5, size)
        if span == 0:
            return torch.zeros_like(place), torch.zeros_like(slope)
        is_before = place < low
        distance = (place - low).abs()
        extra = torch.fmod(distance, span)
        is_back = torch.fmod((distance / span).floor(), 2) != 0
        place = torch.where(is_back, span - extra, extra) + low
        slope = torch.where(torch.logical_xor(is_before, is_back), -slope, slope)
    is_between = torch.logical_and(place > 0, place < size - 1)
    return place.clamp(0, size - 1), torch.where(is_between, slope, 0)


OPERATORS = (
    Operator("aten::grid_sampler_2d", refused=ROUNDED_BETWEEN),
    Operator("aten::grid_sampler_2d.default aten::grid_sampler_3d.default", decomposition=_grid_sampler),
    Operator("aten::grid_sampler_2d_backward", facts=Facts(bad_arguments={"input grid": "is_bad_grid"})),
    Operator("aten::grid_sampler_2d_backward.default", decomposition=_grid_sampler_backward, refused=ROUNDED_BETWEEN),
    Operator("aten::grid_sampler_3d_backward.default", decomposition=_grid_sampler_backward),
)
