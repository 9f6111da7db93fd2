# SPDX-License-Identifier: BSD-3-Clause
"""Fused optimizers on devices that cannot follow addresses: kernels are generated for each tensor of the lists."""

from __future__ import annotations

import pytest

# A driver in Python, whose kernels are built by the C compiler. Nothing may run on the CPU.
HEAD = """
import torch, torch_outboard
torch_outboard.attach("examples.own_kernels:OwnKernelsDriver")
from torch_outboard.kernels import plan_statistics
device = torch.device("own_kernels")
assert not torch.get_device_module("own_kernels").get_device_properties(0).follows_addresses

def trained(place, make, steps=3, scale=None):
    torch.manual_seed(0)
    given = [torch.randn(size) for size in ((3, 4), (5,), (7,), (2, 6))]
    parameters = [tensor.clone().to(place).requires_grad_() for tensor in given]
    optimizer = make(parameters)
    for step in range(steps):
        for number, tensor in enumerate(parameters):
            tensor.grad = (torch.arange(tensor.numel()).view(tensor.shape) - number - step * 0.5).to(place)
        optimizer.param_groups[0]["lr"] = 0.05 / (step + 1)
        optimizer.step()
    return [tensor.detach().cpu() for tensor in parameters]
"""

OPTIMIZERS = {
    "SGD": "lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.01, fused=True)",
    "Adam": "lambda p: torch.optim.Adam(p, 0.1, amsgrad=True, weight_decay=0.01, fused=True)",
    "AdamW": "lambda p: torch.optim.AdamW(p, 0.1, maximize=True, fused=True)",
    "Adagrad": "lambda p: torch.optim.Adagrad(p, 0.1, fused=True)",
}


@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_fused_optimizers(run_python, name):
    run_python(
        HEAD
        + f"""
make = {OPTIMIZERS[name]}
wanted = trained("cpu", make)
ours = trained(device, make)
for result, reference in zip(ours, wanted, strict=True):
    torch.testing.assert_close(result, reference, rtol=1e-5, atol=1e-6)
# Rates are read at each call, and lists of all lengths share plans.
built = plan_statistics()
trained(device, make, steps=5)
assert plan_statistics() == built, (plan_statistics(), built)
""",
        env={"OUTBOARD_FALLBACK": "error", "OUTBOARD_KERNEL_CACHE_DIR": ""},
    )


def test_the_check_of_a_scaler(run_python):
    run_python(
        HEAD
        + """
def checked(place, values):
    grads = [torch.tensor(value, device=place) for value in values]
    found = torch.zeros((), device=place)
    torch._amp_foreach_non_finite_check_and_unscale_(grads, found, torch.full((), 0.5, device=place))
    return [found.cpu(), *(grad.cpu() for grad in grads)]

for values in ([[1.0, 2.0], [3.0]], [[1.0, float("inf")], [3.0]], [[1.0], [float("nan")]], [[1.0]]):
    for result, wanted in zip(checked(device, values), checked("cpu", values), strict=True):
        torch.testing.assert_close(result, wanted, equal_nan=True)
x = torch.ones(2, device=device)
for call in (lambda: torch._fused_adam_([x, x], [x], [x, x], [x, x], [], [x[0], x[0]], lr=0.1, beta1=0.9, beta2=0.9,
                                        weight_decay=0.0, eps=0.1, amsgrad=False, maximize=False),):
    try:
        call()
    except (RuntimeError, IndexError):
        pass
    else:
        raise AssertionError("lists of two lengths")
""",
        env={"OUTBOARD_FALLBACK": "error", "OUTBOARD_KERNEL_CACHE_DIR": ""},
    )
