# SPDX-License-Identifier: BSD-3-Clause
"""Errors that show only at the end of a process, or under an allocator that overwrites freed memory."""

from __future__ import annotations

import pytest

ATTACH = """
import sys, torch, torch_outboard
torch_outboard.attach(sys.argv[1])
device = torch_outboard.attached_driver().name
"""


@pytest.mark.parametrize("driver", ["sim", "examples.pure_python_driver:PythonDriver"])
def test_a_program_may_end_with_a_backward_pass(run_python, driver):
    # Autograd's thread drops the pass after backward() has returned; it aborted every
    # third process without the wait.
    code = ATTACH + "x = torch.randn(4, 4, device=device, requires_grad=True)\n(x @ x).sum().backward()\n"
    for _ in range(4):
        assert run_python(code, driver).stderr == ""


@pytest.mark.parametrize("call", ["torch.erfinv(x)", "torch._foreach_lgamma([x])"], ids=["operator", "list"])
def test_a_failed_build_may_be_the_last_thing_in_a_program(run_python, call):
    # The failure is kept for a second, by objects that torch's dispatcher
    # destroys after Python has ended.
    code = f"""
from torch_outboard.kernels import builder
def no_room(*arguments):
    raise OSError("no room")
builder._kernel = no_room
builder._keeps = lambda: False
x = torch.rand(2, 1, 2, 1, 3, dtype=torch.float64).to(device)
try:
    {call}
except OSError as error:
    print(error)
"""
    done = run_python(ATTACH + code, "tests.simt_drivers:DiscreteOpenCL")
    assert (done.stdout, done.stderr) == ("no room\n", "")


def test_results_of_a_kernel_with_several_outputs_live_long_enough(run_python):
    # torch's boxing drops the arguments before it takes the results, which are references to them.
    code = (
        ATTACH
        + """
values, labels = torch.randn(5, 7), torch.randint(0, 7, (5,))
there = values.to(device), labels.to(device)
for _ in range(50):
    loss, weight = torch.ops.aten.nll_loss_forward(*there, None, 1, -100)
    top, where = torch.topk(there[0], 3)
    torch.max(there[0], 1, out=(torch.empty(5, device=device), torch.empty(5, dtype=torch.long, device=device)))
assert loss.cpu() == torch.nn.functional.nll_loss(values, labels)
assert torch.equal(top.cpu(), values.topk(3)[0])
"""
    )
    assert run_python(code, "sim", env={"MALLOC_PERTURB_": "165"}).stderr == ""


@pytest.mark.parametrize("action", ["default", "error", "ignore"])
def test_warnings_that_nobody_waited_for_are_reported_at_the_end(run_python, action):
    boundaries, values = "torch.arange(8.0, device=device)[::2]", "torch.ones(3, device=device)"
    code = ATTACH + f"import warnings; warnings.simplefilter({action!r}); torch.searchsorted({boundaries}, {values})"
    errors = run_python(code, "sim", fresh=True).stderr
    assert errors.count("UserWarning: torch.searchsorted(): boundary tensor is") == (action != "ignore")


def test_without_threads_the_devices_are_waited_for(run_python):
    # The limit is not for root.
    code = """
import os, resource, threading, torch, torch_outboard
torch_outboard.attach("sim")
x = torch.randn(4, 4, device="sim", requires_grad=True)
(x @ x).sum().backward()
torch.sim.synchronize()
if os.geteuid() == 0:
    os.setresuid(65533, 65533, 65533)
resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
try:
    threading.Thread(target=print).start()
except RuntimeError:
    print("no threads")
"""
    done = run_python(code, fresh=True)
    assert (done.stdout, done.stderr) == ("no threads\n", "")
