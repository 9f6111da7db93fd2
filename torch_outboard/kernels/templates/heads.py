# SPDX-License-Identifier: BSD-3-Clause
"""Attention as text: the tensors that it reads and writes, independent of the schedule."""

from __future__ import annotations

from dataclasses import dataclass

import sympy  # type: ignore[import-untyped]
import torch
from torch.utils._sympy.functions import FloorDiv

from torch_outboard.kernels.templates.call import Kernel, Tensor, number_text
from torch_outboard.kernels.templates.product import Epilogue, Operand, SumType, filled, loaded, stored

__all__ = ["FLOAT", "MASKED_SCORE", "Attention", "Dropout", "Gradients", "Rows"]

FLOAT = SumType.of(torch.float32)
# The score of an excluded key.
MASKED_SCORE = "-(float)OB_INFINITY"
# Number of heads whose keys and values fit in a device's cache together.
_HEADS_IN_CACHE = 64


class Rows:
    """A tensor of batches, heads, rows and columns, with texts for its strides; leading dimensions may be missing."""

    def __init__(self, name: str, tensor: Tensor, is_written: bool = False) -> None:
        self.name, self.tensor, self._is_written = name, tensor, is_written
        strides = [
            sympy.Integer(0) if size == 1 else stride for size, stride in zip(tensor.size, tensor.stride, strict=True)
        ]
        missing = [sympy.Integer(0)] * (4 - len(strides))
        self._strides = dict(zip(("batch", "head", "row", "column"), [*missing, *strides], strict=True))

    def declare(self, kernel: Kernel) -> None:
        kernel.pointer(self.name, self.tensor, self._is_written)
        for which, stride in self._strides.items():
            kernel.number(f"{self.name}_{which}_stride", stride)

    @property
    def sizes(self) -> tuple[sympy.Expr, sympy.Expr]:
        """The numbers of batches and of heads."""
        sizes = [sympy.Integer(1)] * (4 - len(self.tensor.size)) + list(self.tensor.size)
        return sizes[0], sizes[1]

    def stride(self, which: str) -> str:
        return number_text(f"{self.name}_{which}_stride", self._strides[which])

    def stride_and_text(self, which: str) -> tuple[sympy.Expr, str]:
        return self._strides[which], self.stride(which)

    def is_dense_along(self, which: str) -> bool:
        return bool(self._strides[which] == 1)

    def epilogue(self, value: str, row: str = "row") -> Epilogue:
        """Return the stores of results, with rows named `row`, in the head that starts at `<name>_from`."""
        return Epilogue(
            declare=lambda kernel: None,
            value=value,
            place=self.place(f"{self.name}_from", row, "column"),
            dtype=self.tensor.dtype,
            dense="column" if self.is_dense_along("column") else "",
            multiples=tuple(self.stride(axis) for axis in ("batch", "head", "row")),
            pointer=self.name,
        )

    def operand(self, line: str) -> Operand:
        """Return the rows as an operand whose lines are "row" or "column" and whose batch numbers batches and heads."""
        step, heads = "column" if line == "row" else "row", self.tensor.size[1]

        def declare(kernel: Kernel) -> None:
            self.declare(kernel)
            kernel.parameter("heads", heads)

        begin = f"batch / heads * {self.stride('batch')} + batch % heads * {self.stride('head')}"
        return Operand(
            declare=declare,
            of_line=(("ob_i64", f"{self.name}_from", f"{begin} + line * {self.stride(line)}"),),
            of_step="",
            place=f"{self.name}[{self.name}_from + step * {self.stride(step)}]",
            dtype=self.tensor.dtype,
            is_dense_along_steps=self.is_dense_along(step) and not self.is_dense_along(line),
        )

    def begin(self, head: str = "head") -> str:
        """Return the position of a head's first element."""
        return f"batch * {self.stride('batch')} + {head} * {self.stride('head')}"

    def place(self, begin: str, row: str, column: str = "0") -> str:
        return f"{self.name}[{begin} + ({row}) * {self.stride('row')} + ({column}) * {self.stride('column')}]"

    def load(self, begin: str, row: str, column: str = "0") -> str:
        """Return an element as a float. For a bool mask, return what the element adds to a score."""
        place = self.place(begin, row, column)
        if self.tensor.dtype == torch.bool:
            return f"({place} ? 0 : {MASKED_SCORE})"
        return loaded(place, self.tensor.dtype, FLOAT)

    def store(self, begin: str, row: str, column: str, value: str) -> str:
        return stored(self.place(begin, row, column), value, self.tensor.dtype)


@dataclass(frozen=True)
class Dropout:
    """Selects the weights to drop: a function of a seed and of a weight's batch, head, query and key.

    Attributes
    ----------
    probability : float
        The probability of dropping a weight, in (0, 1).
    seed : Tensor
        An int64.
    result : Tensor or None
        The operator's result that receives the seed.
    """

    probability: float
    seed: Tensor
    result: Tensor | None = None

    @property
    def least(self) -> str:
        """The smallest of the 2^32 random words that keeps a weight, as text."""
        return f"{min(max(round(self.probability * 2**32), 1), 2**32 - 1)}u"

    @property
    def scale(self) -> str:
        """The factor of kept weights, as text."""
        return f"(float){1 / (1 - self.probability)!r}"

    def declare(self, kernel: Kernel) -> None:
        kernel.pointer("drop_seed", self.seed)
        if self.result is not None:
            kernel.pointer("drop_result", self.result, is_written=True)

    def begin(self) -> str:
        """Return the statements that read the seed; the item selected by $FIRST stores it."""
        store = " if ($FIRST) drop_result[0] = drop_seed[0];" if self.result is not None else ""
        return f"const ob_u64 drop_from = (ob_u64)drop_seed[0];{store}"


@dataclass(frozen=True)
class Attention:
    """A call of attention.

    Attributes
    ----------
    head, value_head : int
        Elements per row of queries and keys, and of values, as constants in kernels.
    scale : str
        The scale, as text.
    dropout : Dropout or None
        Weights are dropped after they are summed, so the sum and its logarithm cover all weights.
    """

    query: Rows
    key: Rows
    value: Rows
    mask: Rows | None
    is_causal: bool
    scale: str
    head: int
    value_head: int
    dropout: Dropout | None = None

    @property
    def batch(self) -> sympy.Expr:
        return self.query.tensor.size[0]

    @property
    def heads(self) -> sympy.Expr:
        return self.query.tensor.size[1]

    @property
    def key_heads(self) -> sympy.Expr:
        return self.key.tensor.size[1]

    @property
    def queries(self) -> sympy.Expr:
        return self.query.tensor.size[2]

    @property
    def keys(self) -> sympy.Expr:
        return self.key.tensor.size[2]

    def declare(self, kernel: Kernel, *others: Rows) -> dict[str, str]:
        """Declare the sizes, the mask and the given tensors, and return their placeholder texts."""
        for rows in (*others, *([self.mask] if self.mask else [])):
            rows.declare(kernel)
        if self.dropout is not None:
            self.dropout.declare(kernel)
        return {
            "DROP_BEGIN": "" if self.dropout is None else self.dropout.begin(),
            "FIRST": "OB_GROUP_NUMBER == 0 && OB_ITEM_OF_GROUP == 0",
            "LEAST_KEPT": "0u" if self.dropout is None else self.dropout.least,
            "KEPT_SCALE": "1" if self.dropout is None else self.dropout.scale,
            "QUERIES": kernel.number("queries", self.queries),
            "KEYS": kernel.number("keys", self.keys),
            "HEADS": kernel.number("heads", self.heads),
            # The number of query heads that share a key head.
            "GROUP": kernel.number("group", FloorDiv(self.heads, self.key_heads)),
            "HEAD": str(self.head),
            "VALUE_HEAD": str(self.value_head),
            "SCALE": self.scale,
            "MASKED_SCORE": MASKED_SCORE,
            "IS_CAUSAL": "1" if self.is_causal else "0",
            "ORDER": filled(_IN_TURN if self.is_causal else _BY_HEADS, {"HEADS_IN_CACHE": str(_HEADS_IN_CACHE)}),
            "MASK_BEGIN": f"const ob_i64 mask_from = {self.mask.begin()};" if self.mask else "",
        }

    def mask_at(self, query: str, key: str) -> str:
        assert self.mask is not None
        return self.mask.load("mask_from", query, key)

    def kept(self, weight: str, query: str, key: str, scale: str = "1") -> str:
        """Return a weight times a factor, or 0 for a dropped weight."""
        if self.dropout is None:
            return weight
        place = f"batch * $HEADS + head, $QUERIES, $KEYS, {query}, {key}"
        kept = f"ob_is_kept(drop_from, $LEAST_KEPT, {place})"
        return f"({kept} ? {weight}{'' if scale == '1' else f' * {scale}'} : 0)"


# Assigns the `tiles` of a head to groups, slowest tiles first. `outer` numbers the heads of all
# batches.
_BY_HEADS = "const ob_i64 outer = OB_GROUP_NUMBER / tiles, rank = OB_GROUP_NUMBER % tiles;"
# Causal tiles take unequal times. Among this many heads, no short tile starts before a longer one,
# so that no long tile is left to run alone at the end.
_IN_TURN = """\
const ob_i64 first_head = OB_GROUP_NUMBER / (tiles * $HEADS_IN_CACHE) * $HEADS_IN_CACHE;
  const ob_i64 heads_left = ob_groups / tiles - first_head;
  const ob_i64 together = heads_left < $HEADS_IN_CACHE ? heads_left : $HEADS_IN_CACHE;
  const ob_i64 of_heads = OB_GROUP_NUMBER - first_head * tiles;
  const ob_i64 outer = first_head + of_heads % together, rank = of_heads / together;"""


@dataclass(frozen=True)
class Gradients:
    """The inputs of a call's gradients, and the gradients to write; None for a gradient that is not requested.

    `logsumexp` and `delta` each have one column.
    """

    grad: Rows
    logsumexp: Rows
    delta: Rows
    of_query: Rows | None
    of_key: Rows | None
    of_value: Rows | None
    of_mask: Rows | None = None
