# SPDX-License-Identifier: BSD-3-Clause
from __future__ import annotations

import functools
import itertools
import zlib

import torch
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

from torch_outboard import NotSupportedError

from ..gradients import compare_gradients
from ..harness import Check, Side
from ..layouts import LAYOUTS, Layout, laid_out, laid_out_each
from ..samples import ALL_SAMPLES
from .memory_layouts import MemoryLayouts


def contiguous(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the tensor."""
    return tensor


PAIRS: list[tuple[Layout, Layout]] = [
    pair for pair in itertools.product((contiguous, *LAYOUTS.values()), repeat=2) if pair[0] is not pair[1]
]


FEW = 2


def _layout_of(first: Layout, others: Layout, number: int) -> Layout:
    return others if number else first


class LayoutPairs(Check):
    """The first tensor in one layout, and all others and the incoming gradients in another, for each pair of layouts.

    `make test` compares a few pairs of each entry.
    """

    name = "layout-pairs"
    first = (1, 1)
    may_be_late = True
    wants_gradients = True
    samples = MemoryLayouts.samples

    @classmethod
    def dtypes(cls, info: OpInfo) -> list[torch.dtype]:
        return [torch.float32] if torch.float32 in info.supported_dtypes("cpu") else []

    @property
    def most(self) -> int:
        return 1

    def check(self, sample: SampleInput) -> None:
        if self._is_refused(sample):
            self.report.compared += 1
            return
        for first, others in self._pairs(sample):
            if self.report.compared == FEW and not ALL_SAMPLES:
                break
            with self.at(f"{self._place} {first.__name__} {others.__name__}"):
                layouts = functools.partial(_layout_of, first, others)
                pair = self.both(laid_out_each(sample, layouts) or sample)
                if pair is None:
                    continue  # some views do not exist in a layout
                self.compare(*pair)
                if self.has_gradients and self.values_count:
                    compare_gradients(self, *pair, others)

    def _is_refused(self, sample: SampleInput) -> bool:
        """Return whether the call itself, in whatever layout, has no kernel."""
        side: Side | None = self.side(sample, self.device)
        return side is not None and isinstance(side.outcome.error, NotSupportedError)

    def _pairs(self, sample: SampleInput) -> list[tuple[Layout, Layout]]:
        """Return the pairs that the sample's tensors have, of which the entry's name chooses the first."""
        pairs = [
            pair
            for pair in PAIRS
            if (pair[0] is contiguous or laid_out(sample, pair[0], only=0))
            and (pair[1] is contiguous or laid_out(sample, pair[1]))
        ]
        start = zlib.crc32(self.info.full_name.encode()) % max(len(pairs), 1)
        return pairs[start:] + pairs[:start]
