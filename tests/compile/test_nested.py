# SPDX-License-Identifier: BSD-3-Clause
"""Compiled attention of jagged nested tensors."""

from __future__ import annotations

import pytest
import torch
from driver import test_nested as nested


@pytest.mark.core
@pytest.mark.parametrize("is_causal", [False, True])
def test_a_compiled_layer_has_the_gradients_of_an_eager_one(device: torch.device, is_causal: bool) -> None:
    def layer(query: torch.Tensor) -> torch.Tensor:
        heads = nested._heads(query)
        attended = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=is_causal)
        return attended.transpose(1, 2).flatten(-2)

    compiled = torch.compile(layer, fullgraph=True)
    for lengths in ((3, 5), (4, 1), (2, 6)):
        values = torch.randn(sum(lengths), 8, generator=torch.Generator().manual_seed(1))
        results = []
        for function in (layer, compiled):
            here = values.to(device).requires_grad_()
            query = torch.nested.nested_tensor(list(here.split(lengths)), layout=torch.jagged, requires_grad=True)
            result = function(query).values()
            result.cos().sum().backward()
            assert query.grad is not None
            results.append([result, query.grad.values()])
        for got, want in zip(*results, strict=True):
            torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)
