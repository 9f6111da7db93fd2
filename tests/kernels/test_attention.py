# SPDX-License-Identifier: BSD-3-Clause
"""Attention and its gradients run as one generated kernel, in both schedules."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import torch_outboard
from torch_outboard import _C
from torch_outboard.kernels import builder, refused_operators
from torch_outboard.kernels.plans import lower
from torch_outboard.kernels.refusal import CallRefusal
from torch_outboard.kernels.templates import attention
from torch_outboard.testing.database.calls import poison

from .device_kernels import UNUSED

WHOLE = "aten::_scaled_dot_product_fused_attention_overrideable"
BOUNDS = {torch.float32: 2e-5, torch.bfloat16: 4e-2, torch.float16: 5e-3}
r = torch.randn


# A driver's own kernels for the whole, and for products, come first.
ON_DEVICE = ("native", "generated")


def calls() -> int:
    return sum(torch_outboard.coverage().calls(WHOLE, provider) for provider in ON_DEVICE)


def check(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None = None,
    *,
    device: torch.device,
    is_whole: bool = True,
    **options: Any,
) -> list[torch.Tensor]:
    """Compare result and gradients with those in float64."""
    grad = r(*query.shape[:-1], value.shape[-1]).to(query.dtype)

    def differentiate(inputs: list[torch.Tensor], mask: torch.Tensor | None, grad: torch.Tensor) -> list[torch.Tensor]:
        inputs = [tensor.detach().requires_grad_() for tensor in inputs]
        result = F.scaled_dot_product_attention(*inputs, attn_mask=mask, **options)
        return [result.detach(), *torch.autograd.grad(result, inputs, grad)]

    inputs, bound = [query, key, value], BOUNDS[query.dtype]
    is_added = mask is not None and mask.is_floating_point()
    expected = differentiate([tensor.double() for tensor in inputs], mask.double() if is_added else mask, grad.double())
    # What strides an argument has, `to` keeps where they are dense, as
    # those of heads within rows are.
    ours = [tensor.to(device) for tensor in inputs], None if mask is None else mask.to(device), grad.to(device)
    poison(device)
    torch_outboard.reset_coverage()
    results = differentiate(*ours)
    assert calls() == is_whole, torch_outboard.coverage()
    assert not [row for row in torch_outboard.coverage() if row.provider not in ON_DEVICE]
    for result, wanted in zip(results, expected, strict=True):
        torch.testing.assert_close(result.cpu().double(), wanted, atol=bound, rtol=bound, equal_nan=True)
    return results


def heads(batch: int, heads: int, rows: int, size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return heads that lie within the rows of a batch."""
    return r(batch, rows, heads, size).to(dtype).transpose(1, 2)


def test_one_plan_serves_all_lengths(device: torch.device) -> None:
    check(heads(2, 3, 70, 24), heads(2, 3, 130, 24), heads(2, 3, 130, 24), device=device)
    before = _C.built_plans()
    for queries, keys in ((7, 9), (200, 33), (64, 96), (65, 97)):
        check(*(heads(2, 3, length, 24) for length in (queries, keys, keys)), device=device)
    assert _C.built_plans() == before
    # Another plan is for one query, which a model has that generates.
    check(r(2, 3, 1, 24), r(2, 3, 300, 24), r(2, 3, 300, 24), device=device)


def test_causal_with_grouped_heads_in_halves(device: torch.device) -> None:
    for queries, keys in ((100, 70), (70, 100), (300, 300)):
        inputs = (heads(2, size, length, 40, torch.bfloat16) for size, length in ((4, queries), (2, keys), (2, keys)))
        check(*inputs, is_causal=True, enable_gqa=True, device=device)
    inputs = (r(1, 2, 9, 8).half() for _ in range(3))
    check(*inputs, r(9, 9).half(), device=device)


def test_masks(device: torch.device) -> None:
    query, key, value = heads(2, 4, 100, 16), heads(2, 4, 120, 16), heads(2, 4, 120, 30)
    mask = torch.rand(2, 1, 100, 120) > 0.5
    mask[0, :, 5:90] = False
    result, *_ = check(query, key, value, mask, scale=0.3, device=device)
    assert torch.equal(result[0, :, 5:90], torch.zeros_like(result[0, :, 5:90])), "for which no key is left"
    check(query, key, value, r(120, 100).t(), device=device)


@pytest.mark.long
def test_large_heads(device: torch.device) -> None:
    check(r(1, 2, 70, 256), r(1, 2, 80, 256), r(1, 2, 80, 250), device=device)


def test_the_schedule_for_groups_of_items(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """This tests one of its texts; `make stress` tests the others. The longest tiles of 64 heads come first."""
    monkeypatch.setattr(lower, "is_cpu", lambda device: False)
    # With a factor that no other test has, since plans are kept.
    inputs = heads(2, 36, 70, 64), *(heads(2, 18, 130, 64) for _ in range(2))
    check(*inputs, is_causal=True, scale=0.31, enable_gqa=True, device=device)


def test_infinities_and_nans_stay_where_they_are(device: torch.device) -> None:
    query, key, value = (r(1, 1, 20, 24) for _ in range(3))
    query[0, 0, 3, 0], value[0, 0, 4, 1] = float("nan"), float("inf")
    check(query, key, value, device=device)


def test_it_makes_no_matrix_of_queries_by_keys(device: torch.device) -> None:
    module, size = torch.get_device_module(device), 2048
    inputs = [r(1, 1, size, 24, device=device, requires_grad=True) for _ in range(3)]
    before = module.memory_allocated(device)
    module.reset_peak_memory_stats(device)
    F.scaled_dot_product_attention(*inputs).sum().backward()
    assert module.max_memory_allocated(device) - before < size * size


def test_a_result_is_always_the_same(device: torch.device) -> None:
    inputs = [r(2, 3, 200, 24, device=device, requires_grad=True) for _ in range(3)]
    results = [torch.autograd.grad(F.scaled_dot_product_attention(*inputs).square().sum(), inputs) for _ in range(2)]
    assert all(torch.equal(result, again) for result, again in zip(*results, strict=True))


def test_only_what_needs_a_gradient_gets_one(device: torch.device) -> None:
    query, key, value = (r(2, 3, 20, 24) for _ in range(3))
    ours = query.to(device), key.to(device).requires_grad_(), value.to(device)
    (grad,) = torch.autograd.grad(F.scaled_dot_product_attention(*ours).sum(), ours[1])
    key.requires_grad_()
    (expected,) = torch.autograd.grad(F.scaled_dot_product_attention(query, key, value).sum(), key)
    torch.testing.assert_close(grad.cpu(), expected)


def test_other_calls_take_the_composite_form(device: torch.device) -> None:
    x = r(1, 2, 5, 8)
    check(*(r(1, 2, 5, 257) for _ in range(3)), is_whole=False, device=device)
    with sdpa_kernel(SDPBackend.MATH):
        check(x, x, x, is_whole=False, device=device)
    torch_outboard.reset_coverage()
    ours = x.to(device)
    mask = r(5, 1, device=device, requires_grad=True)
    F.scaled_dot_product_attention(ours, ours, ours, attn_mask=mask).sum().backward()
    assert mask.grad is not None
    F.scaled_dot_product_attention(ours, ours, ours, dropout_p=1.0)
    F.scaled_dot_product_attention(*[ours.double()] * 3)
    assert F.scaled_dot_product_attention(ours, ours[:, :, :0], ours[:, :, :0]).shape == x.shape
    assert calls() == 0, torch_outboard.coverage()
    # Torch 2.15 adds a dimension to three before it asks, earlier ones don't.
    torch.testing.assert_close(
        F.scaled_dot_product_attention(*[ours[0]] * 3).cpu(), F.scaled_dot_product_attention(*[x[0]] * 3)
    )
    with pytest.raises(RuntimeError, match="Expected size for first two dimensions"):
        F.scaled_dot_product_attention(ours, ours[:, :, :, :4], ours)


@pytest.mark.parametrize(
    "error", [KeyError("WORD"), CallRefusal("generated kernels have no WORD [plan]"), NotImplementedError("WORD")]
)
def test_a_failing_template_is_reported(
    error: Exception, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of the package is no refusal: the result is right, and who reads warnings knows why it takes long."""

    def fails(*arguments: Any) -> None:
        raise error

    is_fault = isinstance(error, KeyError)
    message = f"failed while generating a kernel for {WHOLE} .building its plan raised KeyError: 'WORD'"
    monkeypatch.setattr(attention, "_attention", fails)
    monkeypatch.setattr(builder, "_keeps", lambda: False)
    # A head's size that no other test has, so that no plan is known.
    inputs = [heads(2, 3, 9, 14) for _ in range(3)]
    with pytest.warns(RuntimeWarning, match=message) if is_fault else contextlib.nullcontext():
        ours = F.scaled_dot_product_attention(*(tensor.to(device) for tensor in inputs))
    torch.testing.assert_close(ours.cpu(), F.scaled_dot_product_attention(*inputs))


@pytest.mark.filterwarnings(f"ignore:{UNUSED}")
def test_what_does_not_compile_is_made_of_parts(device: torch.device, change_texts: Any) -> None:
    change_texts(lambda name, code: code.replace(b"score", b"@") if WHOLE in name else code)
    # A head's size that no other test has, so that no plan is known.
    half = torch.float16
    grouped = [heads(2, 4, 9, 12, half), heads(2, 2, 11, 12, half), heads(2, 2, 11, 20, half)]
    check(*grouped, is_causal=True, enable_gqa=True, device=device)
    equal = [heads(2, 3, 7, 12) for _ in range(3)]
    mask = torch.rand(7, 7) > 0.3
    mask[2] = False
    check(*equal, mask, scale=0.3, device=device)
    check(*equal, r(3, 7, 7), device=device)
    reasons = [reason for op, reason in refused_operators() if op == WHOLE]
    assert any("program_build" in reason for reason in reasons), reasons
    assert any(op == f"{WHOLE}_backward" and "program_build" in reason for op, reason in refused_operators())


def test_the_workaround_is_there_where_torch_needs_it() -> None:
    from torch_outboard._compat.torch_2_11 import needs_attention_backward

    minor = tuple(map(int, torch.__version__.split(".")[:2]))
    if minor != (2, 12):  # which is asked at run time
        assert needs_attention_backward() == (minor == (2, 11)), "torch_outboard/_compat/torch_2_11.py can go"


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(32, 4, batch_first=True)
        self.out = nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.inner(x, x, x, need_weights=False)[0])


@pytest.mark.parametrize("is_compiled", [False, pytest.param(True, marks=pytest.mark.long)], ids=["eager", "compiled"])
def test_a_layer_trains(is_compiled: bool, device: torch.device) -> None:
    def train(model: nn.Module, inputs: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        losses = []
        for _ in range(3):
            loss = F.mse_loss(model(inputs), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach().cpu())
        return torch.stack(losses)

    model, inputs, wanted = Layer(), r(2, 20, 32), r(2, 20, 8)
    ours = copy.deepcopy(model).to(device)
    torch_outboard.reset_coverage()
    losses = train(torch.compile(ours) if is_compiled else ours, inputs.to(device), wanted.to(device))
    assert calls() == 3
    assert torch_outboard.coverage().calls(f"{WHOLE}_backward", "generated") == 3
    torch.testing.assert_close(losses, train(model, inputs, wanted))
