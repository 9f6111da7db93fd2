# SPDX-License-Identifier: BSD-3-Clause
"""LSTM and GRU cells, one kernel each, and recurrent layers, one kernel per step.

csrc/ops/own/recurrent.cpp and recurrent_steps.cpp define the schemas.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_outboard.kernels.book.row import Body, Operator
from torch_outboard.kernels.refusal import CallRefusal

__all__ = ["OPERATORS"]

_Optional = torch.Tensor | None


def _with_bias(gates: torch.Tensor, bias: _Optional) -> torch.Tensor:
    return gates if bias is None else gates + bias


def _parts(tensor: torch.Tensor, size: Any, count: int) -> list[torch.Tensor]:
    return [tensor.narrow(1, number * size, size) for number in range(count)]


def _sigmoid_backward(grad: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    return grad * (1 - output) * output


def _lstm_cell(
    input_gates: torch.Tensor, hidden_gates: torch.Tensor, cx: torch.Tensor, input_bias: _Optional, bias: _Optional
) -> tuple[torch.Tensor, ...]:
    gates = _with_bias(input_gates, input_bias) + _with_bias(hidden_gates, bias)
    parts = _parts(gates, cx.shape[1], 4)
    kept = [part.tanh() if number == 2 else part.sigmoid() for number, part in enumerate(parts)]
    cy = kept[1] * cx + kept[0] * kept[2]
    return kept[3] * cy.tanh(), cy, torch.cat(kept, 1)


def _lstm_cell_backward(
    grad_hy: _Optional, grad_cy: _Optional, cx: torch.Tensor, cy: torch.Tensor, workspace: torch.Tensor, has_bias: bool
) -> tuple[_Optional, ...]:
    if grad_hy is None and grad_cy is None:
        return None, None, None
    i, f, g, o = _parts(workspace, cx.shape[1], 4)
    grad_c = grad_cy
    grad_o = torch.zeros_like(o)
    if grad_hy is not None:
        tanh_cy = cy.tanh()
        through = grad_hy * o * (1 - tanh_cy * tanh_cy)
        grad_c = through if grad_c is None else grad_c + through
        grad_o = _sigmoid_backward(grad_hy * tanh_cy, o)
    assert grad_c is not None
    grads = _sigmoid_backward(grad_c * g, i), _sigmoid_backward(grad_c * cx, f), grad_c * i * (1 - g * g), grad_o
    grad_gates = torch.cat(grads, 1)
    return grad_gates, grad_c * f, grad_gates.sum(0) if has_bias else None


def _gru_cell(
    input_gates: torch.Tensor, hidden_gates: torch.Tensor, hx: torch.Tensor, input_bias: _Optional, bias: _Optional
) -> tuple[torch.Tensor, ...]:
    input_parts = _parts(_with_bias(input_gates, input_bias), hx.shape[1], 3)
    hidden = _parts(_with_bias(hidden_gates, bias), hx.shape[1], 3)
    reset, update = (input_parts[0] + hidden[0]).sigmoid(), (input_parts[1] + hidden[1]).sigmoid()
    fresh = (input_parts[2] + hidden[2] * reset).tanh()
    return (hx - fresh) * update + fresh, torch.cat([reset, update, fresh, hx, hidden[2]], 1)


def _gru_cell_backward(grad: torch.Tensor, workspace: torch.Tensor, has_bias: bool) -> tuple[_Optional, ...]:
    reset, update, fresh, hx, hidden = _parts(workspace, grad.shape[1], 5)
    grad_fresh = grad * (1 - update) * (1 - fresh * fresh)
    grad_update = _sigmoid_backward(grad * (hx - fresh), update)
    grad_reset = _sigmoid_backward(grad_fresh * hidden, reset)
    grad_input = torch.cat([grad_reset, grad_update, grad_fresh], 1)
    grad_hidden = torch.cat([grad_reset, grad_update, grad_fresh * reset], 1)
    biases = (grad_input.sum(0), grad_hidden.sum(0)) if has_bias else (None, None)
    return grad_input, grad_hidden, grad * update, *biases


def _bound_sum(gates: torch.Tensor, hidden_gates: torch.Tensor, is_tanh: bool) -> torch.Tensor:
    total = gates + hidden_gates
    return total.tanh() if is_tanh else total.relu()


def _check_fit(rows: torch.Tensor, kept: int, h0: torch.Tensor, weight: torch.Tensor, offsets: Any, kind: int) -> None:
    """Refuse tensors that the kernels would read out of bounds. The CPU's kernel then raises the error.

    A row of `rows` has `kept` numbers per cell, or one number per gate if `kept` is 0.
    """
    from torch_outboard.kernels.templates.recurrent_parts import GATES

    ranks = (rows.dim(), h0.dim(), weight.dim(), 1 if offsets is None else offsets.dim())
    fits = 0 <= kind < len(GATES) and ranks == (3 if offsets is None else 2, 2, 2, 1)
    if fits:
        gates = weight.shape[0]
        fits = rows.shape[-1] == (gates // GATES[kind] * kept if kept else gates)
        fits = fits and weight.shape[1] == h0.shape[1] and (offsets is not None or rows.shape[1] == h0.shape[0])
    if not fits:
        raise CallRefusal("the shapes of input, states and weights don't match [recurrent-shapes]")


def _recurrent(gates: torch.Tensor, h0: torch.Tensor, c0: _Optional, weight: torch.Tensor, *args: Any) -> Any:
    from torch_outboard.kernels.templates.recurrent import recurrent_steps
    from torch_outboard.kernels.templates.recurrent_parts import LSTM

    offsets, kind = args[3:5]
    _check_fit(gates, 0, h0, weight, offsets, kind)
    if (c0 is not None) != (kind == LSTM) or (c0 is not None and (c0.dim() != 2 or c0.shape[0] != h0.shape[0])):
        raise CallRefusal("the cell states don't match the hidden states or the kind of layer [recurrent-shapes]")
    return recurrent_steps(gates, h0, c0, weight, *args)


def _recurrent_backward(*args: Any) -> Any:
    from torch_outboard.kernels.templates.recurrent_backward import recurrent_gradients
    from torch_outboard.kernels.templates.recurrent_parts import GRU, LSTM

    h0, kept, _, weight, _, offsets, kind = args[3:10]
    _check_fit(kept, {LSTM: 5, GRU: 4}.get(kind, 1), h0, weight, offsets, kind)
    return recurrent_gradients(*args)


OPERATORS = (
    Operator("outboard::bound_sum", computed=Body(_bound_sum)),
    Operator("outboard::gru_cell", computed=Body(_gru_cell)),
    Operator("outboard::gru_cell_backward", computed=Body(_gru_cell_backward)),
    Operator("outboard::lstm_cell", computed=Body(_lstm_cell)),
    Operator("outboard::lstm_cell_backward", computed=Body(_lstm_cell_backward)),
    Operator("outboard::recurrent", computed=Body(_recurrent)),
    Operator("outboard::recurrent_backward", computed=Body(_recurrent_backward)),
    Operator("outboard::recurrent_gradients.default", template="recurrent_backward:backward"),
    Operator("outboard::recurrent_steps.default", template="recurrent:forward"),
)
