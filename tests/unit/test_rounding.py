# SPDX-License-Identifier: BSD-3-Clause
"""A driver's own kernels may round differently from the CPU's; if the host's kernels run, results are the CPU's."""

from __future__ import annotations

import pytest

from examples.digits import Run, failures_of
from torch_outboard.testing import run_driver_tests

from .contract import ROOT


def test_the_driver_tests_allow_what_native_kernels_round(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tests")
    compared = "test_models.py or test_operators.py or test_attention.py"
    run_driver_tests("unit.rounding:RoundingDriver", arguments=("-q", "-k", compared))


@pytest.mark.parametrize(
    ("change", "is_rounding", "failure"),
    [
        ({}, False, None),
        ({"losses": [2.0, 1.0, 0.5, 0.4, 0.3, 0.25]}, True, None),
        ({"losses": [2.0, 1.0, 0.5, 0.4, 0.3, 0.25]}, False, "the losses of the first 6 steps differ"),
        ({"losses": [2.1, 1.0, 0.5, 0.4, 0.3, 0.2]}, True, "the losses of the first 5 steps differ"),
        ({"losses": [2.0, float("nan"), 0.5, 0.4, 0.3, 0.2]}, True, "the losses of the first 5 steps differ"),
        ({"accuracy": 0.9}, True, "held-out accuracy 0.9000 is below"),
    ],
)
def test_the_digits_are_judged_by_accuracy_and_the_first_steps(change, is_rounding, failure):
    reference = Run(None, [2.0, 1.0, 0.5, 0.4, 0.3, 0.2], 0.98)
    run = Run(None, **{"losses": reference.losses, "accuracy": 0.98, **change})
    failures = failures_of(run, reference, is_rounding=is_rounding)
    assert len(failures) == (failure is not None) and all(text.startswith(failure) for text in failures)
