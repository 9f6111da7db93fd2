# SPDX-License-Identifier: BSD-3-Clause
from __future__ import annotations

import torch
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

from torch_outboard.testing.database.calls import CPU, Call
from torch_outboard.testing.database.lists import RANDOM

from ..gradients import compare_gradients
from ..harness import Check
from ..lists import UNCOUNTED_OPERATORS
from ..outcome import OperatorNames, reaches_memory
from ..random_entries import Draws
from ..samples import dtypes_of


class Forward(Check):
    """The plain call and its gradients: values, strides and sharing of storages as on the CPU, and the provider."""

    name = "forward"
    first = (6, 2)
    may_be_late = True
    wants_gradients = True

    @classmethod
    def dtypes(cls, info: OpInfo) -> list[torch.dtype]:
        return dtypes_of(info)

    def check(self, sample: SampleInput) -> None:
        pair = self.both(sample)
        if pair is None:
            return
        ours, theirs = pair
        if ours.outcome.calls:
            self.report.counted += 1
        elif reaches_memory(self.device) and (missing := self._operators_that_count(sample)):
            self.fail("not run by the device", f"no provider counted a call, the CPU ran {', '.join(missing)}")
        if self.info.full_name in RANDOM:
            draws = Draws(self, sample)
            if draws.depend_on_seed(theirs.outcome):
                draws.compare(ours, theirs)
                return
            self.values_count = True
        self.compare(ours, theirs)
        if self.has_gradients:
            compare_gradients(self, ours, theirs)

    def _operators_that_count(self, sample: SampleInput) -> list[str]:
        """Return the operators of a sample, from another run on the CPU, that a provider must run."""
        call = Call(self.info, sample, CPU)
        with OperatorNames() as seen:
            call.forward()
        return sorted(seen.names - UNCOUNTED_OPERATORS)
