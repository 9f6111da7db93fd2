# SPDX-License-Identifier: BSD-3-Clause
"""The steps of a recurrent layer in one direction: one launch per step, or two for LSTMs with a projection.

csrc/ops/own/recurrent_steps.h describes the tensors. A sequence reads its states from the previous step's row, or from
the initial states: in a packed batch that runs backwards, sequences begin at different steps.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_outboard.codegen.dialects.dialect import STORAGE_TYPES
from torch_outboard.kernels.templates.call import Kernel, Layout, TemplateCall, Tensor
from torch_outboard.kernels.templates.product import filled, loaded, stored
from torch_outboard.kernels.templates.recurrent_parts import GATES, GRU, LSTM, RELU, Layer, Part, begin, packed

__all__ = ["forward", "recurrent_steps"]

_library = torch.library.Library("outboard", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define(  # type: ignore[no-untyped-call]
    "recurrent_steps(Tensor gates, Tensor h0, Tensor? c0, Tensor weight, Tensor? input_bias, Tensor? hidden_bias,"
    " Tensor? projection, Tensor? offsets, int kind, bool reverse, bool keep)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)


def _shapes(gates: torch.Tensor, h0: torch.Tensor, c0: Any, weight: torch.Tensor, *args: Any) -> Any:
    kind, _, keep = args[-3:]
    states, cells = h0.shape[1], weight.shape[0] // GATES[kind]
    rows = gates.shape[:-1]
    kept = {LSTM: 5, GRU: 4}.get(kind)
    return (
        gates.new_empty((*rows, states)),
        h0.new_empty(h0.shape),
        None if c0 is None else c0.new_empty(c0.shape),
        gates.new_empty((*rows, states)) if keep else None,
        gates.new_empty((*rows, kept * cells)) if keep and kept else None,
    )


_library.impl("recurrent_steps", _shapes, "Meta")  # type: ignore[no-untyped-call]

# All tensors are contiguous. The operator is `outboard::recurrent`.
recurrent_steps = torch.ops.outboard.recurrent_steps.default


def forward(call: TemplateCall) -> list[str | None]:
    given = ("gates", "h0", "c0", "weight", "input_bias", "hidden_bias", "projection")
    layer = _Forward(call, given, ("output", "hy", "cy", "previous", "kept"), "gates")
    layer.write()
    return layer.names()


class _Forward(Layer):
    """Writes the launches of a layer."""

    def write(self) -> None:
        call, count = self.call, GATES[self.kind]
        part = begin(call, "ob_recurrent_step", count, self.cells, self.batch, self.real)
        along = self.states
        weight = packed(call, part, self.weight, (1, self.cells * along, along), self.states)
        if self.projection is None:
            call.repeat(self.steps.steps, self._step(part, weight, None))
        else:
            full = call.allocate(Layout(self.real, [self.batch, self.cells], [self.cells, 1]))
            projecting = begin(call, "ob_project", 1, self.states, self.batch, self.real)
            matrix = packed(call, projecting, self.projection, (1, 0, self.cells), self.cells)
            step = self._step(part, weight, full)
            call.repeat(self.steps.steps, step, self._project(projecting, matrix, full))
            call.free(matrix)
            call.free(full)
        call.free(weight)
        self.given.free()

    def _frame(self, part: Part) -> dict[str, str]:
        """Declare the inputs of both kernels, and return the placeholder texts of `_FRAME`."""
        kernel = part.kernel
        kernel.turn()
        self.steps.declare(kernel)
        kernel.pointer("h0", self.h0)
        kernel.pointer("output", self.made["output"], is_written=True)
        kernel.pointer("hy", self.made["hy"], is_written=True)
        if "previous" in self.made:
            kernel.pointer("previous", self.made["previous"], is_written=True)
        is_reversed = self.call.arguments["reverse"]
        before = "at + 1" if is_reversed else "at - 1"
        return {
            **part.words(),
            "STATES": kernel.number("states", self.states),
            "CELLS": kernel.number("cells", self.cells),
            "AT": f"{kernel.number('steps', self.steps.steps)} - 1 - turn" if is_reversed else "turn",
            "FIRST": self.steps.first("at"),
            "END": self.steps.first("at + 1"),
            "FIRST_BEFORE": self.steps.first(before),
            "END_BEFORE": self.steps.first(f"{before} + 1"),
        }

    def _step(self, part: Part, weight: Tensor, full: Tensor | None) -> Kernel:
        kernel = part.kernel
        words = self._frame(part)
        kernel.pointer("gates", self.given["gates"])
        kernel.pointer("weight", weight)
        for name in ("c0", "input_bias", "hidden_bias"):
            if name in self.given:
                kernel.pointer(name, self.given[name])
        for name in ("cy", "kept"):
            if name in self.made:
                kernel.pointer(name, self.made[name], is_written=True)
        if full is not None:
            kernel.pointer("full", full, is_written=True)
        texts = _Cells(self, part, full)
        words |= {
            "STATE": self.call.dialect.pointer(STORAGE_TYPES[self.real], is_written=False),
            "PRODUCT": part.product(words["STATES"], self.loaded("from_row[row][step]"), "weight"),
            "CELLS_OF_ITEM": part.each("b < rows", filled(texts.text(), words)),
        }
        kernel.text = filled(_STEP, words)
        return kernel

    def _project(self, part: Part, matrix: Tensor, full: Tensor) -> Kernel:
        kernel = part.kernel
        words = self._frame(part)
        kernel.pointer("matrix", matrix)
        kernel.pointer("full", full)
        factor = self.loaded(f"full[({_CLAMPED}) * $CELLS + step]")
        text = self.state("sums[row * $LANES + lane]")
        words |= {
            "PRODUCT": part.product(words["CELLS"], filled(factor, words), "matrix"),
            "STATES_OF_ITEM": part.each("b < rows", filled(text, words)),
        }
        kernel.text = filled(_PROJECT, words)
        return kernel

    def state(self, value: str) -> str:
        """Return the statements that store a new state."""
        text = f"const $SUM h = {value};\n"
        if "previous" in self.made:
            text += "previous[(begin + b) * $STATES + j] = b < rows_before\n"
            text += "    ? output[(begin_before + b) * $STATES + j] : h0[b * $STATES + j];\n"
        text += stored("output[(begin + b) * $STATES + j]", "h", self.real) + "\n"
        return text + stored("hy[b * $STATES + j]", "h", self.real)


class _Cells:
    """The text that computes a cell from its sums."""

    def __init__(self, steps: _Forward, part: Part, full: Tensor | None) -> None:
        self.steps, self.full, self.sums = steps, full, part.sums
        self.count = GATES[steps.kind]
        self.tanh = steps.call.dialect.function("tanh")
        self.sigmoid = f"ob_sigmoid_{part.sums.suffix}"

    def _load(self, place: str) -> str:
        return loaded(place, self.steps.real, self.sums)

    def _bias(self, name: str, gate: int) -> str:
        return "" if name not in self.steps.given else " + " + self._load(f"{name}[{gate} * $CELLS + j]")

    def given(self, gate: int) -> str:
        return f"({self._load(f'gates[(begin + b) * $GATES * $CELLS + {gate} * $CELLS + j]')}" + (
            f"{self._bias('input_bias', gate)})"
        )

    def hidden(self, gate: int) -> str:
        return f"(sums[(row * $GATES + {gate}) * $LANES + lane]{self._bias('hidden_bias', gate)})"

    def _gate(self, name: str, function: str, gate: int) -> str:
        return f"const $SUM {name} = {function}({self.given(gate)} + {self.hidden(gate)});\n"

    def _kept(self, *names: str) -> str:
        if "kept" not in self.steps.made:
            return ""
        places = (f"kept[((begin + b) * {len(names)} + {number}) * $CELLS + j]" for number in range(len(names)))
        return "".join(stored(place, name, self.steps.real) + "\n" for place, name in zip(places, names, strict=True))

    def text(self) -> str:
        kind = self.steps.kind
        if kind == LSTM:
            return self._lstm()
        if kind == GRU:
            return self._gru()
        value = f"{self.given(0)} + {self.hidden(0)}"
        if kind == RELU:
            return f"const $SUM sum = {value};\n{self.steps.state('sum < 0 ? 0 : sum')}"
        return self.steps.state(f"{self.tanh}({value})")

    def _lstm(self) -> str:
        before = f"b < rows_before ? {self._load('cy[b * $CELLS + j]')} : {self._load('c0[b * $CELLS + j]')}"
        names = (("i", self.sigmoid), ("f", self.sigmoid), ("g", self.tanh), ("o", self.sigmoid))
        text = "".join(self._gate(name, function, gate) for gate, (name, function) in enumerate(names))
        text += f"const $SUM before = {before};\nconst $SUM c = f * before + i * g;\n"
        text += stored("cy[b * $CELLS + j]", "c", self.steps.real) + "\n" + self._kept("i", "f", "g", "o", "before")
        value = f"o * {self.tanh}(c)"
        if self.full is not None:
            return text + stored("full[b * $CELLS + j]", value, self.steps.real)
        return text + self.steps.state(value)

    def _gru(self) -> str:
        text = self._gate("r", self.sigmoid, 0) + self._gate("z", self.sigmoid, 1)
        text += f"const $SUM own = {self.hidden(2)};\nconst $SUM n = {self.tanh}({self.given(2)} + r * own);\n"
        state = self._load("output[(begin_before + b) * $STATES + j]")
        text += f"const $SUM before = b < rows_before ? {state} : {self._load('h0[b * $STATES + j]')};\n"
        return text + self._kept("r", "z", "n", "own") + self.steps.state("(before - n) * z + n")


# A row of the batch that exists in the step: rows after the last are computed but not stored.
_CLAMPED = "first_row + row < rows ? first_row + row : rows - 1"

_FRAME = """\
  const ob_i64 item = $ITEM;
  const ob_i64 strips = ($COLUMNS + $LANES - 1) / $LANES;
  const ob_i64 at = $AT;
  const ob_i64 begin = $FIRST, rows = $END - begin;
  const ob_i64 first = item % strips * $LANES, first_row = item / strips * $EACH;
  if (first_row >= rows) return;
  ob_i64 begin_before = 0, rows_before = 0;
  if (turn > 0) {
    begin_before = $FIRST_BEFORE;
    rows_before = $END_BEFORE - begin_before;
  }
"""

_STEP = f"""\
{_FRAME}  $STATE from_row[$EACH];
  for (int row = 0; row < $EACH; ++row) {{
    const ob_i64 b = {_CLAMPED};
    from_row[row] = b < rows_before ? output + (begin_before + b) * $STATES : h0 + b * $STATES;
  }}
  $SUM sums[$COUNT];
  for (int i = 0; i < $COUNT; ++i) sums[i] = 0;
$PRODUCT$CELLS_OF_ITEM"""

_PROJECT = f"""\
{_FRAME}  $SUM sums[$COUNT];
  for (int i = 0; i < $COUNT; ++i) sums[i] = 0;
$PRODUCT$STATES_OF_ITEM"""
