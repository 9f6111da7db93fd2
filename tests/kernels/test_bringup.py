# SPDX-License-Identifier: BSD-3-Clause
"""The figures of a bring-up are measured if kernels run; the machine decides their values."""

from __future__ import annotations

import pytest
import torch

from torch_outboard.compile.generators import generators
from torch_outboard.kernels import bringup
from torch_outboard.kernels.bringup import SIDE, Figure, bar_of_side, figures


def test_figures(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bringup, "_FIRST", bringup._FIRST[:2])  # each takes a tenth of a second and more
    all_figures = list(figures(device, side=32, rounds=1))
    shares = all_figures[1:3]
    assert all(share.bar is not None and 0 < share.bar < full for share, full in zip(shares, (0.85, 0.8), strict=True))
    assert [(figure.unit, None if figure in shares else figure.bar, figure.is_least) for figure in all_figures] == [
        ("GB/s", None, False),
        ("", None, True),
        ("", None, True),
        *[("elements", 0, False), ("TFLOP/s", None, False)] * len(generators().eager().dialect.units),
        ("µs", None, False),
        ("µs", 1.2, False),
        ("ms", 150, False),
    ]
    differences = ("elements", "µs")
    assert all(0 < figure.value < 1e6 for figure in all_figures if figure.bar is None or figure.unit not in differences)
    assert all(figure.value == 0 for figure in all_figures if figure.unit == "elements")


def test_bars() -> None:
    assert Figure("a", 0.86, "", 0.85, is_least=True).is_reached and not Figure("a", 0.84, "", 0.85, True).is_reached
    assert Figure("b", 149, "ms", 150).is_reached and not Figure("b", 151, "ms", 150).is_reached
    assert Figure("c", 1, "GB/s").is_reached


def test_small_matrices_have_bars_of_their_own() -> None:
    """With a few microseconds for each launch, no kernel reaches the bandwidth of a copy of the same length."""
    seconds = {"copy": [4e-6, 5e-6, 9e-6], "add of few": [5e-6, 5e-6, 6e-6]}
    assert bar_of_side(0.85, SIDE, seconds, "add") == bar_of_side(0.85, 2 * SIDE, seconds, "add") == 0.85
    assert bar_of_side(0.85, 512, seconds, "add") == pytest.approx(0.85 / 1.85)
    # What takes no longer than the launch is reached, and what takes far longer isn't.
    assert 5e-6 / (5e-6 + 5e-6) > bar_of_side(0.85, 512, seconds, "add") > 5e-6 / 20e-6
    # The copy takes long: as for large ones.
    assert bar_of_side(0.85, 4095, {"copy": [1e-3], "add of few": [5e-6]}, "add") == pytest.approx(0.85, rel=0.01)
