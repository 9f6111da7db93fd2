# SPDX-License-Identifier: BSD-3-Clause
"""Memory layouts of a tensor of the same shape, and mostly the same values, and lazy views."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.testing._internal.opinfo.core import SampleInput
from torch.utils._pytree import tree_map

# Gives the tensor in the layout, or None where its shape or element type has no such layout.
Layout = Callable[[torch.Tensor], torch.Tensor | None]


def transposed(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the tensor with its last dimension outermost in memory, and the first innermost."""
    if tensor.dim() < 2:
        return None
    return tensor.transpose(0, -1).clone(memory_format=torch.contiguous_format).transpose(0, -1)


def permuted(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the tensor with its dimensions rotated in memory by one."""
    if tensor.dim() < 3:
        return None
    order = [*range(1, tensor.dim()), 0]
    back = [tensor.dim() - 1, *range(tensor.dim() - 1)]
    return tensor.permute(order).clone(memory_format=torch.contiguous_format).permute(back)


def cropped(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the tensor as the middle of a larger tensor, in every dimension."""
    if tensor.dim() < 1:
        return None
    base = tensor.new_ones([size + 2 for size in tensor.shape])
    view = base[tuple(slice(1, size + 1) for size in tensor.shape)]
    return view.copy_(tensor)


def stepped(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the tensor as every second element in memory."""
    if tensor.dim() < 1:
        return None
    base = tensor.new_ones([*tensor.shape[:-1], 2 * tensor.shape[-1]])
    return base[..., ::2].copy_(tensor)


def expanded(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return a tensor whose elements along the first dimension share memory; its values differ from the sample's."""
    if tensor.dim() < 1 or tensor.shape[0] < 2:
        return None
    return tensor[:1].clone().expand(tensor.shape)


def offset(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the tensor at an offset of three elements in its storage, which alignment does not reveal."""
    base = tensor.new_ones(tensor.numel() + 5)
    return base[3 : 3 + tensor.numel()].view(tensor.shape).copy_(tensor)


def channels_last(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the tensor with its second dimension innermost."""
    if tensor.dim() not in (4, 5):
        return None
    return tensor.clone(memory_format=torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d)


def channels_second(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the tensor with its second dimension as a part of a larger one, as a choice of channels is."""
    if tensor.dim() < 2:
        return None
    base = tensor.new_ones([tensor.shape[0], tensor.shape[1] + 2, *tensor.shape[2:]])
    return base[:, 1:-1].copy_(tensor)


def odd_ones(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the tensor with meaningless strides for dimensions of size 1."""
    if 1 not in tensor.shape:
        return None
    strides = [77 if size == 1 else stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    return tensor.clone().as_strided(tensor.shape, strides)


def negative_view(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the tensor as a lazily negated view: the imaginary part of a conjugate."""
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.element_size() == 1:
        return None
    return torch._neg_view(tensor.neg().resolve_neg())


def conjugate_view(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the tensor as a lazily conjugated view."""
    return tensor.conj().resolve_conj().conj() if tensor.is_complex() else None


def conjugate_transposed(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the tensor in the form that linear algebra gives its arguments."""
    return tensor.mH.resolve_conj().clone().mH if tensor.is_complex() and tensor.dim() >= 2 else None


LAYOUTS: dict[str, Layout] = {
    layout.__name__: layout
    for layout in (
        transposed,
        permuted,
        cropped,
        stepped,
        expanded,
        offset,
        channels_last,
        channels_second,
        odd_ones,
        negative_view,
        conjugate_view,
        conjugate_transposed,
    )
}


def laid_out(sample: SampleInput, layout: Layout, only: int | None = None) -> SampleInput | None:
    """Return the sample with its dense tensors, or only the n-th, in a layout; None if the layout applies to none."""
    return laid_out_each(sample, lambda number: layout if only in (None, number) else None)


def laid_out_each(sample: SampleInput, layout_of: Callable[[int], Layout | None]) -> SampleInput | None:
    """Return the sample with its dense tensors in the layouts of their numbers; None if no layout applies."""
    number = -1
    changed = False

    def change(value: Any) -> Any:
        nonlocal number, changed
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided or value.is_quantized:
            return value
        number += 1
        layout = layout_of(number)
        if layout is None:
            return value
        with torch.no_grad():
            laid = layout(value.detach())
        if laid is None:
            return value
        changed = True
        return laid.requires_grad_(value.requires_grad)

    changed_sample = with_arguments(sample, *tree_map(change, (sample.input, sample.args, sample.kwargs)))
    return changed_sample if changed else None


def with_arguments(sample: SampleInput, input: Any, args: Any, kwargs: Any) -> SampleInput:
    """Return a sample with other arguments, to which the rest of it applies."""
    return SampleInput(
        input,
        args=args,
        kwargs=kwargs,
        output_process_fn_grad=sample.output_process_fn_grad,
        broadcasts_input=sample.broadcasts_input,
        name=sample.name,
    )
