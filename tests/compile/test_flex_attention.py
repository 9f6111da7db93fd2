# SPDX-License-Identifier: BSD-3-Clause
"""torch.nn.attention.flex_attention, eager and compiled, against scores in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from torch_outboard._compat.flex_attention import MODULE, needs_accept_device

flex = pytest.importorskip(MODULE)

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")

LENGTH = 40
WAYS = {"eager": lambda: flex.flex_attention, "compiled": lambda: torch.compile(flex.flex_attention)}


def made(device: torch.device, heads: int = 4, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Return queries, keys and values that require gradients, and a bias for each head."""
    shapes = [(2, 4, LENGTH, 16), (2, heads, LENGTH, 16), (2, heads, LENGTH, 16), (4,)]
    return [torch.randn(shape, dtype=dtype).to(device).requires_grad_() for shape in shapes]


def expected(query: Any, key: Any, value: Any, bias: Any) -> torch.Tensor:
    key, value = (tensor.repeat_interleave(query.shape[1] // tensor.shape[1], 1) for tensor in (key, value))
    i = torch.arange(LENGTH)
    scores = query @ key.mT / 4 + bias[:, None, None] * (i[:, None] - i)
    return scores.masked_fill(i[:, None] < i, -math.inf).softmax(-1) @ value


def attention(call: Any, query: Any, key: Any, value: Any, bias: Any) -> Any:
    def scored(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return score + bias[h] * (i - j)

    mask = flex.create_block_mask(lambda b, h, i, j: i >= j, None, None, LENGTH, LENGTH, device=query.device)
    is_grouped = query.shape[1] != key.shape[1]
    return call(query, key, value, score_mod=scored, block_mask=mask, enable_gqa=is_grouped)


@pytest.mark.database
@pytest.mark.parametrize("heads", [4, 2])
@pytest.mark.parametrize("way", WAYS)
def test_values_and_gradients(device: torch.device, way: str, heads: int) -> None:
    ours = made(device, heads)
    theirs = [tensor.detach().cpu().double().requires_grad_() for tensor in ours]
    result, right = attention(WAYS[way](), *ours), expected(*theirs)
    torch.testing.assert_close(result.cpu().double(), right, atol=1e-5, rtol=1e-5)
    weights = torch.randn(right.shape)
    (result * weights.to(device)).sum().backward()
    (right * weights).sum().backward()
    for leaf, exact in zip(ours, theirs, strict=True):
        torch.testing.assert_close(leaf.grad.cpu().double(), exact.grad, atol=1e-4, rtol=1e-4)


@pytest.mark.database
@pytest.mark.parametrize("way", WAYS)
def test_autocast(device: torch.device, way: str) -> None:
    ours = made(device)
    with torch.autocast(device.type, torch.bfloat16):
        result = attention(WAYS[way](), *ours)
    assert result.dtype == torch.bfloat16
    right = expected(*(tensor.detach().cpu().double() for tensor in ours))
    torch.testing.assert_close(result.detach().cpu().double(), right, atol=5e-2, rtol=5e-2)


def test_rows_without_keys_are_zero(device: torch.device) -> None:
    query, key, value, _ = made(device)
    mask = flex.create_block_mask(lambda b, h, i, j: i < 0, None, None, LENGTH, LENGTH, device=device)
    request = flex.AuxRequest(lse=True)
    result, aux = flex.flex_attention(query, key, value, block_mask=mask, return_aux=request)
    assert result.eq(0).all() and aux.lse.eq(-math.inf).all()


def test_what_is_not_the_device_is_asked_as_before(device: torch.device) -> None:
    query, key, value = (tensor.detach() for tensor in made(torch.device("cpu"))[:3])
    torch.testing.assert_close(
        flex.flex_attention(query, key, value),
        torch.nn.functional.scaled_dot_product_attention(query, key, value),
        atol=1e-5,
        rtol=1e-5,
    )
    with pytest.raises(ValueError, match="only supported on"):
        flex.flex_attention(*(tensor.to("meta") for tensor in (query, key, value)))


@pytest.mark.core
def test_the_patch_is_needed() -> None:
    assert needs_accept_device()


WITH_TEMPLATES = """
import sys, torch, torch_outboard
from torch_outboard.compile import register
register._has_templates = lambda device: True
torch_outboard.attach(sys.argv[1])
device = torch_outboard.attached_driver().name
import warnings; warnings.simplefilter("ignore")
from torch.nn.attention import flex_attention as flex
given = [torch.randn(1, 2, 24, 16, device=device) for _ in range(3)]
want = torch.nn.functional.scaled_dot_product_attention(*given)
torch.testing.assert_close(flex.flex_attention(*given), want, atol=1e-5, rtol=1e-5)
with torch.autocast(device, torch.bfloat16):
    half = flex.flex_attention(*given)
assert half.dtype == torch.bfloat16
torch.testing.assert_close(half.float(), want, atol=5e-2, rtol=5e-2)
from torch._higher_order_ops.flex_attention import flex_attention_backward
assert not flex_attention_backward.non_fallthrough_keys.has(torch._C.DispatchKey.AutocastPrivateUse1)
"""


def test_torchs_operator_is_called_where_there_are_templates(run_python: Any, driver_target: str) -> None:
    run_python(WITH_TEMPLATES, driver_target)
