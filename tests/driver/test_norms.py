# SPDX-License-Identifier: BSD-3-Clause
"""RMS norms, which are one operator on devices with generated kernels, and parts elsewhere."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad

import torch_outboard

from .support import assert_same, generates_kernels

MIXED = "ignore:Mismatch dtype between input and"
SHAPE = (4, 3, 24)


def given(dtype=torch.float32):
    return torch.randn(SHAPE, dtype=torch.double).to(dtype), torch.rand(24, dtype=torch.double).to(dtype) + 0.5


def same(ours, expected, device, tolerance=1e-5):
    for result, wanted in zip(ours, expected, strict=True):
        assert_same(result.detach(), wanted.detach(), device, tolerance=tolerance)


def test_a_norm_and_its_gradients_are_an_operator_each_if_kernels_are_generated(device):
    module = torch.nn.RMSNorm(24).to(device)
    x = torch.randn(SHAPE).to(device).requires_grad_()
    torch_outboard.reset_coverage()
    module(x).sum().backward()
    calls = torch_outboard.coverage()
    whole = 1 if generates_kernels(device) else 0
    assert calls.calls("aten::_fused_rms_norm") == calls.calls("aten::_fused_rms_norm_backward") == whole, calls
    assert (calls.calls("aten::rsqrt") == 0) == bool(whole), calls


@pytest.mark.parametrize("eps", [None, 0.1])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_values_and_gradients(device, dtype, eps):
    host, tolerance = given(dtype), {torch.float64: 1e-12, torch.float32: 1e-5}.get(dtype, 3e-2)
    for weights in (host[1:], ()):

        def normed(place, weights=weights):
            leaves = [tensor.to(place).requires_grad_() for tensor in (host[0], *weights)]
            result = F.rms_norm(leaves[0], [24], *leaves[1:], eps=eps)
            return [result, *torch.autograd.grad(result.square().sum(), leaves)]

        same(normed(device), normed("cpu"), device, tolerance)


def test_second_derivatives(device):
    def of(place):
        x, weight = (tensor.to(place).requires_grad_() for tensor in given())
        first = torch.autograd.grad(F.rms_norm(x, [24], weight).pow(3).sum(), [x, weight], create_graph=True)
        return torch.autograd.grad(sum(grad.square().sum() for grad in first), [x, weight])

    torch.manual_seed(0)
    ours = of(device)
    torch.manual_seed(0)
    same(ours, of("cpu"), device, 1e-3)


def test_functional_transforms(device):
    host, weight = given()

    def of(place):
        x, w = host.to(place), weight.to(place)
        yield torch.func.vmap(lambda row: F.rms_norm(row, [24], w))(x)
        yield torch.func.vmap(
            torch.func.grad(lambda row, by: F.rms_norm(row, [24], by).square().sum(), (0, 1)), (0, None)
        )(x, w)[1]
        yield torch.func.jvp(lambda row: F.rms_norm(row, [24], w), (x,), (torch.ones_like(x),))[1]
        yield torch.func.jacrev(lambda row: F.rms_norm(row, [24], w))(x[0, 0])
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(w, torch.ones_like(w))
            yield forward_ad.unpack_dual(F.rms_norm(x, [24], dual)).tangent

    same(list(of(device)), list(of("cpu")), device, 1e-4)


@pytest.mark.filterwarnings(MIXED)
@pytest.mark.parametrize("dtypes", [(torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)], ids=str)
def test_a_weight_of_another_type(device, dtypes):
    x, weight = (tensor.to(dtype) for tensor, dtype in zip(given(), dtypes, strict=True))

    def normed(place):
        leaves = [tensor.to(place).detach().requires_grad_() for tensor in (x, weight)]
        result = F.rms_norm(leaves[0], [24], leaves[1])
        return [result, *torch.autograd.grad(result.square().sum(), leaves)]

    same(normed(device), normed("cpu"), device, 5e-2)


@pytest.mark.parametrize("layout", ["channels last", "transposed", "expanded", "cropped"])
def test_layouts(device, layout):
    host = torch.randn(2, 6, 4, 4)
    host = {
        "channels last": lambda: host.to(memory_format=torch.channels_last),
        "transposed": lambda: host.transpose(1, 3),
        "expanded": lambda: host[:1].expand(2, 6, 4, 4),
        "cropped": lambda: host[:, 1:, 1:, ::2],
    }[layout]()

    def normed(place):
        x = host.to(place).detach().requires_grad_()
        result = F.rms_norm(x, x.shape[2:])
        return [result, *torch.autograd.grad(result.pow(3).sum(), x)]

    ours, expected = normed(device), normed("cpu")
    same(ours, expected, device, 1e-4)
    assert ours[0].stride() == expected[0].stride()


@pytest.mark.parametrize("shape", [(0, 24), (3, 0)], ids=str)
def test_nothing(device, shape):
    def normed(place):
        x, weight = (torch.zeros(size, device=place, requires_grad=True) for size in (shape, shape[1:]))
        result = F.rms_norm(x, shape[1:], weight)
        return [result, *torch.autograd.grad(result.sum(), [x, weight])]

    same(normed(device), normed("cpu"), device)


@pytest.mark.parametrize(
    ("shape", "weight", "dtype"),
    [
        ([23], None, torch.float32),
        ([], None, torch.float32),
        ([24], [3, 24], torch.float32),
        ([2, 4, 3, 24], None, torch.float32),
        ([24], None, torch.int64),
    ],
    ids=str,
)
def test_wrong_arguments_raise_what_the_cpu_raises(device, shape, weight, dtype):
    raised = []
    for place in (device, "cpu"):
        x = torch.ones(SHAPE, dtype=dtype, device=place)
        with pytest.raises((RuntimeError, ValueError)) as error:
            F.rms_norm(x, shape, None if weight is None else torch.ones(weight, dtype=dtype, device=place))
        raised.append((type(error.value), str(error.value).splitlines()[0]))
    assert raised[0] == raised[1]
