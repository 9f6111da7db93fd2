# SPDX-License-Identifier: BSD-3-Clause
"""Entries that draw: the distribution is all that a device's numbers share with the CPU's."""

from __future__ import annotations

import torch
from torch.testing._internal.opinfo.core import SampleInput

from torch_outboard.testing.database.calls import CPU
from torch_outboard.testing.database.compare import value_difference

from .gradients import gradients
from .harness import SEED, Check, Side
from .lists import NO_MEAN
from .outcome import Outcome

MEAN_SEEDS = tuple(range(40, 56))


def same_values(ours: Outcome, theirs: Outcome) -> bool:
    pairs = zip(ours.tensors, theirs.tensors, strict=True)
    return all(value_difference(a.detach().cpu(), b.detach().cpu(), None) is None for a, b in pairs)


class Draws:
    """The questions about one sample of an entry that draws, for the check that tries it."""

    def __init__(self, check: Check, sample: SampleInput) -> None:
        self.check = check
        self.sample = sample

    def _outcome(self, device: torch.device, number: int) -> Outcome | None:
        side = self.check.side(self.sample, device, number=number)
        return None if side is None else side.outcome

    def depend_on_seed(self, theirs: Outcome) -> bool:
        # Few elements of few values may agree by chance, so several seeds are asked.
        others = (self._outcome(CPU, number) for number in (SEED + 1, *MEAN_SEEDS))
        return not all(outcome is not None and same_values(outcome, theirs) for outcome in others)

    def compare(self, ours: Side, theirs: Side) -> None:
        self.check.compare(ours, theirs, values=False)
        again = self._outcome(self.check.device, SEED)
        if again is None:
            return
        if again.error is not None:
            self.check.fail("exception", again.describe_error())
            return
        if not same_values(ours.outcome, again):
            self.check.fail("not reproducible", "the same seed gave other numbers")
        others = [outcome for number in MEAN_SEEDS if (outcome := self._outcome(self.check.device, number)) is not None]
        if all(same_values(ours.outcome, outcome) for outcome in others):
            self.check.fail("seed ignored", "every seed gave the same numbers")
        if self.check.info.full_name not in NO_MEAN:
            self._compare_means(others)
        if self.check.has_gradients:
            self._compare_gradients()

    def _compare_means(self, ours: list[Outcome]) -> None:
        """Compare the mean over several seeds with the CPU's; a distance of six standard errors is a failure."""
        theirs = [outcome for number in MEAN_SEEDS if (outcome := self._outcome(CPU, number)) is not None]
        pools = []
        for outcomes in (ours, theirs):
            values = [tensor.detach().cpu().reshape(-1) for outcome in outcomes for tensor in outcome.tensors]
            pool = torch.cat([torch.view_as_real(v).reshape(-1) if v.is_complex() else v for v in values]).double()
            pools.append(pool[pool.isfinite()])
        device_pool, expected = pools
        if min(len(device_pool), len(expected)) < 100:
            return
        error = (device_pool.var() / len(device_pool) + expected.var() / len(expected)).sqrt().item()
        if abs(device_pool.mean() - expected.mean()).item() > 6 * error:
            self.check.fail("distribution", f"mean {device_pool.mean():.4g}, the CPU's is {expected.mean():.4g}")

    def _compare_gradients(self) -> None:
        outcomes = []
        for _ in range(2):
            side = self.check.side(self.sample, self.check.device)
            outcome = None if side is None else gradients(self.check, side)
            if outcome is None:
                return
            if outcome.error is not None:
                self.check.fail("gradient: exception", outcome.describe_error())
                return
            outcomes.append(outcome)
        self.check.report.gradients += 1
        for a, b in zip(outcomes[0].tensors, outcomes[1].tensors, strict=True):
            if a.device != self.check.device:
                self.check.fail("gradient: wrong device", f"a gradient is on {a.device}")
            elif value_difference(a.cpu(), b.cpu(), None) is not None:
                self.check.fail("gradient: not reproducible", "the same seed gave other numbers")
