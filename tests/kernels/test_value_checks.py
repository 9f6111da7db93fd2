# SPDX-License-Identifier: BSD-3-Clause
"""Generated kernels report wrong values when the host's do."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from driver import test_value_checks as checks
from driver.value_checks import AT_CALL, AT_WAIT

from torch_outboard.kernels.plans import trace
from torch_outboard.kernels.refusal import OperatorRefusal

aten = torch.ops.aten


@pytest.mark.parametrize("name", AT_CALL)
@pytest.mark.database
def test_it_is_raised_at_the_call(device: torch.device, name: str) -> None:
    checks.test_it_is_raised_at_the_call(device, name)


@pytest.mark.parametrize("name", AT_WAIT)
@pytest.mark.database
def test_it_is_raised_at_the_next_wait(device: torch.device, name: str) -> None:
    checks.test_it_is_raised_at_the_next_wait(device, name)


def test_a_check_that_torch_takes_for_dead_code_is_refused() -> None:
    """Without the refusal, its plan would be of no kernels, and say nothing."""
    empty = torch.fx.symbolic_trace(lambda x: ())
    empty.graph.eliminate_dead_code()
    traced: Any = SimpleNamespace(graph=empty)
    for operator, is_refused in ((aten._assert_async.default, True), (aten.zero_.default, False)):
        call: Any = SimpleNamespace(operator=operator)
        with pytest.raises(OperatorRefusal) if is_refused else nullcontext():
            trace._check_has_effect(call, traced)
