# SPDX-License-Identifier: BSD-3-Clause
from __future__ import annotations

import re
from collections import defaultdict

import torch
from torch.testing._internal.opinfo.core import ErrorInput, OpInfo, SampleInput

from torch_outboard.testing.database.calls import CPU, seed

from ..harness import Check, Report, every_warning, seeds_free
from ..outcome import Outcome


class Errors(Check):
    """Calls that torch's database lists as refused.

    An error listed for devices, such as CUDA, must be raised at the call, with the listed type and message. An error
    listed for the CPU alone depends on values: it must have the CPU's type, and be raised at the latest at the wait for
    the work.
    """

    name = "errors"

    @classmethod
    def dtypes(cls, info: OpInfo) -> list[torch.dtype]:
        return [torch.float32] if info.error_inputs_func is not None else []

    def samples(self) -> list[SampleInput]:
        return []

    def run(self) -> Report:
        with seeds_free(), every_warning():
            seed(3, CPU)
            on_device = list(self.info.error_inputs_func(self.info, str(self.device)))
            on_cpu = list(self.info.error_inputs_func(self.info, "cpu"))
            by_message: dict[str, list[SampleInput]] = defaultdict(list)
            for case in on_cpu:
                by_message[case.error_regex].append(case.sample_input)
            for index, case in enumerate(on_device):
                with self.at(f"{index} of the device's"):
                    if self._raises_on_cpu(by_message[case.error_regex]):
                        self._must_raise(case)
            listed = {case.error_regex for case in on_device}
            for index, case in enumerate(on_cpu):
                if case.error_regex not in listed:
                    with self.at(f"{index} of the CPU's"):
                        self._must_agree(case.sample_input)
        return self.finish(len(on_device) + len(on_cpu))

    def _raises_on_cpu(self, same: list[SampleInput]) -> bool:
        """Return whether the CPU confirms the database about a call, judged by the next call of the same message."""
        side = self.side(same.pop(0), CPU) if same else None
        return side is None or side.outcome.error is not None

    def _must_raise(self, case: ErrorInput) -> None:
        self.report.compared += 1
        sample = case.sample_input
        run = lambda: self.info(sample.input, *sample.args, **sample.kwargs)  # noqa: E731
        outcome = Outcome(run, self.device)
        if outcome.error is None:
            self.fail("no exception", f"{case.error_type.__name__} {case.error_regex!r} is listed")
        elif not isinstance(outcome.error, case.error_type) or not re.search(case.error_regex, str(outcome.error)):
            expected = f"{case.error_type.__name__} {case.error_regex!r}"
            self.fail("other exception", f"{outcome.describe_error()}; {expected} is listed")
        elif outcome.is_late:
            self.fail("late exception", outcome.describe_error())

    def _must_agree(self, sample: SampleInput) -> None:
        self.report.compared += 1
        theirs = self.side(sample, CPU)
        ours = self.side(sample, self.device)
        if ours is None or theirs is None or theirs.outcome.error is None:
            return
        if type(ours.outcome.error) is not type(theirs.outcome.error):
            raised = "nothing" if ours.outcome.error is None else ours.outcome.describe_error()
            self.fail("other exception", f"{raised}; the CPU raises {theirs.outcome.describe_error()}")
