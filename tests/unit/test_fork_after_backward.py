# SPDX-License-Identifier: BSD-3-Clause
"""A forked child runs backward passes on the device, whatever its parent has run on the CPU."""

from __future__ import annotations

import pytest

from torch_outboard.testing.plugin import RunPython


@pytest.mark.parametrize(("imports", "attaches"), [("before", "before"), ("before", "after"), ("after", "after")])
def test_a_child_of_a_parent_with_a_backward_pass(run_python: RunPython, imports: str, attaches: str) -> None:
    run_python(
        """
import os, sys, torch
imports, attaches = sys.argv[1:]
w = torch.ones(3, requires_grad=True)
(w * 2).sum().backward()
if imports == "before":
    import torch_outboard
if attaches == "before":
    torch_outboard.attach("sim")
if os.fork() == 0:
    import torch_outboard
    if attaches == "after":
        torch_outboard.attach("sim")
    (w * 2).sum().backward()
    x = torch.ones(3, device="sim:1", requires_grad=True)
    (x * 2).sum().backward()
    assert x.grad.tolist() == [2.0] * 3

    class Reentrant(torch.autograd.Function):
        @staticmethod
        def forward(ctx, given):
            return given * 2

        @staticmethod
        def backward(ctx, grad):
            inner = torch.ones(3, device="sim", requires_grad=True)
            with torch.enable_grad():
                (inner * 3).sum().backward()
            return grad * inner.grad[0].to(grad.device)

    y = torch.ones(3, device="sim", requires_grad=True)
    Reentrant.apply(y).sum().backward()
    assert y.grad.tolist() == [3.0] * 3
    print("trained", flush=True)
    os._exit(0)
assert os.wait()[1] == 0
""",
        imports,
        attaches,
        fresh=True,
    )
