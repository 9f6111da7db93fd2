# SPDX-License-Identifier: BSD-3-Clause
from __future__ import annotations

from collections.abc import Callable

import torch
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

from torch_outboard.testing.database.calls import CPU

from ..harness import Check
from ..layouts import LAYOUTS, channels_last, cropped, expanded, laid_out, stepped, transposed, with_arguments
from ..lists import CRASH_ON_CPU, UNDEFINED_INTO_EMPTY
from ..samples import ALL_SAMPLES, dtypes_of, few_and_complex_dtypes_of

# Returns a target for a result like this one, or None if the kind does not apply.
Target = Callable[[torch.Tensor], torch.Tensor | None]


def contiguous(result: torch.Tensor) -> torch.Tensor:
    return torch.ones(result.shape, dtype=result.dtype)


def empty(result: torch.Tensor) -> torch.Tensor:
    return torch.empty(0, dtype=result.dtype)


def wrong_shape(result: torch.Tensor) -> torch.Tensor:
    return torch.ones(*result.shape, 2, dtype=result.dtype)


def too_small(result: torch.Tensor) -> torch.Tensor | None:
    return torch.ones(1, 1, 1, dtype=result.dtype) if result.numel() > 1 else None


def equal_numel(result: torch.Tensor) -> torch.Tensor | None:
    """Return a target with as many elements in another shape, as a view: a resize would write beside it."""
    count = result.numel()
    return torch.ones(count + 2, 3, dtype=result.dtype)[1:-1, 1].view(1, count, 1) if count else None


def inner(result: torch.Tensor) -> torch.Tensor | None:
    return cropped(contiguous(result))


def every_second(result: torch.Tensor) -> torch.Tensor | None:
    return stepped(contiguous(result))


def turned(result: torch.Tensor) -> torch.Tensor | None:
    return transposed(contiguous(result))


def channels(result: torch.Tensor) -> torch.Tensor | None:
    return channels_last(contiguous(result))


def same_memory(result: torch.Tensor) -> torch.Tensor | None:
    """Return a target whose elements along a dimension share memory: the CPU refuses to write to it."""
    return expanded(contiguous(result))


def wider(result: torch.Tensor) -> torch.Tensor:
    return torch.ones(result.shape, dtype=torch.complex128 if result.is_complex() else torch.float64)


def integers(result: torch.Tensor) -> torch.Tensor:
    return torch.ones(result.shape, dtype=torch.int32)


def lazily_conjugated(result: torch.Tensor) -> torch.Tensor | None:
    return contiguous(result).conj() if result.is_complex() else None


def lazily_negated(result: torch.Tensor) -> torch.Tensor | None:
    return torch._neg_view(contiguous(result)) if result.dtype == torch.float32 else None


TARGETS: tuple[Target, ...] = (
    contiguous,
    empty,
    wrong_shape,
    too_small,
    equal_numel,
    inner,
    every_second,
    turned,
    channels,
    same_memory,
    wider,
    integers,
    lazily_conjugated,
    lazily_negated,
)


class Out(Check):
    """`out=` in each way of `TARGETS`: what is written where, resized, warned of and refused.

    The memory beside a target that is a view is compared too, since the target is an argument of the call. Further
    targets are an argument, overlap an argument, or are empty for arguments in a layout, whose strides the result
    takes.
    """

    name = "out"
    is_broad = True
    errors_count = True
    first = (1, 1)

    @classmethod
    def dtypes(cls, info: OpInfo) -> list[torch.dtype]:
        if not info.supports_out:
            return []
        return dtypes_of(info) if ALL_SAMPLES else few_and_complex_dtypes_of(info)

    def check(self, sample: SampleInput) -> None:
        results = self._results(sample)
        if results is None:
            return
        for target in TARGETS:
            if target is same_memory and self.info.full_name in CRASH_ON_CPU:
                continue
            targets = [target(result) for result in results]
            if all(tensor is not None for tensor in targets):
                self._try(target.__name__, sample, targets)
        self._try_arguments(sample, results)
        for name in ("transposed", "channels_last", "stepped"):
            changed = laid_out(sample, LAYOUTS[name])
            if changed is not None and (theirs := self._results(changed)) is not None:
                is_defined = self.info.full_name not in UNDEFINED_INTO_EMPTY
                self._try(f"empty, arguments {name}", changed, [empty(result) for result in theirs], is_defined)

    def _results(self, sample: SampleInput) -> list[torch.Tensor] | None:
        """Return the CPU's results, if they are dense tensors."""
        side = self.side(sample, CPU)
        if side is None or side.outcome.error is not None or side.outcome.others or not side.outcome.tensors:
            return None
        if not isinstance(side.outcome.value, (torch.Tensor, tuple)):
            return None
        dense = all(tensor.layout == torch.strided for tensor in side.outcome.tensors)
        return side.outcome.tensors if dense else None

    def _try_arguments(self, sample: SampleInput, results: list[torch.Tensor]) -> None:
        first, result = sample.input, results[0]
        if len(results) > 1 or not isinstance(first, torch.Tensor) or not first.numel():
            return
        if first.shape != result.shape or first.dtype != result.dtype or first.layout != torch.strided:
            return
        argument = first.detach().clone()
        self._try("the argument", with_arguments(sample, argument, sample.args, sample.kwargs), [argument])
        base = torch.ones(first.numel() + 1, dtype=first.dtype)
        begin, end = base[:-1].view(first.shape).copy_(first), base[1:].view(first.shape)
        self._try("overlapping the argument", with_arguments(sample, begin, sample.args, sample.kwargs), [end])

    def _try(self, name: str, sample: SampleInput, targets: list[torch.Tensor | None], is_defined: bool = True) -> None:
        out = tuple(targets) if len(targets) > 1 else targets[0]
        changed = with_arguments(sample, sample.input, sample.args, sample.kwargs | {"out": out})
        with self.at(f"{self._place} {name}"):
            pair = self.both(changed)
            if pair is not None:
                self.compare(*pair, values=is_defined)
