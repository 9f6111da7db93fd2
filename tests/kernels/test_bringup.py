# SPDX-License-Identifier: BSD-3-Clause
"""The figures of a bring-up are measured where kernels run; what they are is the machine's."""

from __future__ import annotations

import pytest
import torch

from torch_outboard.kernels import bringup
from torch_outboard.kernels.bringup import Figure, figures


def test_figures(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bringup, "_FIRST", bringup._FIRST[:2])  # each takes a tenth of a second and more
    found = list(figures(device, side=32, rounds=1))
    assert [(one.unit, one.bar, one.is_least) for one in found] == [
        ("GB/s", None, False),
        ("", 0.85, True),
        ("", 0.8, True),
        ("µs", None, False),
        ("µs", 1.2, False),
        ("ms", 150, False),
    ]
    assert all(0 < one.value < 1e6 for one in found if one.bar != 1.2)  # that is a difference


def test_bars() -> None:
    assert Figure("a", 0.86, "", 0.85, is_least=True).is_reached and not Figure("a", 0.84, "", 0.85, True).is_reached
    assert Figure("b", 149, "ms", 150).is_reached and not Figure("b", 151, "ms", 150).is_reached
    assert Figure("c", 1, "GB/s").is_reached
