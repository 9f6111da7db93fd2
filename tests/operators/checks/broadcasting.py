# SPDX-License-Identifier: BSD-3-Clause
from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.testing._internal.opinfo.core import (
    BinaryUfuncInfo,
    OpInfo,
    SampleInput,
    generate_elementwise_binary_broadcasting_tensors,
    generate_elementwise_binary_with_scalar_samples,
)

from torch_outboard.testing.database.calls import CPU, seed

from ..harness import Check, tensors_in
from ..samples import few_dtypes_of


class Broadcasting(Check):
    """Two operands of unequal shapes, numbers for tensors, and types that are promoted."""

    name = "broadcasting"
    first = (22, 11)

    @classmethod
    def dtypes(cls, info: OpInfo) -> list[torch.dtype]:
        return few_dtypes_of(info) if isinstance(info, BinaryUfuncInfo) else []

    def samples(self) -> list[SampleInput]:
        seed(3, CPU)
        info, dtype = self.info, self.dtype
        shapes = generate_elementwise_binary_broadcasting_tensors(info, device="cpu", dtype=dtype)
        numbers = generate_elementwise_binary_with_scalar_samples(info, device="cpu", dtype=dtype)
        candidates = [*list(shapes)[:: 1 if self.most > 11 else 3], *numbers, *self._promoted()]
        return [sample for sample in candidates if tensors_in((sample.input, sample.args))]

    def _promoted(self) -> Iterator[SampleInput]:
        """Return operands of two types, and an operand that is a number in a tensor of the host."""
        ones = torch.ones(2, 3, dtype=self.dtype)
        for dtype in (torch.int64, torch.float64, torch.bool):
            if dtype in self.info.supported_dtypes("cpu"):
                yield SampleInput(ones, torch.ones(3, dtype=dtype))
                yield SampleInput(ones, torch.ones((), dtype=dtype))

    def check(self, sample: SampleInput) -> None:
        pair = self.both(sample)
        if pair is not None:
            self.compare(*pair)
