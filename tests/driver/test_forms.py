# SPDX-License-Identifier: BSD-3-Clause
"""Operators whose CPU kernel is right only for some strides of its inputs or outputs."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

LAYOUTS = {
    "transposed": lambda t: t.transpose(0, -1).contiguous().transpose(0, -1),
    "first channels": lambda t: torch.cat([t, t], 1)[:, : t.shape[1]],
    "cropped": lambda t: functional.pad(t, (1, 2, 2, 1))[:, :, 2:-1, 1:-2],
    "every other": lambda t: t.repeat_interleave(2, -1)[..., ::2],
    "channels last, permuted": lambda t: t.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2),
}


def assert_close(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.cpu(), b)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=list(LAYOUTS))
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_takes_any_layout(device, layout, training):
    def run(where):
        torch.manual_seed(0)
        module = nn.BatchNorm2d(3)
        x = torch.randn(4, 3, 5, 6)
        module.train(training).to(where)
        x = x.to(where).requires_grad_()
        y = module(layout(x))
        (y**3).sum().backward()
        return y, module.running_mean, module.running_var, x.grad, module.weight.grad, module.bias.grad

    assert_close(run(device), run("cpu"))


def test_batch_norm_of_a_transposed_input_trains_to_the_cpus_losses(device):
    def losses(where):
        torch.manual_seed(0)
        linear, norm = nn.Linear(6, 10), nn.BatchNorm1d(10)
        x, target = torch.randn(8, 12, 6), torch.randn(8, 10, 12)
        linear, norm, x, target = linear.to(where), norm.to(where), x.to(where), target.to(where)
        optimizer = torch.optim.SGD([*linear.parameters(), *norm.parameters()], 0.1)
        for _ in range(4):
            optimizer.zero_grad()
            loss = functional.mse_loss(norm(linear(x).transpose(1, 2)), target)
            loss.backward()
            optimizer.step()
            yield loss.detach()

    assert_close(list(losses(device)), list(losses("cpu")))


@pytest.mark.parametrize("name", ["log_softmax", "softmax"])
def test_a_softmax_whose_gradient_is_transposed(device, name):
    """The loss of every CTC model makes such a gradient."""

    def gradient(where):
        torch.manual_seed(0)
        x, weight = torch.randn(7, 4, 5), torch.randn(4, 7, 5)
        x = x.to(where).requires_grad_()
        y = getattr(x, name)(-1).transpose(0, 1)
        (y * weight.to(where)).sum().backward()
        z = getattr(x.detach().transpose(0, 2), name)(1)
        return x.grad, y.detach(), z

    assert_close(gradient(device), gradient("cpu"))


def test_a_ctc_model_gets_the_cpus_gradients(device):
    def gradient(where):
        torch.manual_seed(0)
        x, targets = torch.randn(3, 9, 6), torch.randint(1, 6, (3, 4))
        lengths = torch.tensor([9, 9, 9]), torch.tensor([4, 4, 4])
        x = x.to(where).requires_grad_()
        loss = functional.ctc_loss(x.log_softmax(-1).transpose(0, 1), targets.to(where), *lengths)
        loss.backward()
        return loss.detach(), x.grad

    assert_close(gradient(device), gradient("cpu"))
