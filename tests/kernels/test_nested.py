# SPDX-License-Identifier: BSD-3-Clause
"""Attention of jagged nested tensors runs on the device: padded, attended and cut again."""

from __future__ import annotations

import pytest
import torch
from driver import test_nested as nested


@pytest.mark.parametrize("name", ["of itself", "causal, of other lengths"])
@pytest.mark.usefixtures("nothing_on_the_cpu")
def test_nothing_of_it_runs_on_the_cpu(device: torch.device, name: str) -> None:
    nested.test_it_equals_attention_of_each_sequence(device, name)


@pytest.mark.usefixtures("nothing_on_the_cpu")
def test_rows_that_do_not_fit_are_reported(device: torch.device) -> None:
    nested.test_what_does_not_fit_is_refused(device)
