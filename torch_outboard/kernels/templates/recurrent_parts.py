# SPDX-License-Identifier: BSD-3-Clause
"""Parts shared by the recurrent kernels: the rows of a step, and a step's product with packed weights.

A step is one launch, which the plan repeats for a sequence. An item computes some columns of some rows: it sums
products with the previous step's states, and computes the cells from the sums. On CPUs, an item's columns are the lanes
of vectors, for which weights are packed once per sequence; on other devices, neighbouring items compute the
neighbouring columns.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch

from torch_outboard.kernels.templates.call import Kernel, Layout, TemplateCall, Tensor, simplified
from torch_outboard.kernels.templates.product import SumType, ceil_div, filled, loaded

__all__ = ["GATES", "GRU", "LSTM", "RELU", "TANH", "CallTensors", "Layer", "Part", "Steps", "begin", "packed"]

LSTM, GRU, TANH, RELU = range(4)
GATES = (4, 3, 1, 1)

_VECTOR_BYTES = 32
# A CPU item's rows, and vectors per gate, by number of gates. Their sums take 12 of 16 registers.
_SUMS = {4: (3, 1), 3: (4, 1), 1: (6, 2)}
_ROW = re.compile(r"\brow\b")
_ROWS = 4  # rows per item on other devices


@dataclass(frozen=True)
class Part:
    """How columns and rows are distributed over items, and the texts that depend on the distribution."""

    call: TemplateCall
    kernel: Kernel
    gates: int
    columns: Any
    batch: Any
    sums: SumType

    @property
    def has_vectors(self) -> bool:
        return self.call.is_cpu and bool(self.call.dialect.vectors)

    @property
    def vectors(self) -> int:
        return _SUMS[self.gates][1]

    @property
    def lanes(self) -> int:
        return self.vectors * _VECTOR_BYTES // self.sums.size if self.has_vectors else 1

    @property
    def rows(self) -> int:
        return _SUMS[self.gates][0] if self.has_vectors else _ROWS

    def words(self) -> dict[str, str]:
        """Set the number of groups, and return the placeholder texts of this module."""
        strips, blocks = ceil_div(self.columns, self.lanes), ceil_div(self.batch, self.rows)
        self.kernel.spread(self.call, strips * blocks, 1 if self.call.is_cpu else 64)
        real = self.sums.kind
        return {
            "ITEM": self.call.dialect.item,
            "COLUMNS": self.kernel.number("columns", self.columns),
            "BATCH": self.kernel.number("batch", self.batch),
            "LANES": str(self.lanes),
            "EACH": str(self.rows),
            "GATES": str(self.gates),
            "COUNT": str(self.rows * self.gates * self.lanes),
            "SUM": real,
            "SUFFIX": self.sums.suffix,
            "VECTOR": str(_VECTOR_BYTES // self.sums.size),
            "WEIGHT": self.call.dialect.pointer(real, is_written=False),
        }

    def product(self, depth: str, factor: str, weight: str) -> str:
        """Return the loop that fills `sums` with each row's products; `factor` may read `row` and `step`."""
        words = {**self.words(), "DEPTH": depth, "FROM": weight}
        if not self.has_vectors:
            return filled(_PRODUCT, {**words, "FACTOR": factor})
        self.kernel.before = filled(_READ, words)
        return filled(self._in_registers(factor), words)

    def _in_registers(self, factor: str) -> str:
        """Return the loop that keeps all sums in registers. A step's weights for a strip are adjacent in memory."""
        vectors, rows = range(self.gates * self.vectors), range(self.rows)
        lines = [f"    ob_vec_$SUFFIX s{row}_{vector} = ob_vec_splat_$SUFFIX(0);" for row in rows for vector in vectors]
        lines.append("    for (ob_i64 step = 0; step < $DEPTH; ++step) {")
        lines.append("      $WEIGHT from = $FROM + (item % strips * $DEPTH + step) * $GATES * $LANES;")
        lines += [f"      const $SUM f{row} = {_ROW.sub(str(row), factor)};" for row in rows]
        for vector in vectors:
            lines.append(f"      const ob_vec_$SUFFIX w{vector} = ob_read_weights(from + {vector} * $VECTOR);")
            sums = [(f"f{row}, w{vector}, s{row}_{vector}", f"s{row}_{vector}") for row in rows]
            lines += [f"      {to} = ob_vec_add_product_$SUFFIX({term});" for term, to in sums]
        lines.append("    }")
        place = "sums + ({} * $GATES * $LANES + {} * $VECTOR)"
        lines += [
            f"    ob_vec_store_$SUFFIX(s{row}_{vector}, {place.format(row, vector)});"
            for row in rows
            for vector in vectors
        ]
        return "\n".join([*lines, ""])

    def each(self, condition: str, text: str) -> str:
        """Return a loop over the item's elements; `b` is the sequence and `j` the column."""
        return filled(_EACH, {**self.words(), "CONDITION": condition, "TEXT": text})


def begin(call: TemplateCall, name: str, gates: int, columns: Any, batch: Any, dtype: torch.dtype) -> Part:
    return Part(call, Kernel(name), gates, columns, batch, SumType.of(dtype))


def packed(call: TemplateCall, like: Part, matrix: Tensor, strides: Sequence[Any], depth: Any) -> Tensor:
    """Write the launch that packs weights in the accumulation type, with 0 after the last column.

    `strides` are the matrix's strides along steps, gates and columns. For items with vectors, weights are ordered by
    strip of columns, step and gate. For other items, they are ordered by step, gate and column, so that neighbouring
    items read neighbouring columns.
    """
    strips = ceil_div(like.columns, like.lanes)
    result = call.allocate(Layout(like.sums.dtype, [depth * like.gates * strips * like.lanes], [sympy.Integer(1)]))
    kernel = Kernel("ob_pack_weights")
    kernel.spread(call, depth * strips)
    kernel.pointer("matrix", matrix)
    kernel.pointer("result", result, is_written=True)
    along = dict(zip(("STEP", "GATE", "COLUMN"), strides, strict=True))
    words = {f"ALONG_{name}": kernel.number(f"along_{name.lower()}", stride) for name, stride in along.items()}
    place = "matrix[step * $ALONG_STEP + gate * $ALONG_GATE + column * $ALONG_COLUMN]"
    words |= {
        **like.words(),
        "STRIPS": kernel.number("strips", strips),
        "DEPTH": kernel.number("depth", depth),
        "STRIP_OF": "item / $DEPTH" if like.has_vectors else "item % $STRIPS",
        "STEP_OF": "item % $DEPTH" if like.has_vectors else "item / $STRIPS",
        "PLACE": "(item * $GATES + gate) * $LANES + lane"
        if like.has_vectors
        else "(step * $GATES + gate) * $STRIPS + strip",
        "COLUMNS": kernel.number("columns", like.columns),
        "VALUE": loaded(place, matrix.dtype, like.sums),
    }
    kernel.text = filled(_PACK, words)
    call.launch(kernel)
    return result


class CallTensors:
    """A call's tensors by name, contiguous: tensors with gaps or in another order are copied for the kernels."""

    def __init__(self, call: TemplateCall, *names: str) -> None:
        self.call = call
        self.copies: list[Tensor] = []
        self.tensors = {name: self._dense(call.tensor(name)) for name in names if call.arguments[name] is not None}

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def get(self, name: str) -> Tensor | None:
        return self.tensors.get(name)

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def free(self) -> None:
        for copy in self.copies:
            self.call.free(copy)

    def _dense(self, tensor: Tensor) -> Tensor:
        strides = [math.prod(tensor.size[dim + 1 :], start=sympy.Integer(1)) for dim in range(len(tensor.size))]
        pairs = zip(tensor.size, tensor.stride, strides, strict=True)
        if all(simplified(size) == 1 or simplified(own - dense) == 0 for size, own, dense in pairs):
            return tensor
        result = self.call.allocate(Layout(tensor.dtype, tensor.size, strides))
        self.copies.append(result)
        self.call.launch(self._copy(tensor, result))
        return result

    def _copy(self, tensor: Tensor, result: Tensor) -> Kernel:
        kernel = Kernel("ob_dense_copy")
        count = math.prod(tensor.size, start=sympy.Integer(1))
        kernel.spread(self.call, count)
        kernel.pointer("given", tensor)
        kernel.pointer("result", result, is_written=True)
        lines = [f"  ob_i64 rest = {self.call.dialect.item};", "  const ob_i64 item = rest;"]
        lines.append(f"  if (item >= {kernel.number('count', count)}) return;")
        places = []
        for dim in reversed(range(len(tensor.size))):
            size, stride = kernel.number(f"size{dim}", tensor.size[dim]), kernel.number(f"by{dim}", tensor.stride[dim])
            lines += [f"  const ob_i64 at{dim} = rest % {size};", f"  rest /= {size};"]
            places.append(f"at{dim} * {stride}")
        kernel.text = "\n".join([*lines, f"  result[item] = given[{' + '.join(places)}];", ""])
        return kernel


@dataclass(frozen=True)
class Steps:
    """The steps of a batch. A packed batch has a table of each step's first row."""

    steps: Any
    offsets: Tensor | None

    @staticmethod
    def of(call: TemplateCall, rows: Tensor) -> Steps:
        if call.arguments["offsets"] is None:
            return Steps(rows.size[0], None)
        offsets = call.tensor("offsets")
        return Steps(offsets.size[0] - 1, offsets)

    def declare(self, kernel: Kernel) -> None:
        if self.offsets is not None:
            kernel.pointer("offsets", self.offsets)

    def first(self, step: str) -> str:
        """Return the first row of a step; "$BATCH" is the number of sequences."""
        return f"({step}) * $BATCH" if self.offsets is None else f"offsets[{step}]"


_PACK = """\
  const ob_i64 item = $ITEM;
  if (item >= $DEPTH * $STRIPS) return;
  const ob_i64 strip = $STRIP_OF, step = $STEP_OF;
  for (int gate = 0; gate < $GATES; ++gate)
    for (int lane = 0; lane < $LANES; ++lane) {
      const ob_i64 column = strip * $LANES + lane;
      result[$PLACE] = column < $COLUMNS ? $VALUE : 0;
    }
"""

_READ = """\
OB_DEVICE ob_vec_$SUFFIX ob_read_weights($WEIGHT from) {
  $SUM taken[$VECTOR];
  for (int lane = 0; lane < $VECTOR; ++lane) taken[lane] = from[lane];
  return ob_vec_load_$SUFFIX(taken);
}
"""

_PRODUCT = """\
    for (ob_i64 step = 0; step < $DEPTH; ++step) {
      $WEIGHT from = $FROM + step * $GATES * strips + first;
      for (int row = 0; row < $EACH; ++row) {
        const $SUM factor = $FACTOR;
        for (int gate = 0; gate < $GATES; ++gate) sums[row * $GATES + gate] += factor * from[gate * strips];
      }
    }
"""

_EACH = """\
  for (int row = 0; row < $EACH; ++row) {
    const ob_i64 b = first_row + row;
    if ($CONDITION) {
      for (int lane = 0; lane < $LANES && first + lane < $COLUMNS; ++lane) {
        const ob_i64 j = first + lane;
$TEXT
      }
    }
  }
"""


class Layer:
    """The tensors and sizes of a layer's pass. A subclass writes the launches.

    `given` and `results` name the operator's tensors, and `rows` the given tensor with one row per sequence and step.
    """

    def __init__(self, call: TemplateCall, given: Sequence[str], results: Sequence[str], rows: str) -> None:
        self.call, self.results = call, results
        layouts = zip(results, call.results, strict=True)
        self.made = {name: call.allocate(layout) for name, layout in layouts if layout is not None}
        self.kind: int = call.arguments["kind"]
        self.given = CallTensors(call, *given)
        self.h0, self.weight = self.given["h0"], self.given["weight"]
        self.batch, self.states = self.h0.size
        self.projection = self.given.get("projection")
        self.cells = self.projection.size[1] if self.projection else self.states
        self.real = self.given[rows].dtype
        self.steps = Steps.of(call, self.given[rows])

    def names(self) -> list[str | None]:
        """Return the names of the results; None for results that are not requested."""
        return [self.made[name].name if name in self.made else None for name in self.results]

    def loaded(self, place: str) -> str:
        return loaded(place, self.real, SumType.of(self.real))
