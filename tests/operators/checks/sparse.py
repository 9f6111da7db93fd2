# SPDX-License-Identifier: BSD-3-Clause
from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

from torch_outboard.testing.database.calls import CPU, Call, all_samples_of, seed

from ..harness import Check
from ..layouts import with_arguments
from ..samples import ALL_SAMPLES, distinct, dtypes_of, few_dtypes_of


class Sparse(Check):
    """Sparse COO arguments: the call, the variant that writes to its first argument, and `out=`."""

    name = "sparse"
    first = (4, 2)

    @classmethod
    def dtypes(cls, info: OpInfo) -> list[torch.dtype]:
        if not info.supports_sparse:
            return []
        return dtypes_of(info) if ALL_SAMPLES else few_dtypes_of(info)

    def samples(self) -> list[SampleInput]:
        """Return the database's sparse samples, or dense samples made sparse if the entry has none."""
        function: Callable[..., Iterable[SampleInput]] = self.info.sample_inputs_sparse_coo_func
        if getattr(function, "__name__", "") == "_sample_inputs_unspecified":
            dense = all_samples_of(self.info, self.dtype, requires_grad=False)
            candidates: Iterable[SampleInput] = (_made_sparse(sample) for sample in dense if _is_for_sparse(sample))
        else:
            seed(3, CPU)
            candidates = function(self.info, "cpu", self.dtype, False)
        return distinct(candidates, self.most)

    def check(self, sample: SampleInput) -> None:
        self._try("", sample, Call.forward)
        if not isinstance(sample.input, torch.Tensor):
            return
        if self.info.get_inplace() is not None:
            self._try(" in place", sample, self._run_in_place)
        if self.info.supports_out and sample.input.layout == torch.sparse_coo:
            out = torch.zeros(sample.input.shape, dtype=sample.input.dtype).to_sparse()
            changed = with_arguments(sample, sample.input, sample.args, sample.kwargs | {"out": out})
            self._try(" out", changed, Call.forward)

    def _try(self, place: str, sample: SampleInput, run: Callable[[Call], Any]) -> None:
        with self.at(self._place + place):
            pair = self.both(sample, run)
            if pair is not None:
                self.compare(*pair)

    def _run_in_place(self, call: Call) -> Any:
        return self.info.get_inplace()(call.input, *call.args, **call.kwargs)


def _is_for_sparse(sample: SampleInput) -> bool:
    return isinstance(sample.input, torch.Tensor) and sample.input.dim() >= 1 and sample.input.numel() < 5000


def _made_sparse(sample: SampleInput) -> SampleInput:
    """Return a sample without every second element of its first argument."""
    dense = sample.input.detach()
    kept = torch.arange(dense.numel()).view(dense.shape) % 2 == 0
    return with_arguments(sample, (dense * kept).to_sparse(), sample.args, sample.kwargs)
