# SPDX-License-Identifier: BSD-3-Clause
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

from torch_outboard.testing.database.calls import Call

from ..gradients import compare_gradients
from ..harness import Check, tensors_in
from ..layouts import LAYOUTS, laid_out, with_arguments
from ..lists import ENLARGED_IN_PLACE
from ..samples import ALL_SAMPLES, dtypes_of, few_and_complex_dtypes_of


class InPlace(Check):
    """The variant that writes to its first argument: in each layout, overlapping another argument, differentiated."""

    name = "inplace"
    is_broad = True
    errors_count = True
    first = (2, 1)
    wants_gradients = True

    @classmethod
    def dtypes(cls, info: OpInfo) -> list[torch.dtype]:
        if info.get_inplace() is None:
            return []
        return dtypes_of(info) if ALL_SAMPLES else few_and_complex_dtypes_of(info)

    def check(self, sample: SampleInput) -> None:
        if not isinstance(sample.input, torch.Tensor):
            return
        detached = _detached(sample)
        self._try("plain", detached, self._run)
        if self.info.full_name in ENLARGED_IN_PLACE:
            return
        for name, layout in LAYOUTS.items():
            changed = laid_out(detached, layout, only=0)
            if changed is not None:
                self._try(name, changed, self._run)
        for name, changed in _overlapping(detached):
            self._try(name, changed, self._run)
        if self.has_gradients and self.info.supports_inplace_autograd and not sample.broadcasts_input:
            with self.at(f"{self._place} differentiated"):
                pair = self.both(sample, self._run_on_a_copy)
                if pair is not None and self.values_count:
                    compare_gradients(self, *pair)

    def _try(self, name: str, sample: SampleInput, run: Callable[[Call], Any]) -> None:
        with self.at(f"{self._place} {name}"):
            pair = self.both(sample, run)
            if pair is not None:
                self.compare(*pair)

    def _run(self, call: Call) -> Any:
        return self.info.get_inplace()(call.input, *call.args, **call.kwargs)

    def _run_on_a_copy(self, call: Call) -> Any:
        return self.info.get_inplace()(call.input.clone(), *call.args, **call.kwargs)


def _detached(sample: SampleInput) -> SampleInput:
    return sample.transform(lambda leaf: leaf.detach() if isinstance(leaf, torch.Tensor) else leaf)


def _overlapping(sample: SampleInput) -> list[tuple[str, SampleInput]]:
    """Return samples whose first argument shares memory with the next tensor of its shape and type."""
    first = sample.input
    others = [t for t in tensors_in(sample.args) if t.shape == first.shape and t.dtype == first.dtype]
    if not others or not first.numel() or first.layout != torch.strided:
        return []
    base = torch.ones(first.numel() + 1, dtype=first.dtype)
    begin, end = base[:-1].view(first.shape).copy_(first), base[1:].view(first.shape)
    same = first.clone()
    return [
        ("on itself", with_arguments(sample, same, _replaced(sample.args, others[0], same), sample.kwargs)),
        ("overlapping", with_arguments(sample, begin, _replaced(sample.args, others[0], end), sample.kwargs)),
    ]


def _replaced(args: tuple[Any, ...], old: torch.Tensor, new: torch.Tensor) -> tuple[Any, ...]:
    return tuple(new if arg is old else arg for arg in args)
