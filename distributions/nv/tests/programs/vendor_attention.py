# SPDX-License-Identifier: BSD-3-Clause
"""Compare nv's attention with cuDNN to float64: python vendor_attention.py [LIBCUDA LIBCUDNN]

With fake_cuda.cpp and fake_cudnn.cpp the test needs no GPU; on a GPU, without arguments, it tests the real library. The
fake runs no kernels, so that copies are left to the GPU.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

os.environ["OUTBOARD_PROVIDERS"] = "native,generated" if len(sys.argv) < 2 else "native,host"
os.environ["OUTBOARD_FALLBACK"] = "silent"

import torch_outboard

HAS_KERNELS = len(sys.argv) < 2
WHOLE = "aten::_scaled_dot_product_fused_attention_overrideable"
BOUNDS = {torch.float16: 2e-3, torch.bfloat16: 1.2e-2}
attention = torch.nn.functional.scaled_dot_product_attention


@dataclass(frozen=True)
class Case:
    """A call: batch, heads of queries and of keys, numbers of queries and keys, sizes of a key and of a value."""

    batch: int = 2
    heads: int = 4
    key_heads: int = 4
    queries: int = 64
    keys: int = 64
    head: int = 64
    value_head: int = 64
    is_causal: bool = False
    scale: float | None = None
    mask: tuple[int, ...] | None = None
    hides: str = ""  # keys that the mask hides: "some", the "first" ones, or "flags"
    is_by_rows: bool = False  # tensors are batches of rows of heads, as in models

    def tensor(self, heads: int, rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
        if self.is_by_rows:
            return torch.randn(self.batch, rows, heads, columns).to(dtype).transpose(1, 2)
        return torch.randn(self.batch, heads, rows, columns).to(dtype)

    def inputs(self, dtype: torch.dtype) -> list[torch.Tensor]:
        return [
            self.tensor(self.heads, self.queries, self.head, dtype),
            self.tensor(self.key_heads, self.keys, self.head, dtype),
            self.tensor(self.key_heads, self.keys, self.value_head, dtype),
        ]

    def attn_mask(self, dtype: torch.dtype) -> torch.Tensor | None:
        if self.mask is None:
            return None
        hidden = torch.rand(self.mask) < 0.4
        hidden[..., -1] = False
        if self.hides == "first":
            hidden = (torch.arange(self.keys) < self.keys // 2 + 3).expand(self.mask)
        if self.hides == "flags":
            return ~hidden
        added = torch.randn(self.mask)
        return (added.masked_fill(hidden, -torch.inf) if self.hides else added).to(dtype)


CASES = {
    "plain": Case(),
    "causal": Case(is_causal=True),
    "causal, more keys": Case(is_causal=True, queries=40, keys=72),
    "causal, more queries": Case(is_causal=True, queries=72, keys=40),
    "odd numbers": Case(queries=37, keys=51),
    "one query": Case(queries=1, keys=65),
    "narrow": Case(head=32, value_head=32),
    "of 24": Case(head=24, value_head=24, is_causal=True),
    "wide": Case(head=128, value_head=128, is_causal=True),
    "widest": Case(head=256, value_head=256, batch=1, heads=2, key_heads=2),
    "values of another size": Case(head=64, value_head=128),
    "groups": Case(key_heads=2, is_causal=True),
    "one head of keys": Case(key_heads=1),
    "scaled": Case(scale=0.3),
    "by rows": Case(is_by_rows=True, is_causal=True),
    "mask of a matrix": Case(mask=(64, 64)),
    "mask of all": Case(mask=(2, 4, 64, 64)),
    "mask of heads": Case(mask=(1, 4, 64, 64)),
    "mask of batches": Case(mask=(2, 1, 64, 64), is_causal=False, key_heads=2),
    "hidden keys": Case(mask=(2, 1, 64, 64), hides="some"),
    "hidden first keys": Case(mask=(64, 64), hides="first"),
    "flags": Case(mask=(2, 4, 64, 64), hides="flags"),
}
# The tensors that need copies.
COPIED = {
    "mask of keys": Case(mask=(2, 1, 1, 64)),
    "mask of an odd number": Case(mask=(37, 51), queries=37, keys=51, hides="some"),
    "flags of keys": Case(mask=(2, 1, 1, 200), keys=200, hides="flags"),
}


def native_calls(op: str = WHOLE) -> int:
    return sum(row.calls for row in torch_outboard.coverage() if row.op == op and row.provider == "native")


def reference(case: Case, inputs: list[torch.Tensor], mask: torch.Tensor | None) -> torch.Tensor:
    """Compute attention in float64, with a result of 0 for a query that sees no key."""
    query, key, value = (tensor.double() for tensor in inputs)
    key, value = (tensor.repeat_interleave(case.heads // case.key_heads, 1) for tensor in (key, value))
    scores = query @ key.transpose(-1, -2) * (case.scale or case.head**-0.5)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask.double()
    if case.is_causal:
        scores = scores.masked_fill(torch.ones(case.queries, case.keys).triu(1).bool(), -torch.inf)
    weights = scores.softmax(-1)
    return weights.masked_fill((scores == -torch.inf).all(-1, keepdim=True), 0) @ value


def check(ours: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype, label: object) -> None:
    difference = (ours.cpu().double() - expected).norm() / expected.norm().clamp_min(1e-9)
    assert difference < BOUNDS[dtype], (label, float(difference))


def run(
    case: Case, dtype: torch.dtype, label: object, move: Callable[[torch.Tensor], torch.Tensor], is_taken: bool = True
) -> None:
    inputs, mask = case.inputs(dtype), case.attn_mask(dtype)
    exact = [tensor.double().requires_grad_() for tensor in inputs]
    expected = reference(case, exact, mask)
    grad = torch.randn(expected.shape).to(dtype)
    expected.backward(grad.double())
    before = native_calls(), native_calls(WHOLE + "_backward")
    ours = [move(tensor).detach().requires_grad_() for tensor in inputs]
    options: dict[str, Any] = {"is_causal": case.is_causal, "scale": case.scale}
    if case.heads != case.key_heads:
        options["enable_gqa"] = True
    result = attention(*ours, None if mask is None else mask.to("nv"), **options)
    check(result.detach(), expected.detach(), dtype, (label, "forward"))
    # Not by backward(), which copies gradients in another layout: the fake runs no such copies.
    grads = torch.autograd.grad(result, ours, grad.to("nv"))
    for name, computed, leaf in zip(("query", "key", "value"), grads, exact, strict=True):
        assert leaf.grad is not None
        check(as_stored(computed), leaf.grad, dtype, (label, name))
    after = native_calls(), native_calls(WHOLE + "_backward")
    assert after == ((before[0] + 1, before[1] + 1) if is_taken else before), (label, before, after)


def as_stored(tensor: torch.Tensor) -> torch.Tensor:
    """Copy a tensor with its strides to the CPU."""
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    back = sorted(range(tensor.dim()), key=order.__getitem__)
    return tensor.permute(order).cpu().permute(back)


def on_device(tensor: torch.Tensor) -> torch.Tensor:
    """Copy a tensor to the device with its strides."""
    if tensor.is_contiguous():
        return tensor.to("nv")
    return tensor.transpose(1, 2).contiguous().to("nv").transpose(1, 2)


def dropped(dtype: torch.dtype) -> None:
    """Compare dropout and its gradients with a reference that drops the same weights.

    Values with a single 1 reveal the kept weights.
    """
    size = 64
    query, key = (torch.randn(1, 2, size, size).to(dtype) for _ in range(2))
    ones = torch.eye(size).expand(1, 2, size, size).to(dtype).contiguous()
    before = native_calls(), native_calls(WHOLE + "_backward")
    torch.manual_seed(7)
    ours = [tensor.to("nv").requires_grad_() for tensor in (query, key, ones)]
    weights = attention(*ours, dropout_p=0.25)
    redrawn = attention(*ours, dropout_p=0.25)
    torch.manual_seed(7)
    again = attention(*ours, dropout_p=0.25)
    if HAS_KERNELS:  # the fake does not fill 8 bytes, so the seed is the memory's old content
        assert not torch.equal(weights.cpu(), redrawn.cpu()), "two draws are equal"
        assert torch.equal(weights.cpu(), again.cpu()), "the same seed draws other weights"
    kept = (weights.detach().cpu() != 0).double()
    assert 0.7 < float(kept.mean()) < 0.8, float(kept.mean())
    exact = [tensor.double().requires_grad_() for tensor in (query, key, ones)]
    scores = exact[0] @ exact[1].transpose(-1, -2) / size**0.5
    expected = (scores.softmax(-1) * kept / 0.75) @ exact[2]
    check(weights.detach(), expected.detach(), dtype, "dropout")
    grad = torch.randn(expected.shape).to(dtype)
    expected.backward(grad.double())
    for grad_of_weights, other_grad in zip(torch.autograd.grad(weights, ours, grad.to("nv")), exact, strict=True):
        assert other_grad.grad is not None
        check(grad_of_weights, other_grad.grad, dtype, "gradients of dropout")
    assert (native_calls(), native_calls(WHOLE + "_backward")) == (before[0] + 3, before[1] + 1)


def repeated(dtype: torch.dtype) -> None:
    """Compare gradients that must repeat, bit by bit."""
    case = Case(queries=256, keys=256, is_causal=True) if HAS_KERNELS else Case(is_causal=True)
    torch.use_deterministic_algorithms(True)
    try:
        run(case, dtype, "deterministic", on_device)
        inputs = [on_device(tensor).requires_grad_() for tensor in case.inputs(dtype)]
        grad = torch.randn(case.batch, case.heads, case.queries, case.value_head).to(dtype).to("nv")
        results = [torch.autograd.grad(attention(*inputs, is_causal=True), inputs, grad) for _ in range(3)]
        for repeated_result in results[1:]:
            assert all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(repeated_result, results[0], strict=True))
    finally:
        torch.use_deterministic_algorithms(False)


def fully_masked_queries(dtype: torch.dtype) -> None:
    """Test queries that see no key: their results and gradients are 0, as on the CPU."""
    case = Case(mask=(64, 64), hides="some")
    inputs, mask = case.inputs(dtype), case.attn_mask(dtype)
    assert mask is not None
    mask[5] = mask[60] = -torch.inf
    ours = [tensor.to("nv").requires_grad_() for tensor in inputs]
    before = native_calls()
    result = attention(*ours, mask.to("nv"))
    check(result.detach(), reference(case, inputs, mask), dtype, "a query that sees no key")
    assert not result[:, :, [5, 60]].detach().cpu().any()
    grads = torch.autograd.grad(result, ours, torch.ones_like(result))
    assert all(bool(grad.isfinite().all()) for grad in grads)
    assert not grads[0][:, :, [5, 60]].cpu().any()
    assert native_calls() == before + 1


def refused() -> None:
    """Run calls that cuDNN declines, and check their values."""
    cases = {
        "heads of 20": Case(head=20, value_head=20),
        "heads of 264": Case(head=264, value_head=264, heads=2, key_heads=2),
    }
    if not HAS_KERNELS:
        cases["no engine"] = Case(head=200, value_head=200)
    for name, case in cases.items():
        run(case, torch.float16, name, on_device, is_taken=False)
    before = native_calls()
    query = torch.randn(2, 4, 16, 32)
    torch.testing.assert_close(attention(*[query.to("nv")] * 3).cpu(), attention(query, query, query))
    half = query.half().to("nv")
    assert attention(half[:, :, :0], half, half).shape == (2, 4, 0, 32)
    of_mask = torch.zeros(16, 16, dtype=torch.float16, device="nv", requires_grad=True)
    attention(half, half, half, of_mask).sum().backward()
    assert of_mask.grad is not None
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        attention(half, half, half)
    assert native_calls() == before, "a call was taken"


def misaligned(dtype: torch.dtype) -> None:
    """Test addresses and strides that cuDNN does not accept: the tensors are copied."""
    for label, move in {
        "an odd address": lambda tensor: (
            torch.cat([tensor.flatten()[:1], tensor.flatten()]).to("nv")[1:].view(tensor.shape)
        ),
        "odd rows": lambda tensor: torch.cat([tensor, tensor[..., :1]], -1).to("nv")[..., :-1],
        "columns apart": lambda tensor: tensor.transpose(-1, -2).contiguous().to("nv").transpose(-1, -2),
    }.items():
        run(Case(), dtype, label, move)
    inputs = [tensor.to("nv").requires_grad_() for tensor in Case().inputs(dtype)]
    exact = [tensor.detach().cpu().double().requires_grad_() for tensor in inputs]
    attention(*inputs).sum().backward()
    reference(Case(), exact, None).sum().backward()
    assert inputs[2].grad is not None and exact[2].grad is not None
    check(inputs[2].grad, exact[2].grad, dtype, "a gradient without strides")


def in_a_graph(dtype: torch.dtype) -> None:
    """Replay a graph of attention and its gradients with other inputs and newly dropped weights."""
    case, module = Case(is_causal=True), torch.nv
    inputs = [tensor.to("nv").requires_grad_() for tensor in case.inputs(dtype)]

    def call(dropout: float) -> tuple[torch.Tensor, ...]:
        result = attention(*inputs, is_causal=True, dropout_p=dropout)
        return result.detach(), *torch.autograd.grad(result, inputs, torch.ones_like(result))

    call(0.0), call(0.5)
    graph, drops = module.Graph(), module.Graph()
    with module.graph(graph):
        results = call(0.0)
    with module.graph(drops):
        dropped_results = call(0.5)
    for _ in range(2):
        operands = case.inputs(dtype)
        with torch.no_grad():
            for operand, number in zip(inputs, operands, strict=True):
                operand.copy_(number)
        graph.replay()
        exact = [tensor.double().requires_grad_() for tensor in operands]
        expected = reference(case, exact, None)
        expected.backward(torch.ones_like(expected))
        check(results[0], expected.detach(), dtype, "a replay")
        for operand, leaf in zip(results[1:], exact, strict=True):
            assert leaf.grad is not None
            check(operand, leaf.grad, dtype, "gradients of a replay")
    drawn = []
    for _ in range(2):
        drops.replay()
        drawn.append(dropped_results[0].cpu())
    assert not torch.equal(*drawn), "two replays drop the same weights"


def in_two_streams(dtype: torch.dtype) -> None:
    case = Case(is_causal=True)
    inputs = case.inputs(dtype)
    ours = [tensor.to("nv") for tensor in inputs]
    torch.accelerator.synchronize()
    results = []
    for _ in range(2):
        with torch.Stream("nv"):
            results += [attention(*ours, is_causal=True) for _ in range(5)]
    torch.accelerator.synchronize()
    for result in results:
        check(result, reference(case, inputs, None), dtype, "streams")


if __name__ == "__main__":
    libraries = dict(zip(("library", "cudnn"), sys.argv[1:], strict=False))
    torch_outboard.attach("nv", **libraries)
    for dtype in (torch.bfloat16, torch.float16):
        for name, case in (CASES | (COPIED if HAS_KERNELS else {})).items():
            run(case, dtype, (name, dtype), on_device)
        dropped(dtype)
        repeated(dtype)
        fully_masked_queries(dtype)
        in_two_streams(dtype)
        if HAS_KERNELS:
            misaligned(dtype)
            in_a_graph(dtype)
    refused()
    print("all attention agrees")
