# SPDX-License-Identifier: BSD-3-Clause
"""Fused attention and its gradients, without a matrix of all queries by all keys.

    scores[q, k] = scale * sum over d of query[q, d] * key[k, d] + mask[q, k]; if causal, only for k <= q weights[q, k]
    = exp(scores[q, k] - logsumexp[q]) result[q, d] = sum over k of weights[q, k] * value[k, d]

The schedules process blocks of queries over blocks of keys. For each query, they keep the greatest score and the sum of
the weights so far. A new greatest score rescales the sums. Gradients recompute the weights:

    delta[q]          = sum over d of grad[q, d] * result[q, d]
    slopes[q, k]      = weights[q, k] * (sum over d of grad[q, d] * value[k, d] - delta[q])
    query's gradient  = scale * sum over k of slopes[q, k] * key[k, d]
    key's gradient    = scale * sum over q of slopes[q, k] * query[q, d]
    value's gradient  = sum over q of weights[q, k] * grad[q, d]

If several query heads share a key head, the key head's gradients are sums over all of them. A query without any key has
weights of 0, as on the CPU. The mask's gradient is the sum of the slopes over the batches and heads that share the
mask.

Dropout is applied after normalisation, so logsumexp covers every key; weights that are kept are multiplied by 1 / (1 -
probability). A dropped weight adds nothing to the result, and the sum in its slope is 0, but its slope still subtracts
delta[q].
"""

from __future__ import annotations

import math
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch._inductor.virtualized import V

from torch_outboard.codegen.dialects.dialect import HALVES
from torch_outboard.kernels.refusal import CallRefusal
from torch_outboard.kernels.templates.call import Kernel, Layout, TemplateCall, Tensor
from torch_outboard.kernels.templates.heads import FLOAT, Attention, Dropout, Gradients, Rows
from torch_outboard.kernels.templates.product import filled
from torch_outboard.kernels.templates.products import factor_text
from torch_outboard.kernels.templates.schedules.registry import ATTENTION, Device

__all__ = ["backward", "differentiates_masks", "forward"]

# With larger heads, a row's sums do not fit in registers. csrc/ops/own/attention.cpp has the same
# limit.
_MAX_HEAD = 256


def forward(call: TemplateCall) -> list[str | None]:
    """Write the steps of aten::_scaled_dot_product_fused_attention_overrideable."""
    result, logsumexp, seed, offset = (call.allocate(tensor) for tensor in call.results if tensor is not None)
    attention = _attention(call, seed)
    schedule = ATTENTION.schedule_of(call)
    schedule.attend(
        call, attention, Rows("result", result, is_written=True), Rows("logsumexp", _column(logsumexp), True)
    )
    # Nothing reads the offset, or the seed of a call without dropout.
    return [result.name, logsumexp.name, None, None, None, None, seed.name, offset.name, None]


def backward(call: TemplateCall) -> list[str | None]:
    """Write the steps of aten::_scaled_dot_product_fused_attention_overrideable_backward."""
    attention = _attention(call)
    wanted = call.arguments["grad_input_mask"]
    if wanted[3] and not differentiates_masks(Device.of(call)):
        raise CallRefusal("attention kernels compute no gradient of the mask [mask-gradient]")
    logsumexp = call.tensor("logsumexp")
    if logsumexp.dtype != torch.float32 or len(logsumexp.size) != 3:
        raise CallRefusal("logsumexp doesn't come from a generated forward kernel [rounding]")
    names = ("grad_query", "grad_key", "grad_value", "grad_mask")
    targets = [
        Rows(name, call.allocate(layout), is_written=True) if is_wanted and layout is not None else None
        for name, is_wanted, layout in zip(names, wanted, call.results, strict=False)
    ]
    grad = Rows("grad", call.tensor("grad_out"))
    size = [attention.batch, attention.heads, attention.queries]
    strides = [attention.heads * attention.queries, attention.queries, sympy.Integer(1)]
    delta = call.allocate(Layout(torch.float32, size, strides))
    gradients = Gradients(grad, Rows("logsumexp", _column(logsumexp)), Rows("delta", _column(delta)), *targets)
    call.launch(_delta(call, attention, gradients))
    ATTENTION.schedule_of(call).differentiate(call, attention, gradients)
    call.free(delta)
    return [None if target is None else target.tensor.name for target in targets]


def differentiates_masks(device: Device) -> bool:
    """Return whether matrix units can compute gradients with respect to masks."""
    return ATTENTION.way_of("attention_gradients", device) == "matrix"


def _dropout(call: TemplateCall, result: Tensor | None) -> Dropout | None:
    """Return the call's dropout; the operator draws a seed into `result`, which its gradients then read."""
    probability = float(call.arguments["dropout_p"])
    if probability == 0:
        return None
    if not 0 < probability < 1:
        raise CallRefusal(f"a dropout probability of {probability} isn't supported [dropout]")
    if result is None:
        return Dropout(probability, call.tensor("philox_seed"))
    return Dropout(probability, Tensor(torch.int64, [], [], call.plan.seed()), result)


def _attention(call: TemplateCall, seed: Tensor | None = None) -> Attention:
    query, key, value = (Rows(name, call.tensor(name)) for name in ("query", "key", "value"))
    dtypes = {rows.tensor.dtype for rows in (query, key, value)}
    if len(dtypes) > 1 or not dtypes <= {torch.float32, *HALVES}:
        raise CallRefusal(f"attention of {' and '.join(sorted(map(str, dtypes)))} isn't supported [products]")
    if any(len(rows.tensor.size) != 4 for rows in (query, key, value)):
        raise CallRefusal("the query has no batch and head dimensions [heads]")
    head, value_head = (int(V.graph.sizevars.guard_int(rows.tensor.size[3])) for rows in (query, value))
    if not (0 < head <= _MAX_HEAD and 0 < value_head <= _MAX_HEAD):
        raise CallRefusal(f"head sizes must be from 1 to {_MAX_HEAD}, not {head} and {value_head} [heads]")
    scale = call.arguments["scale"]
    return Attention(
        query,
        key,
        value,
        None if call.arguments["attn_bias"] is None else Rows("mask", call.tensor("attn_bias")),
        bool(call.arguments["is_causal"]),
        factor_text(1 / math.sqrt(head) if scale is None else float(scale), FLOAT),
        head,
        value_head,
        _dropout(call, seed),
    )


def _column(tensor: Tensor) -> Tensor:
    """Return a tensor with one number per row as a tensor with one column."""
    return Tensor(tensor.dtype, [*tensor.size, sympy.Integer(1)], [*tensor.stride, sympy.Integer(1)], tensor.name)


def _delta(call: TemplateCall, attention: Attention, gradients: Gradients) -> Kernel:
    result = Rows("result", call.tensor("out"))
    delta = Rows("delta", gradients.delta.tensor, is_written=True)
    kernel = Kernel("ob_attention_delta")
    for rows in (gradients.grad, result, delta):
        rows.declare(kernel)
    words: dict[str, Any] = {
        "ITEM": call.dialect.item,
        "ROWS": kernel.number("rows", attention.batch * attention.heads * attention.queries),
        "HEADS": kernel.number("heads", attention.heads),
        "QUERIES": kernel.number("queries", attention.queries),
        "VALUE_HEAD": str(attention.value_head),
        "PRODUCT": f"{gradients.grad.load('grad_from', 'query', 'at')} * {result.load('result_from', 'query', 'at')}",
        "GRAD": gradients.grad.begin(),
        "RESULT": result.begin(),
        "STORE": delta.store(delta.begin(), "query", "0", "sum"),
    }
    kernel.text = filled(_DELTA, words)
    kernel.spread(call, attention.batch * attention.heads * attention.queries)
    return kernel


_DELTA = """\
  const ob_i64 number = $ITEM;
  if (number >= $ROWS) return;
  const ob_i64 query = number % $QUERIES, head = number / $QUERIES % $HEADS, batch = number / $QUERIES / $HEADS;
  const ob_i64 grad_from = $GRAD, result_from = $RESULT;
  float sum = 0;
  for (int at = 0; at < $VALUE_HEAD; ++at) sum += $PRODUCT;
  $STORE
"""
