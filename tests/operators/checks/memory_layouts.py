# SPDX-License-Identifier: BSD-3-Clause
from __future__ import annotations

import torch
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

from ..gradients import compare_gradients
from ..harness import Check, tensors_in
from ..layouts import LAYOUTS, laid_out
from ..samples import ALL_SAMPLES, broad_samples_of, distinct, dtypes_of, few_dtypes_of


class MemoryLayouts(Check):
    """Arguments and incoming gradients in each layout of `layouts.LAYOUTS`.

    The values, the gradients and the strides must be the CPU's for that layout.
    """

    name = "layouts"
    first = (1, 1)
    may_be_late = True
    wants_gradients = True

    @classmethod
    def dtypes(cls, info: OpInfo) -> list[torch.dtype]:
        if ALL_SAMPLES:
            return dtypes_of(info)
        chosen = {*few_dtypes_of(info)[:1], torch.complex64} & info.supported_dtypes("cpu")
        return sorted(chosen, key=str)

    def samples(self) -> list[SampleInput]:
        """Return the samples that have dimensions to lay out, if there are any."""
        gradients = self.has_gradients
        candidates = [sample for sample in broad_samples_of(self.info, self.dtype, gradients) if _extent(sample) > 0]
        return distinct(sorted(candidates, key=_extent, reverse=True), self.most)

    def check(self, sample: SampleInput) -> None:
        for name, layout in LAYOUTS.items():
            changed = laid_out(sample, layout)
            if changed is None:
                continue
            with self.at(f"{self._place} {name}"):
                pair = self.both(changed)
                if pair is None:
                    continue
                self.compare(*pair)
                if self.has_gradients and self.values_count:
                    compare_gradients(self, *pair, layout)


def _extent(sample: SampleInput) -> int:
    """Return the number of dimensions to lay out, at most 4, since elements must be few."""
    tensors = [t for t in tensors_in((sample.input, sample.args, sample.kwargs)) if 1 < t.numel() < 5000]
    return max((min(t.dim(), 4) for t in tensors if t.layout == torch.strided), default=0)
