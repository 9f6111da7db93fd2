# SPDX-License-Identifier: BSD-3-Clause
"""Gradients of the steps of a recurrent layer: one launch per step, and one for the initial states.

The steps go backwards. An item computes the gradient of its states from the next step's gate gradients, and then the
gradients of its cells' gates. A sequence that has no row left in the step is at its initial state.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_outboard.kernels.templates.call import Kernel, Layout, TemplateCall, Tensor
from torch_outboard.kernels.templates.product import filled, stored
from torch_outboard.kernels.templates.recurrent_parts import GATES, GRU, LSTM, TANH, Layer, Part, begin, packed

__all__ = ["backward", "recurrent_gradients"]

_library = torch.library.Library("outboard", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define(  # type: ignore[no-untyped-call]
    "recurrent_gradients(Tensor? grad_output, Tensor? grad_hy, Tensor? grad_cy, Tensor h0, Tensor kept,"
    " Tensor previous, Tensor weight, Tensor? projection, Tensor? offsets, int kind, bool reverse)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)


def _shapes(*args: Any) -> Any:
    h0, kept, _, weight, projection, _, kind, _ = args[3:]
    rows, width = kept.shape[:-1], weight.shape[0]
    return (
        kept.new_empty((*rows, width)),
        kept.new_empty((*rows, width)) if kind == GRU else None,
        h0.new_empty(h0.shape),
        h0.new_empty((h0.shape[0], width // GATES[kind])) if kind == LSTM else None,
        None if projection is None else kept.new_empty((*rows, h0.shape[1])),
    )


_library.impl("recurrent_gradients", _shapes, "Meta")  # type: ignore[no-untyped-call]

# All tensors are contiguous. The operator is `outboard::recurrent_backward`.
recurrent_gradients = torch.ops.outboard.recurrent_gradients.default


def backward(call: TemplateCall) -> list[str | None]:
    given = ("grad_output", "grad_hy", "grad_cy", "h0", "kept", "previous", "weight", "projection")
    layer = _Backward(call, given, ("grad_gates", "grad_hidden_gates", "grad_h0", "grad_c0", "projected"), "kept")
    layer.write()
    return layer.names()


class _Backward(Layer):
    """Writes the launches of a layer's gradients."""

    @property
    def back(self) -> str:
        """The result from which the gradients of the previous step's states are computed."""
        return "grad_hidden_gates" if self.kind == GRU else "grad_gates"

    def write(self) -> None:
        call = self.call
        part = begin(call, "ob_recurrent_gradient", 1, self.states, self.batch, self.real)
        weight = packed(call, part, self.weight, (self.states, 0, 1), self.weight.size[0])
        carry = None
        if self.kind == GRU:
            carry = call.allocate(Layout(part.sums.dtype, [self.batch, self.states], [self.states, 1]))
        kernels, matrix = [self._step(part, weight, carry)], None
        if self.projection:
            cells = begin(call, "ob_gradient_of_cells", 1, self.cells, self.batch, self.real)
            matrix = packed(call, cells, self.projection, (self.cells, 0, 1), self.states)
            kernels.append(self._project(cells, matrix))
        call.repeat(self.steps.steps + 1, *kernels)
        for tensor in (weight, carry, matrix):
            if tensor is not None:
                call.free(tensor)
        self.given.free()

    def _frame(self, part: Part) -> dict[str, str]:
        kernel = part.kernel
        kernel.turn()
        self.steps.declare(kernel)
        is_reversed = self.call.arguments["reverse"]
        steps = kernel.number("steps", self.steps.steps)
        later = "at - 1" if is_reversed else "at + 1"
        return {
            **part.words(),
            "STATES": kernel.number("states", self.states),
            "CELLS": kernel.number("cells", self.cells),
            "WIDTH": kernel.number("gate_columns", self.weight.size[0]),
            "STEPS": steps,
            "AT": "turn" if is_reversed else f"{steps} - 1 - turn",
            "FIRST": self.steps.first("at"),
            "END": self.steps.first("at + 1"),
            "FIRST_LATER": self.steps.first(later),
            "END_LATER": self.steps.first(f"{later} + 1"),
        }

    def _step(self, part: Part, weight: Tensor, carry: Tensor | None) -> Kernel:
        kernel = part.kernel
        words = self._frame(part)
        kernel.pointer("weight", weight)
        kernel.pointer("grad_h0", self.made["grad_h0"], is_written=True)
        if carry is not None:
            kernel.pointer("carry", carry, is_written=True)
        for name in ("grad_output", "grad_hy"):
            if name in self.given:
                kernel.pointer(name, self.given[name])
        if self.projection:
            kernel.pointer(self.back, self.made[self.back])
            kernel.pointer("projected", self.made["projected"], is_written=True)
            cells = stored("projected[(begin + b) * $STATES + j]", "grad", self.real)
        else:
            cells = self._cells(kernel, carry is not None)
        source = self.loaded(f"{self.back}[(begin_later + ({_CLAMPED_LATER})) * $WIDTH + step]")
        text = filled(self._state(carry is not None) + cells, words)
        words |= {
            "PRODUCT": part.product(words["WIDTH"], filled(source, words), "weight"),
            "CELLS_OF_ITEM": part.each("b < most", text),
        }
        kernel.text = filled(_STEP, words)
        return kernel

    def _project(self, part: Part, matrix: Tensor) -> Kernel:
        kernel = part.kernel
        words = self._frame(part)
        kernel.pointer("matrix", matrix)
        kernel.pointer("projected", self.made["projected"])
        source = self.loaded(f"projected[(begin + ({_CLAMPED})) * $STATES + step]")
        text = "const bool has_later = b < rows_later;\nconst $SUM grad = sums[row * $LANES + lane];\n"
        text = filled(text + self._cells(kernel, False), words)
        words |= {
            "PRODUCT": part.product(words["STATES"], filled(source, words), "matrix"),
            "CELLS_OF_ITEM": part.each("b < rows", text),
        }
        kernel.text = filled(_PROJECT, words)
        return kernel

    def _given(self, name: str, place: str) -> str:
        return self.loaded(f"{name}[{place}]") if name in self.given else "0"

    def _state(self, has_carry: bool) -> str:
        """Return the statements that compute the gradient of a state."""
        carried = " + carry[b * $STATES + j]" if has_carry else ""
        return f"""\
const bool has_later = b < rows_later;
$SUM grad = has_later ? sums[row * $LANES + lane]{carried} : {self._given("grad_hy", "b * $STATES + j")};
if (b >= rows) {{
  {stored("grad_h0[b * $STATES + j]", "grad", self.real)}
  continue;
}}
grad += {self._given("grad_output", "(begin + b) * $STATES + j")};
"""

    def _gate(self, name: str, gate: int, value: str) -> str:
        return stored(f"{name}[(begin + b) * $WIDTH + {gate} * $CELLS + j]", value, self.real) + "\n"

    def _cells(self, kernel: Kernel, has_carry: bool) -> str:
        kernel.pointer("kept", self.given["kept"])
        kernel.pointer("grad_gates", self.made["grad_gates"], is_written=True)
        if self.kind == LSTM:
            kernel.pointer("grad_c0", self.made["grad_c0"], is_written=True)
            if "grad_cy" in self.given:
                kernel.pointer("grad_cy", self.given["grad_cy"])
            return self._lstm()
        if self.kind == GRU:
            kernel.pointer("grad_hidden_gates", self.made["grad_hidden_gates"], is_written=True)
            kernel.pointer("previous", self.given["previous"])
            return self._gru()
        h = self.loaded("kept[(begin + b) * $CELLS + j]")
        value = "grad * (1 - h * h)" if self.kind == TANH else "(h > 0 ? grad : 0)"
        return f"const $SUM h = {h};\n{self._gate('grad_gates', 0, value)}"

    def _read(self, *names: str) -> str:
        places = (f"kept[((begin + b) * {len(names)} + {number}) * $CELLS + j]" for number in range(len(names)))
        return "".join(
            f"const $SUM {name} = {self.loaded(place)};\n" for name, place in zip(names, places, strict=True)
        )

    def _lstm(self) -> str:
        later = self.loaded("grad_c0[b * $CELLS + j]")
        text = self._read("i", "f", "g", "o", "before")
        text += f"const $SUM bounded = {self.call.dialect.function('tanh')}(f * before + i * g);\n"
        text += f"const $SUM later = has_later ? {later} : {self._given('grad_cy', 'b * $CELLS + j')};\n"
        text += "const $SUM cell = later + grad * o * (1 - bounded * bounded);\n"
        values = ("cell * g * (1 - i) * i", "cell * before * (1 - f) * f", "cell * i * (1 - g * g)")
        for gate, value in enumerate((*values, "grad * bounded * (1 - o) * o")):
            text += self._gate("grad_gates", gate, value)
        return text + stored("grad_c0[b * $CELLS + j]", "cell * f", self.real)

    def _gru(self) -> str:
        before = self.loaded("previous[(begin + b) * $STATES + j]")
        text = self._read("r", "z", "n", "own") + f"const $SUM before = {before};\n"
        text += "const $SUM of_n = grad * (1 - z) * (1 - n * n);\n"
        text += "const $SUM of_z = grad * (before - n) * (1 - z) * z;\n"
        text += "const $SUM of_r = of_n * own * (1 - r) * r;\n"
        for gate, value in enumerate(("of_r", "of_z", "of_n")):
            text += self._gate("grad_gates", gate, value)
        for gate, value in enumerate(("of_r", "of_z", "of_n * r")):
            text += self._gate("grad_hidden_gates", gate, value)
        return text + "carry[b * $STATES + j] = grad * z;"


# Rows after the last are computed but not stored.
_CLAMPED = "first_row + row < rows ? first_row + row : rows - 1"
_CLAMPED_LATER = "first_row + row < rows_later ? first_row + row : rows_later - 1"

_FRAME = """\
  const ob_i64 item = $ITEM;
  const ob_i64 strips = ($COLUMNS + $LANES - 1) / $LANES;
  const ob_i64 at = $AT;
  ob_i64 begin = 0, rows = 0, begin_later = 0, rows_later = 0;
  if (turn < $STEPS) {
    begin = $FIRST;
    rows = $END - begin;
  }
  if (turn > 0) {
    begin_later = $FIRST_LATER;
    rows_later = $END_LATER - begin_later;
  }
  const ob_i64 most = rows > rows_later ? rows : rows_later;
  const ob_i64 first = item % strips * $LANES, first_row = item / strips * $EACH;
"""

_STEP = f"""\
{_FRAME}  if (first_row >= most) return;
  $SUM sums[$COUNT];
  for (int i = 0; i < $COUNT; ++i) sums[i] = 0;
  if (first_row < rows_later) {{
$PRODUCT  }}
$CELLS_OF_ITEM"""

_PROJECT = f"""\
{_FRAME}  if (first_row >= rows) return;
  $SUM sums[$COUNT];
  for (int i = 0; i < $COUNT; ++i) sums[i] = 0;
$PRODUCT$CELLS_OF_ITEM"""
