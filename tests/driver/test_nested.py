# SPDX-License-Identifier: BSD-3-Clause
"""Attention of jagged nested tensors, which is what they are mostly made for."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from torch_outboard import _C

HEADS, SIZE = 2, 4
CALLS = {
    "of itself": {},
    "of other lengths": {"keys": (4, 2, 6)},
    "causal": {"is_causal": True},
    "causal, of other lengths": {"keys": (4, 2, 6), "is_causal": True},
    "scaled": {"scale": 0.3},
    "an empty sequence": {"queries": (3, 0, 5)},
    "no keys of a sequence": {"keys": (4, 0, 6)},
    "one sequence": {"queries": (4,)},
}


def _heads(jagged):
    return jagged.unflatten(-1, [HEADS, SIZE]).transpose(1, 2)


def _jagged(values, lengths, offsets=None):
    if offsets is None:
        offsets = torch.tensor([0, *lengths]).cumsum(0).to(values.device)
    return torch.nested.nested_tensor_from_jagged(values, offsets)


def _inputs(place, lengths):
    generator = torch.Generator().manual_seed(5)
    return [
        torch.randn(sum(sizes), HEADS * SIZE, generator=generator).to(place).requires_grad_()
        for sizes in (lengths[0], lengths[1], lengths[1])
    ]


def _attend(place, queries=(3, 1, 5), keys=None, **options):
    """Return the values and the gradients of one call."""
    inputs = _inputs(place, (queries, keys or queries))
    query = _jagged(inputs[0], queries)
    key = _jagged(inputs[1], keys or queries, None if keys else query.offsets())
    value = _jagged(inputs[2], keys or queries, key.offsets())
    attended = functional.scaled_dot_product_attention(_heads(query), _heads(key), _heads(value), **options)
    result = attended.transpose(1, 2).flatten(-2)
    assert result.layout == torch.jagged
    assert result.offsets() is query.offsets()
    return _with_gradients(result.values(), inputs)


def _attend_each(queries=(3, 1, 5), keys=None, **options):
    """Return the same of sequences one by one, on the CPU."""
    inputs = _inputs("cpu", (queries, keys or queries))
    parts = [tensor.split(lengths) for tensor, lengths in zip(inputs, (queries, *[keys or queries] * 2), strict=True)]
    results = []
    for sequence in zip(*parts, strict=True):
        heads = [tensor.unflatten(-1, [HEADS, SIZE]).transpose(0, 1)[None] for tensor in sequence]
        attended = functional.scaled_dot_product_attention(*heads, **options)
        results.append(attended[0].transpose(0, 1).flatten(-2))
    return _with_gradients(torch.cat(results), inputs)


def _with_gradients(result, inputs):
    weights = torch.arange(result.numel(), device=result.device).reshape(result.shape) % 7
    (result * weights).sum().backward()
    return [result, *(tensor.grad for tensor in inputs)]


@pytest.mark.parametrize("name", CALLS)
def test_it_equals_attention_of_each_sequence(device, name):
    for ours, want in zip(_attend(device, **CALLS[name]), _attend_each(**CALLS[name]), strict=True):
        torch.testing.assert_close(ours.cpu(), want, atol=1e-4, rtol=1e-4)


def test_dropped_weights_are_those_of_the_gradient(device):
    """The keys' sum weighs what is left, so that values of ones and their gradient agree."""
    lengths, ones = (3, 5), torch.ones(8, HEADS * SIZE, device=device).requires_grad_()
    query = _jagged(torch.zeros(8, HEADS * SIZE, device=device), lengths)
    value = _heads(_jagged(ones, lengths, query.offsets()))
    result = functional.scaled_dot_product_attention(_heads(query), _heads(query), value, dropout_p=0.5)
    total = result.values().sum()
    total.backward()
    torch.testing.assert_close(ones.grad.sum(), total)
    assert not torch.equal(ones.grad, torch.ones_like(ones))


def test_autocast_chooses_the_dtype(device):
    if not _C.has_autocast():
        pytest.skip("capability: the driver has not opted into autocast")
    query = _heads(_jagged(torch.randn(8, HEADS * SIZE, device=device), (3, 5)))
    with torch.autocast(device.type, dtype=torch.bfloat16):
        assert functional.scaled_dot_product_attention(query, query, query).dtype == torch.bfloat16


def test_wrong_calls_raise(device):
    query = _heads(_jagged(torch.randn(8, HEADS * SIZE, device=device), (3, 5)))
    with pytest.raises(ValueError, match="Masks are not yet supported"):
        functional.scaled_dot_product_attention(query, query, query, torch.ones(1, device=device))
    with pytest.raises(ValueError, match="same dtype"):
        functional.scaled_dot_product_attention(query, query, query.double())
    longer = _heads(_jagged(torch.randn(9, HEADS * SIZE, device=device), (3, 6)))
    with pytest.raises(ValueError, match="sequences of one length"):
        functional.scaled_dot_product_attention(query, query, longer)


def test_padded_and_back(device):
    values = torch.arange(32.0).reshape(8, 4)
    offsets = torch.tensor([0, 3, 3, 8])
    for longest in (4, 5, 6):
        arguments = (values, [offsets], [longest], -1.0)
        padded = torch.ops.aten._jagged_to_padded_dense_forward(*arguments)
        here = torch.ops.aten._jagged_to_padded_dense_forward(values.to(device), [offsets.to(device)], *arguments[2:])
        torch.testing.assert_close(here.cpu(), padded)
        if longest == 4:  # the last sequence has five rows
            continue
        back = torch.ops.aten._padded_dense_to_jagged_forward(here, [offsets.to(device)], 8)
        torch.testing.assert_close(back.cpu(), torch.ops.aten._padded_dense_to_jagged_forward(padded, [offsets], 8))


def test_what_does_not_fit_is_refused(device):
    values, offsets = torch.ones(1, 4, 2, device=device), torch.tensor([0, 5], device=device)
    for total, message in ((5, "length|longer"), (4, "final offset should match")):
        with pytest.raises(RuntimeError, match=message):
            torch.ops.aten._padded_dense_to_jagged_forward(values, [offsets], total)
            torch.accelerator.synchronize()


def test_the_patch_is_needed():
    from torch_outboard._compat.nested import needs_attend_jagged

    assert needs_attend_jagged()
