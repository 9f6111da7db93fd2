# SPDX-License-Identifier: BSD-3-Clause
"""scaled_dot_product_attention runs the driver's own kernel, a generated one, or the CPU's if it can."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import torch_outboard
from torch_outboard.testing.plugin import RunPython

from .support import assert_same, attends, module_of, reaches_memory, reset_waits, waits

COMPOSITE_TOLERANCE = 2e-5  # another order of additions than in the fused kernel
CALLS = {
    "plain": {},
    "causal": {"is_causal": True},
    "scaled": {"scale": 0.3},
    "bool mask": {"attn_mask": torch.arange(63).reshape(7, 9) % 3 != 1},
    "float mask": {"attn_mask": torch.arange(63.0).reshape(7, 9) / 50},
}


def attend(place, *, queries=7, keys=9, dtype=torch.float32, **options):
    """Return the result and the gradients of one call."""
    generator = torch.Generator().manual_seed(3)
    shapes = [(2, 4, queries, 8), (2, 4, keys, 8), (2, 4, keys, 8)]
    inputs = [torch.randn(shape, generator=generator, dtype=dtype).to(place).requires_grad_() for shape in shapes]
    here = {key: value.to(place) if isinstance(value, torch.Tensor) else value for key, value in options.items()}
    result = functional.scaled_dot_product_attention(*inputs, **here)
    result.square().sum().backward()
    return [result, *(tensor.grad for tensor in inputs)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_it_agrees_with_the_cpu(device, name, dtype):
    options = {
        key: value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for key, value in CALLS[name].items()
    }
    exact = reaches_memory(device) and attends(device)
    tolerance = 0.0 if exact else 0.05 if dtype == torch.bfloat16 else COMPOSITE_TOLERANCE
    reset_waits()
    ours = attend(device, dtype=dtype, **options)
    assert not [op for op in waits() if "attention" in op], "its shapes are known before it runs"
    for expected, result in zip(attend("cpu", dtype=dtype, **options), ours, strict=True):
        assert_same(result, expected, device, tolerance)


def test_it_makes_no_matrix_of_queries_by_keys(device):
    if not attends(device):
        pytest.skip("capability: kernels of the host's or the device's for the whole; it is made of operators")
    size = 2048
    module = module_of(device)
    q, k, v = (torch.randn(1, 1, size, 8, device=device) for _ in range(3))
    before = module.memory_allocated(device)
    module.reset_peak_memory_stats(device)
    functional.scaled_dot_product_attention(q, k, v)
    assert module.max_memory_allocated(device) - before < size * size


def test_the_composite_form_can_be_asked_for(device):
    torch_outboard.reset_coverage()
    with sdpa_kernel(SDPBackend.MATH):
        ours, expected = attend(device), attend("cpu")
    assert not [row for row in torch_outboard.coverage() if "flash" in row.op or "fused" in row.op]
    for result, wanted in zip(ours, expected, strict=True):
        assert_same(result, wanted, device, COMPOSITE_TOLERANCE)


OWN_KERNEL = """
import sys, torch, torch_outboard
from torch.nn.functional import scaled_dot_product_attention as attention
device = torch_outboard.attach(sys.argv[1]).__name__.rpartition(".")[2]
q = torch.randn(1, 2, 4, 8, device=device)
calls = []

def fused(query, key, value, attn_bias=None, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None):
    calls.append((dropout_p, is_causal, scale))
    empty = torch.empty(0, device=query.device)
    number = torch.zeros((), dtype=torch.int64, device=query.device)
    return query + 1, empty, empty, empty, 4, 4, number, number, empty

def multiply(left, right):
    return NotImplemented

torch_outboard.register_kernel("aten::bmm", multiply)
attention(q, q, q)
names = {row.op for row in torch_outboard.coverage()}
assert not [name for name in names if "flash" in name], "a driver that multiplies gets the parts"
torch_outboard.register_kernel("aten::_scaled_dot_product_fused_attention_overrideable", fused)
result = attention(q, q, q, is_causal=True, scale=0.25)
assert calls == [(0.0, True, 0.25)], calls
assert torch.equal(result.cpu(), q.cpu() + 1)
"""


def test_the_drivers_own_kernel_comes_first(device, request, run_python: RunPython):
    run_python(OWN_KERNEL, request.config.getoption("--driver"))


OWN_KERNELS = """
import sys, torch, torch_outboard
from torch.nn.functional import scaled_dot_product_attention as attention
WHOLE = "_scaled_dot_product_fused_attention_overrideable"
calls = []

def weights(query, key, is_causal, scale):
    scores = query @ key.transpose(-1, -2) * (scale or query.shape[-1] ** -0.5)
    if is_causal:
        scores = scores + torch.ones_like(scores).triu(1) * -1e9
    return scores.softmax(-1)

def forward(query, key, value, bias=None, dropout=0.0, is_causal=False, debug=False, *, scale=None):
    calls.append("forward")
    empty, number = torch.empty(0, device=query.device), torch.zeros((), dtype=torch.int64, device=query.device)
    result = weights(query, key, is_causal, scale) @ value
    return result, empty, empty, empty, query.shape[2], key.shape[2], number, number, empty

def backward(grad, query, key, value, bias, wanted, out, lse, begin_q, begin_k, most_q, most_k, dropout, is_causal,
             seed, offset, *, scale=None):
    calls.append("backward")
    rows = weights(query, key, is_causal, scale)
    of_rows = grad @ value.transpose(-1, -2)
    of_scores = rows * (of_rows - (of_rows * rows).sum(-1, keepdim=True)) * (scale or query.shape[-1] ** -0.5)
    empty = torch.empty(0, device=query.device)
    return of_scores @ key, of_scores.transpose(-1, -2) @ query, rows.transpose(-1, -2) @ grad, empty

if sys.argv[2] == "register_kernel":
    device = torch_outboard.attach(sys.argv[1]).__name__.rpartition(".")[2]
    torch_outboard.register_kernel(f"aten::{WHOLE}", forward)
    torch_outboard.register_kernel(f"aten::{WHOLE}_backward", backward)
else:
    library = torch.library.Library("aten", "IMPL")
    library.impl(WHOLE, forward, "PrivateUse1")
    library.impl(f"{WHOLE}_backward", backward, "PrivateUse1")
    device = torch_outboard.attach(sys.argv[1]).__name__.rpartition(".")[2]
torch.manual_seed(3)
given = [torch.randn(2, 3, size, 8) for size in (5, 7, 7)]
for options in ({}, {"is_causal": True}, {"scale": 0.3}):
    results = []
    for place in (device, "cpu"):
        here = [tensor.to(place, copy=True).requires_grad_() for tensor in given]
        result = attention(*here, **options)
        result.sin().sum().backward()
        results.append([result.detach().cpu(), *(tensor.grad.cpu() for tensor in here)])
    for ours, expected in zip(*results):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)
assert calls == ["forward", "backward"] * 3, calls
"""


@pytest.mark.parametrize("way", ["register_kernel", "torch.library"])
def test_attention_takes_a_vendors_kernels_and_their_gradients(request, run_python: RunPython, way):
    run_python(OWN_KERNELS, request.config.getoption("--driver"), way, env={"OUTBOARD_FALLBACK": "silent"})
