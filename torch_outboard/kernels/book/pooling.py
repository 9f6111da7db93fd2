# SPDX-License-Identifier: BSD-3-Clause
"""Pooling and padding of images, and the gradients: along one side after the other, or through indices of maxima."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch._meta_registrations import pooling_output_shape

from torch_outboard.kernels.book.copies import dense, in_order_of
from torch_outboard.kernels.book.facts import Facts
from torch_outboard.kernels.book.rounding import ROUNDED_BETWEEN, widened
from torch_outboard.kernels.book.row import Operator
from torch_outboard.kernels.refusal import other_sizes

__all__ = ["OPERATORS", "per_dimension"]


def per_dimension(values: Sequence[int], dims: int) -> list[int]:
    """Return a pooling argument for each dimension; a single number applies to all."""
    return [*values] * dims if len(values) == 1 else [*values]


# Means.


def _adaptive_avg_pool2d(self: torch.Tensor, output_size: Sequence[int]) -> Any:
    """Compute means over large windows as sums along one side after the other."""
    sizes = [
        -(-length // count) + 1 if count else 0 for length, count in zip(self.shape[-2:], output_size, strict=True)
    ]
    if math.prod(sizes) <= _READ or self.numel() == 0 or 0 in output_size:
        return NotImplemented
    means = widened(self)
    for dim, count, size in zip((-2, -1), output_size, sizes, strict=True):
        first, last = _window(count, self.shape[dim], self.device)
        sums = _sums(means, dim, first, last, size)
        means = (sums.movedim(dim, -1) / (last - first)).movedim(-1, dim)
    return in_order_of(means.to(self.dtype), self)


def _adaptive_avg_pool3d(self: torch.Tensor, output_size: list[int]) -> torch.Tensor:
    """Compute the mean of a box as a mean of means along its sides."""
    pool = torch.ops.aten._adaptive_avg_pool2d.default
    depth, height, width = output_size
    planes = pool(self.flatten(0, -4), [height, width])
    boxes = pool(planes.flatten(-2), [depth, height * width])
    return dense(boxes.reshape(*self.shape[:-3], *output_size))


def _adaptive_avg_pool_gradient(dims: int) -> Any:
    """Return the gradient of adaptive average pooling over some dimensions."""

    def body(grad_output: torch.Tensor, self: torch.Tensor) -> torch.Tensor:
        grad = widened(grad_output)
        for dim in range(-dims, 0):
            grad = _shares(grad, dim, self.shape[dim])
        return in_order_of(grad.to(self.dtype), self)

    return body


def _shares(grad: torch.Tensor, dim: int, length: Any) -> torch.Tensor:
    """Return, for each of `length` elements, the sum of grad / count over the means that contain the element.

    These means are adjacent. `_window` finds them as it finds the elements of a mean, with both lengths exchanged.
    """
    count = grad.shape[dim]
    first, last = _window(count, length, grad.device)
    shares = (grad.movedim(dim, -1) / (last - first)).movedim(-1, dim)
    first, last = _window(length, count, grad.device)
    return _sums(shares, dim, first, last, (count + length - 1) // length + 1)


def _sums(x: torch.Tensor, dim: int, begin: torch.Tensor, end: torch.Tensor, size: Any) -> torch.Tensor:
    """Return the sums along a dimension of the elements from `begin` to `end`, at most `size` elements each."""
    places = begin[:, None] + torch.arange(size, device=x.device)
    is_part = places < end[:, None]
    parts = torch.where(is_part, x.movedim(dim, -1)[..., torch.where(is_part, places, 0)], 0)
    return parts.sum(-1).movedim(-1, dim)


def _window(count: Any, length: Any, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return where each of `count` windows over `length` elements begins and ends."""
    number = torch.arange(count, device=device)
    begin = torch.div(number * length, count, rounding_mode="floor")
    return begin, torch.div((number + 1) * length + count - 1, count, rounding_mode="floor")


# Means of windows with more elements than Inductor's lowerings read.

_READ = 25


def _mean_of_windows(dims: int) -> Any:
    """Return means over windows, computed as sums along one side after the other."""

    def body(self: torch.Tensor, kernel_size: Sequence[int], *args: Any) -> Any:
        windows = _Windows(dims, self, kernel_size, *args)
        if math.prod(windows.sizes) <= _READ or windows.sizes == windows.strides:
            return NotImplemented
        sums = widened(self)
        for dim in range(-dims, 0):
            first, last = windows.parts(dim)
            sums = _sums(sums, dim, first, last, windows.sizes[dim])
        return in_order_of((sums / windows.divisor()).to(self.dtype), self)

    return body


def _gradient_of_means(dims: int) -> Any:
    def body(grad_output: torch.Tensor, self: torch.Tensor, kernel_size: Sequence[int], *args: Any) -> Any:
        windows = _Windows(dims, self, kernel_size, *args)
        together = [(size - 1) // stride + 1 for size, stride in zip(windows.sizes, windows.strides, strict=True)]
        if math.prod(together) <= _READ:
            return NotImplemented
        sums = widened(grad_output) / windows.divisor()
        for dim in range(-dims, 0):
            place = torch.arange(self.shape[dim], device=self.device) + windows.paddings[dim]
            first = torch.div(place - windows.sizes[dim], windows.strides[dim], rounding_mode="floor") + 1
            last = torch.div(place, windows.strides[dim], rounding_mode="floor") + 1
            sums = _sums(sums, dim, first.clamp(min=0), last.clamp(max=windows.counts[dim]), together[dim])
        return in_order_of(sums.to(self.dtype), self)

    return body


class _Windows:
    """The layout of a mean's windows. Lists are by dimension; the last dimension is -1."""

    def __init__(
        self,
        dims: int,
        image: torch.Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        windows = (kernel_size, stride or kernel_size, padding)
        self.sizes, self.strides, self.paddings = (per_dimension(values, dims) for values in windows)
        self.lengths = image.shape[-dims:]
        sides = zip(self.lengths, self.sizes, self.paddings, self.strides, strict=True)
        self.counts = [pooling_output_shape(*side, 1, ceil_mode) for side in sides]  # type: ignore[no-untyped-call]
        self._counts_padding, self._divisor, self._device = count_include_pad, divisor_override, image.device

    def parts(self, dim: int, with_padding: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the begin and end of each window, clipped to the image, or to the padded image `with_padding`."""
        padding = self.paddings[dim]
        begin = torch.arange(self.counts[dim], device=self._device) * self.strides[dim] - padding
        least, most = (-padding, self.lengths[dim] + padding) if with_padding else (0, self.lengths[dim])
        return begin.clamp(min=least), (begin + self.sizes[dim]).clamp(max=most)

    def divisor(self) -> Any:
        """Return how many elements of each window are counted."""
        if self._divisor is not None:
            return self._divisor
        result: Any = 1
        for dim in range(-len(self.sizes), 0):
            first, last = self.parts(dim, self._counts_padding)
            result = result * (last - first).view(-1, *[1] * (-1 - dim))
        return result


# Maxima, whose indices are positions within a channel.


def _scatter_to_maxima(dims: int, place: int) -> Any:
    """Return the gradient of an operator whose `place`-th argument holds the indices of the maxima."""

    def body(grad_output: torch.Tensor, self: torch.Tensor, *args: Any) -> torch.Tensor:
        indices = args[place].flatten(0, -dims - 1).flatten(1)
        grad = grad_output.flatten(0, -dims - 1).flatten(1)
        sums = torch.zeros(grad.shape[0], math.prod(self.shape[-dims:]), dtype=grad.dtype, device=grad.device)
        return in_order_of(torch.scatter_add(sums, 1, indices, grad).reshape(self.shape), self)

    return body


# Padding with copies of the edges.


def _replication_pad_backward(grad_output: torch.Tensor, self: torch.Tensor, padding: Sequence[int]) -> torch.Tensor:
    grad = widened(grad_output)
    for number in range(len(padding) // 2):
        grad = _fold(grad, -1 - number, *padding[2 * number : 2 * number + 2])
    return in_order_of(grad.to(self.dtype), self)


def _fold(grad: torch.Tensor, dim: int, before: int, after: int) -> torch.Tensor:
    """Add the gradients of copies to the gradients of the first and the last element along a dimension."""
    grad = grad.movedim(dim, -1)
    total = grad.shape[-1]
    result = torch.ops.aten.constant_pad_nd(grad, [-before, -after], 0)
    place = torch.arange(result.shape[-1], device=grad.device)
    if before > 0:
        copies = grad[..., :before].sum(-1, keepdim=True)
        result = result + torch.where(place == 0, copies, 0)
    if after > 0:
        copies = grad[..., total - after :].sum(-1, keepdim=True)
        result = result + torch.where(place == result.shape[-1] - 1, copies, 0)
    folded: torch.Tensor = result.movedim(-1, dim)
    return folded


def _fractional_max_pool3d(
    self: torch.Tensor, kernel_size: Sequence[int], output_size: Sequence[int], samples: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Find the maxima of boxes at random positions. Inductor's lowering reads the samples in reverse order."""
    batch = self if self.dim() == 5 else self.unsqueeze(0)
    if samples.shape[0] < batch.shape[0] or tuple(samples.shape[1:]) != (batch.shape[1], 3):
        raise other_sizes()
    place = torch.zeros((), dtype=torch.int64, device=self.device)
    for dim in range(3):
        starts = _starts(samples[: batch.shape[0], :, dim], batch.shape[2 + dim], kernel_size[dim], output_size[dim])
        along = starts.unsqueeze(-1) + torch.arange(kernel_size[dim], device=self.device)
        shape = [*along.shape[:2], *(1,) * 6]
        shape[2 + dim], shape[5 + dim] = along.shape[2:]
        place = place * batch.shape[2 + dim] + along.reshape(shape)
    place = place.flatten(5)
    values = batch.flatten(2).gather(2, place.flatten(2)).reshape(place.shape)
    largest, indices = values.amax(-1), place.gather(-1, values.argmax(-1, keepdim=True)).squeeze(-1)
    return (largest, indices) if self.dim() == 5 else (largest[0], indices[0])


def _starts(sample: torch.Tensor, length: Any, size: int, count: int) -> torch.Tensor:
    """Return where `count` boxes of one size begin, rounded as in the CPU's kernel; the last box touches the end."""
    number = torch.arange(count, device=sample.device)
    step = torch.full((), length - size, dtype=sample.dtype, device=sample.device) / max(count - 1, 1)
    first = (sample * step).long().unsqueeze(-1)
    starts = ((number + sample.unsqueeze(-1)) * step).long() - first
    return torch.where(number == count - 1, length - size, starts)


OPERATORS = (
    Operator("aten::_adaptive_avg_pool2d.default", decomposition=_adaptive_avg_pool2d),
    Operator("aten::_adaptive_avg_pool2d_backward.default", decomposition=_adaptive_avg_pool_gradient(2)),
    Operator("aten::_adaptive_avg_pool3d.default", decomposition=_adaptive_avg_pool3d),
    Operator("aten::_adaptive_avg_pool3d_backward.default", decomposition=_adaptive_avg_pool_gradient(3)),
    Operator("aten::adaptive_max_pool2d_backward.default", decomposition=_scatter_to_maxima(2, 0)),
    Operator("aten::adaptive_max_pool3d_backward.default", decomposition=_scatter_to_maxima(3, 0)),
    Operator("aten::avg_pool2d", facts=Facts(bad_dtypes={"self": "has_integral_type"})),
    Operator("aten::avg_pool2d.default", decomposition=_mean_of_windows(2)),
    Operator("aten::avg_pool2d_backward.default", decomposition=_gradient_of_means(2)),
    Operator("aten::avg_pool3d.default", decomposition=_mean_of_windows(3)),
    Operator("aten::avg_pool3d_backward.default", decomposition=_gradient_of_means(3)),
    Operator(
        "aten::fractional_max_pool2d aten::fractional_max_pool3d",
        facts=Facts(is_given_samples=True, kernel_checks=True),
    ),
    Operator(
        "aten::fractional_max_pool2d_backward aten::fractional_max_pool3d_backward",
        facts=Facts(raises_runtime_error=True),
    ),
    Operator("aten::fractional_max_pool2d_backward.default", decomposition=_scatter_to_maxima(2, 2)),
    Operator("aten::fractional_max_pool3d.default", decomposition=_fractional_max_pool3d, refused=ROUNDED_BETWEEN),
    Operator("aten::fractional_max_pool3d_backward.default", decomposition=_scatter_to_maxima(3, 2)),
    Operator("aten::max_pool2d_with_indices.default", lowering="max_pools:max_pool2d"),
    Operator(
        "aten::max_pool2d_with_indices_backward aten::max_pool3d_with_indices "
        "aten::max_pool3d_with_indices_backward prims::_low_memory_max_pool_offsets_to_indices",
        facts=Facts(kernel_checks=True),
    ),
    Operator("aten::max_pool3d_with_indices.default", lowering="max_pools:max_pool3d"),
    Operator("aten::max_pool3d_with_indices_backward.default", decomposition=_scatter_to_maxima(3, 5)),
    Operator(
        "aten::replication_pad1d_backward.default aten::replication_pad2d_backward.default"
        " aten::replication_pad3d_backward.default",
        decomposition=_replication_pad_backward,
    ),
    Operator("aten::replication_pad2d_backward", facts=Facts(layout="suggested", like=1)),
)
