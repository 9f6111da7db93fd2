# SPDX-License-Identifier: BSD-3-Clause
"""Every operator that writes, with arguments that overlap: the device refuses and accepts what the CPU does."""

from __future__ import annotations

import functools

import pytest
import torch

from .overlaps import (
    Example,
    Probe,
    Recorder,
    examples_of,
    outcome,
    overlapping,
    probes_of,
    recorded_calls,
    refusals_of,
    writing_overloads,
)
from .samples import ALL_SAMPLES

CPU = torch.device("cpu")
# With indices that overlap these end the process on the CPU.
CRASHING = {
    "aten::adaptive_max_pool2d_backward",
    "aten::adaptive_max_pool3d_backward",
    "aten::max_pool2d_with_indices_backward",
    "aten::multilabel_margin_loss_backward",
    "aten::multilabel_margin_loss_forward",
    "aten::nll_loss_backward",
}


@functools.cache
def recorder() -> Recorder:
    return recorded_calls() if ALL_SAMPLES else recorded_calls(samples=4)


def outcome_on(device: torch.device, example: Example, probe: Probe) -> str:
    arguments = overlapping(example, probe, device)
    result = outcome(lambda: example.run(arguments))
    # What comes late is no refusal.
    late = outcome(lambda: torch.accelerator.synchronize(device))
    return result if late == "accepted" else f"{late} later"


@pytest.mark.parametrize("op", writing_overloads(), ids=str)
def test_overlaps_are_refused_where_the_cpu_refuses_them(device: torch.device, op: torch._ops.OpOverload) -> None:
    if op._schema.name in CRASHING:
        return
    refusals = refusals_of(op, recorder())
    wrong = []
    for example in list(examples_of(op, recorder()))[:2]:
        for probe in probes_of(example):
            if probe not in refusals:
                continue  # it fails for another reason
            cpu = outcome(lambda example=example, probe=probe: example.run(overlapping(example, probe, CPU)))
            if refusals[probe]:
                cpu = "refused"
            ours = outcome_on(device, example, probe)
            # A kernel that refuses on some of its ways only refuses when it runs.
            if ours != cpu and not (cpu == "refused" and not refusals[probe]) and cpu != "failed":
                wrong.append(f"{probe}: {ours}, on the CPU {cpu}")
    assert not wrong, wrong
