# SPDX-License-Identifier: BSD-3-Clause
"""Gradients of results with respect to all arguments, from fixed gradients of the results."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.utils._pytree import tree_leaves

from torch_outboard.testing.database.calls import Copier, poison

from .harness import Check, Side
from .outcome import Outcome


def _as_made(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def gradients(
    check: Check, side: Side, lay_out: Callable[[torch.Tensor], torch.Tensor | None] = _as_made
) -> Outcome | None:
    """Compute the gradients of every input from fixed gradients of every output; None if there are none.

    `lay_out` lays out the incoming gradients, if it can.
    """
    call, outcome = side.call, side.outcome
    results = tree_leaves(call.process(outcome.value)) if call.process else outcome.tensors
    results = [
        tensor
        for tensor in results
        if isinstance(tensor, torch.Tensor) and tensor.requires_grad and tensor.layout == torch.strided
    ]
    inputs = [tensor for tensor in call.inputs if tensor.requires_grad]
    if not results or not inputs:
        return None
    generator = torch.Generator().manual_seed(7)
    copy = Copier(call.device)
    seeds = []
    try:
        for tensor in results:
            drawn = torch.randn(tensor.shape, dtype=tensor.dtype, generator=generator)
            seeds.append(copy(laid if (laid := lay_out(drawn)) is not None else drawn))
        if call.device.type != "cpu":
            poison(call.device)
    except Exception as error:  # as in Check.side
        check.fail("gradient: exception in the set-up", f"{type(error).__name__}: {str(error)[:600]}")
        return None
    return Outcome(lambda: torch.autograd.grad(results, inputs, seeds, allow_unused=True), call.device)


def compare_gradients(
    check: Check, ours: Side, theirs: Side, lay_out: Callable[[torch.Tensor], torch.Tensor | None] = _as_made
) -> None:
    expected, computed = gradients(check, theirs, lay_out), gradients(check, ours, lay_out)
    if expected is None or computed is None:
        if expected is not computed:
            check.fail("gradient: structure", "only one of the two has gradients")
        return
    check.report.gradients += 1
    if computed.fallback:
        check.fail("gradient: copy fallback", ", ".join(computed.fallback))
    if expected.error is not None or computed.error is not None:
        if expected.error is None:
            check.fail("gradient: exception", computed.describe_error())
        elif computed.error is None:
            check.fail("gradient: no exception", f"the CPU raises {expected.describe_error()}")
        return
    check.compare_results("gradient: ", computed, expected)
