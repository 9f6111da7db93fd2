# SPDX-License-Identifier: BSD-3-Clause
"""Attention that drops weights, by every schedule of the device, against Philox and float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import torch_outboard
from torch_outboard import _C, NotSupportedError
from torch_outboard.compile.generators import generators
from torch_outboard.kernels import refused_operators
from torch_outboard.kernels.plans import lower
from torch_outboard.testing.database.calls import poison
from torch_outboard.testing.plugin import RunPython

from .device_kernels import asks_native, has_exchange, is_native

WHOLE = torch.ops.aten._scaled_dot_product_fused_attention_overrideable
BOUNDS = {torch.float32: 3e-5, torch.bfloat16: 4e-2, torch.float16: 6e-3}
r = torch.randn


def philox(seed: int, places: np.ndarray) -> np.ndarray:
    """Return the four words of each place: Philox 4x32 with ten rounds, after Salmon et al., 2011."""
    low_bits, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    x, y = places & low_bits, places >> shift
    z, w = np.zeros_like(places), np.zeros_like(places)
    low, high = np.uint64(seed & 0xFFFFFFFF), np.uint64(seed >> 32 & 0xFFFFFFFF)
    for _ in range(10):
        first, second = np.uint64(0xD2511F53) * x, np.uint64(0xCD9E8D57) * z
        x, y = second >> shift ^ y ^ low, second & low_bits
        z, w = first >> shift ^ w ^ high, first & low_bits
        low, high = low + np.uint64(0x9E3779B9) & low_bits, high + np.uint64(0xBB67AE85) & low_bits
    return np.stack([x, y, z, w])


def kept(seed: int, shape: tuple[int, ...], probability: float) -> torch.Tensor:
    """Return which weights of batches, heads, queries and keys are kept."""
    batch, heads, queries, keys = shape
    head, query, key = np.ogrid[: batch * heads, :queries, :keys]
    square = (head * ((queries + 15) // 16) + query // 16) * ((keys + 15) // 16) + key // 16
    words = philox(seed % 2**64, (square * 64 + query % 8 * 8 + key % 8).astype(np.uint64))
    which = np.broadcast_to(query % 16 // 8 * 2 + key % 16 // 8, words.shape[1:])
    word = np.take_along_axis(words, which[None], 0)[0]
    return torch.from_numpy(word >= round(probability * 2**32)).view(shape)


def check(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None = None,
    *,
    device: torch.device,
    probability: float,
    is_causal: bool = False,
) -> torch.Tensor:
    """Compare the result and all gradients with float64, and return which weights were kept.

    The mask's gradient is compared if the mask requires one.
    """
    grad = r(*query.shape[:-1], value.shape[-1]).to(query.dtype)
    of_mask = mask is not None and mask.requires_grad
    ours = [None if tensor is None else tensor.detach().to(device) for tensor in (query, key, value, mask)]
    given_grad = grad.to(device)
    wanted = [tensor.requires_grad_() for tensor in (ours if of_mask else ours[:3])]
    poison(device)
    torch_outboard.reset_coverage()
    result, _, _, _, _, _, seed, _, _ = WHOLE(*ours, probability, is_causal)
    grads = torch.autograd.grad(result, wanted, given_grad)
    assert all(row.provider == "generated" for row in torch_outboard.coverage() if "attention" in row.op)
    doubles = [leaf.detach().double().requires_grad_() for leaf in (query, key, value, *([mask] if of_mask else []))]
    repeats = query.shape[1] // key.shape[1]
    scores = doubles[0] @ doubles[1].repeat_interleave(repeats, 1).mT / query.shape[-1] ** 0.5
    if mask is not None:
        scores = scores + (doubles[3] if of_mask else mask.double())
    if is_causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), float("-inf"))
    has_keys = (scores > float("-inf")).any(-1, keepdim=True)
    some = kept(int(seed.item()), tuple(scores.shape), probability)
    weights = scores.where(has_keys, 0).softmax(-1) * has_keys * some / (1 - probability)
    expected = weights @ doubles[2].repeat_interleave(repeats, 1)
    slopes = torch.autograd.grad(expected, doubles, grad.double())
    bound = BOUNDS[query.dtype] * (4 if of_mask else 1)
    for got, exact in zip((result, *grads), (expected, *slopes), strict=True):
        torch.testing.assert_close(got.cpu().double(), exact, atol=bound / (1 - probability), rtol=bound)
    return some


def types() -> list[torch.dtype]:
    """Return float32, and the types of which the device has matrix units."""
    return list(dict.fromkeys([torch.float32, *(unit.dtype for unit in generators().eager().dialect.units)]))


@pytest.mark.usefixtures("generated_attention")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_values_and_gradients(dtype: torch.dtype, device: torch.device) -> None:
    if dtype not in types() or not has_exchange():
        pytest.skip("capability: time. Its kernels take long to compile, or are those of float32")
    heads = [r(2, count, rows, 24).to(dtype) for count, rows in ((4, 70), (2, 83), (2, 83))]
    some = check(*heads, device=device, probability=0.3)
    assert abs(some.float().mean().item() - 0.7) < 0.02
    # As many of each head, query and key.
    for dims in ((0, 1), (2,), (3,)):
        others = [dim for dim in range(4) if dim not in dims]
        assert (some.float().mean(others) - 0.7).abs().max() < 0.15
    assert not torch.equal(some, check(*heads, device=device, probability=0.3)), "the next call has another seed"
    check(*heads, device=device, probability=0.5)  # of which the former plan knows nothing
    check(*heads, device=device, probability=0.6, is_causal=True)


@pytest.mark.usefixtures("generated_attention")
def test_with_a_mask_by_tiles(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The schedule for groups of items; the other tests have the one of the device."""
    if generators().eager().dialect.units:
        pytest.skip("capability: a dialect without matrix units")
    monkeypatch.setattr(lower, "is_cpu", lambda device: False)
    mask = r(70, 83)
    mask[5:9] = float("-inf")
    heads = [r(1, count, rows, 20) for count, rows in ((2, 70), (1, 83), (1, 83))]
    check(*heads, mask, device=device, probability=0.25)


@pytest.mark.usefixtures("generated_attention")
def test_masks_and_edges(device: torch.device) -> None:
    if not has_exchange():
        pytest.skip("capability: time. Its kernels take long to compile")
    mask = r(1, 2, 17, 33)
    mask[..., 3, :] = float("-inf")
    check(*(r(2, 2, rows, 12) for rows in (17, 33, 33)), mask, device=device, probability=0.1)
    check(*(r(1, 1, rows, 12) for rows in (1, 1, 1)), device=device, probability=0.5)
    check(*(r(1, 1, rows, 12) for rows in (16, 16, 16)), device=device, probability=0.999)


@pytest.mark.usefixtures("generated_attention")
def test_gradient_of_the_mask(device: torch.device) -> None:
    units = generators().eager().dialect.units
    if not units or not units[0].exchange:
        pytest.skip("capability: matrix units whose kernels compile fast")
    heads = [r(2, 2, rows, 24).to(units[0].dtype) for rows in (70, 67, 67)]
    check(*heads, r(1, 2, 70, 67).requires_grad_(), device=device, probability=0.2)


def test_the_function_draws_from_the_generator(device: torch.device) -> None:
    inputs = [r(1, 2, 40, 16, device=device) for _ in range(3)]
    whole = WHOLE.default._schema.name

    def drawn(probability: float = 0.5) -> torch.Tensor:
        return F.scaled_dot_product_attention(*inputs, dropout_p=probability).cpu()

    torch.manual_seed(3)
    torch_outboard.reset_coverage()
    first, second = drawn(), drawn()
    assert torch_outboard.coverage().calls(whole, "generated") == (0 if is_native(whole) else 2)
    torch.manual_seed(3)
    assert torch.equal(first, drawn()) and not torch.equal(first, second)
    state = torch.get_device_module(device).get_rng_state()
    torch.testing.assert_close(drawn(0.0), F.scaled_dot_product_attention(*inputs).cpu())
    assert torch.equal(state, torch.get_device_module(device).get_rng_state()), "nothing is drawn"
    assert (drawn(1.0) == 0).all()
    with pytest.raises(RuntimeError, match="dropout probability has to be between 0 and 1"):
        drawn(1.5)


@pytest.mark.usefixtures("generated_attention")
def test_all_weights_dropped_by_the_operator_are_refused(device: torch.device) -> None:
    inputs = [r(1, 1, 4, 8, device=device) for _ in range(3)]
    words = r"its mask\. None was generated: the dropout.* is 1\.0 .*\(torch_outboard\.register_kernel\)\. Disable"
    with pytest.raises(NotSupportedError, match=words):
        WHOLE(*inputs, None, 1.0, False)
    assert any("probability is 1.0" in str(row) for row in refused_operators())


# The driver's kernel hands every call on, but might have dropped weights.
MIXED = """
import sys, torch, torch_outboard
torch_outboard.attach(sys.argv[1])
device = torch.device(torch_outboard.attached_driver().name, 0)
whole = torch.ops.aten._scaled_dot_product_fused_attention_overrideable
given = [torch.randn(1, 1, 8, 16, device=device, requires_grad=True) for _ in range(3)]
result = whole(*given, None, 0.5, False)[0]
torch_outboard.register_kernel(whole.default._schema.name, lambda *given, **named: NotImplemented)
for call in (result.sum().backward, lambda: whole(*given, None, 0.5, False)):
    try:
        call()
    except torch_outboard.NotSupportedError as error:
        print(error)
whole(*given, None, 0.0, False)[0].sum().backward()
"""


@pytest.mark.usefixtures("generated_attention")
def test_no_two_kernels_drop_weights_of_one_call(run_python: RunPython, request: pytest.FixtureRequest) -> None:
    if not asks_native():
        pytest.skip("capability: kernels of users, which OUTBOARD_PROVIDERS leaves out")
    answer = run_python(MIXED, request.config.getoption("--driver")).stdout
    assert answer.count("uses dropout, and no kernel for this call can reproduce its mask") == 2


@pytest.mark.parametrize("is_compiled", [False, True])
def test_gradients_have_the_weights_of_the_result(is_compiled: bool, device: torch.device) -> None:
    """Where values are the identity, the result is the kept weights, and the values' gradient their sums."""

    def attend(*inputs: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(*inputs, dropout_p=0.5)

    if is_compiled and torch_outboard.attached_driver().code_generator is None:
        pytest.skip("capability: a code generator of the driver")
    function: Any = torch.compile(attend, dynamic=False) if is_compiled else attend
    query, key = (r(1, 2, rows, 24, device=device) for rows in (20, 50))
    value = torch.eye(50, device=device).expand(1, 2, 50, 50).contiguous().requires_grad_()
    grad = r(1, 2, 20, 50, device=device)
    results = []
    for _ in range(2):
        result = function(query, key, value)
        (value_grad,) = torch.autograd.grad(result, value, grad)
        torch.testing.assert_close(value_grad, result.detach().mT @ grad, atol=1e-4, rtol=1e-4)
        results.append(result.detach().cpu())
    assert abs((results[0] != 0).float().mean().item() - 0.5) < 0.06
    assert not torch.equal(*results)


def test_replays_draw_anew(device: torch.device) -> None:
    if not _C.entries()["host_alloc"]:
        pytest.skip("capability: host_alloc, by which a replay gets its seed")
    module = torch.get_device_module(device)
    query, key = (r(1, 1, rows, 24, device=device) for rows in (20, 50))
    value = torch.eye(50, device=device).expand(1, 1, 50, 50).contiguous().requires_grad_()
    grad = r(1, 1, 20, 50, device=device)

    def step() -> tuple[torch.Tensor, torch.Tensor]:
        result = F.scaled_dot_product_attention(query, key, value, dropout_p=0.5)
        return result, torch.autograd.grad(result, value, grad)[0]

    torch.manual_seed(4)
    expected = [step()[0].detach().cpu() for _ in range(2)]
    graph = module.Graph()
    with module.graph(graph):
        result, value_grad = step()
    torch.manual_seed(4)
    for want in expected:
        graph.replay()
        assert torch.equal(result.detach().cpu(), want)
        torch.testing.assert_close(value_grad, result.detach().mT @ grad, atol=1e-4, rtol=1e-4)
