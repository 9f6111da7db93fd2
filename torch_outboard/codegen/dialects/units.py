# SPDX-License-Identifier: BSD-3-Clause
"""Matrix units as data: instructions by which a few items together multiply small matrices.

A unit adds the product of a matrix of m by k and a matrix of k by n to one of m by n. Its items, the lanes, hold parts
of the three matrices in registers. The schedule `matrix` of the templates builds kernels from the unit of a dialect. A
vendor describes a unit by the places of the elements that a lane holds, and by the text that multiplies. The schedule
loads elements by their places, unless the unit names instructions for loads.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType

import torch

__all__ = ["Copies", "Fragment", "Load", "MatrixUnit", "reference", "unit_of"]

_PLACE = re.compile(r"(?:lane|index|[0-9]+|[()+\-*/%&|^<> ])*")


@dataclass(frozen=True)
class Fragment:
    """The part of a small matrix that a lane holds.

    Attributes
    ----------
    kind : str
        The type of a register: "float", "ob_u32".
    count : int
        A lane's registers.
    row, column : str
        The place in the matrix of the element `index` of the item `lane`: expressions of these two names and of
        integers, with `/` as in C.
    packed : int
        Elements of a register; the first one is in the lowest bits.
    """

    kind: str
    count: int
    row: str
    column: str
    packed: int = 1

    @property
    def elements(self) -> int:
        """The elements that a lane holds."""
        return self.count * self.packed

    @property
    def has_pairs(self) -> bool:
        """Whether the elements 2 * i and 2 * i + 1 of a lane are beside each other, from an even column on."""
        places = [(self.place(lane, i), self.place(lane, i + 1)) for lane in (0, 1) for i in range(0, self.elements, 2)]
        return self.elements % 2 == 0 and all(
            row == other_row and column % 2 == 0 and other == column + 1 for (row, column), (other_row, other) in places
        )

    def rows_of_lane(self, lanes: int) -> int:
        """Return how many rows a lane holds, of as many adjacent elements each; 0 if the rows are held otherwise."""
        for rows in range(1, self.elements + 1):
            each = self.elements // rows
            if rows * each == self.elements and all(
                self.place(lane, index)[0] == self.place(lane, index // each * each)[0]
                for lane in range(lanes)
                for index in range(self.elements)
            ):
                return rows
        return 0

    def lanes_of_row(self, lanes: int) -> int:
        """Return how many adjacent lanes hold the same rows: a power of two."""
        rows = [[self.place(lane, index)[0] for index in range(self.elements)] for lane in range(lanes)]
        count = 1
        while count < lanes and all(rows[lane] == rows[lane ^ count] for lane in range(lanes)):
            count *= 2
        return count

    def place(self, lane: int, index: int) -> tuple[int, int]:
        """Return the row and the column of a lane's element."""
        return _value(self.row, lane, index), _value(self.column, lane, index)


def _value(text: str, lane: int, index: int) -> int:
    return int(eval(_compiled(text), {"__builtins__": {}}, {"lane": lane, "index": index}))


@functools.cache
def _compiled(text: str) -> CodeType:
    if not _PLACE.fullmatch(text):
        raise ValueError(f"{text!r} is not an expression of lane, index and integers")
    return compile(text.replace("/", "//"), "a place", "eval")


@dataclass(frozen=True)
class Load:
    """An instruction by which the lanes of a unit load fragments from the group's memory together.

    Each lane names the place of some adjacent elements, of 16 bytes at most. A line is a row of the left operand, or a
    column of the right one.

    Attributes
    ----------
    text : str
        The statement that loads `$INTO` registers. The elements that the lane names begin in the array `$ARRAY` at the
        number `$AT`.
    line, step : str
        The first of these elements in the small matrix: expressions of `lane`, as those of a fragment.
    fragments : int
        The fragments that are loaded at a time: each has the lines behind those of the one before.
    """

    text: str
    line: str
    step: str
    fragments: int = 1


@dataclass(frozen=True)
class Copies:
    """Copies of 16 bytes from the device's memory to the group's memory that run while the items compute.

    Attributes
    ----------
    copy : str
        The statement that begins a copy from the pointer `$FROM` to the array `$ARRAY`, from its element `$AT` on,
        which has `$BYTES` bytes. Both places are aligned to 16 bytes. Without `$IS_WANTED`, a condition, it stores
        zeros and does not read.
    commit : str
        The statement that ends a batch of copies.
    wait : str
        The statement after which the item's copies are done, without its latest `$LATER` batches. A barrier follows it.
    """

    copy: str
    commit: str
    wait: str


@dataclass(frozen=True)
class MatrixUnit:
    """A matrix unit for elements of one type, with sums in float.

    Attributes
    ----------
    name : str
        The unit's name in messages.
    m, n, k : int
        The sizes of the small matrices.
    dtype : torch.dtype
        The type of the elements of both operands in memory.
    lanes : int
        The adjacent items of a group that work together, beginning at a multiple of this number.
    left, right, result : Fragment
        The parts that a lane holds of the matrices of m by k, of k by n, and of m by n. The registers of the result are
        of the type float. Its elements are each held by one lane; an operand's elements may be held by several.
    multiply : str
        The statement that adds the product to `$SUMS`; `$LEFT`, `$RIGHT` and `$SUMS` point to a lane's registers. All
        lanes of a group run it together.
    header : str
        Helpers that the texts call.
    element : str
        The text that converts `$ELEMENT`, an element as it is in memory, for a register.
    load_left, load_right : tuple of two Load or None
        How fragments are loaded. In the group's memory, elements of a line are adjacent for the first one, and elements
        of a step along k for the second one. None: the elements are loaded one by one.
    copies : Copies or None
        If None, elements pass through registers on their way to the group's memory.
    exchange : str
        The expression for the float `$VALUE` of the lane whose number differs by the bit `$BIT`. All lanes of a group
        compute it together. "": numbers are exchanged through the group's memory.
    power : str
        The expression for the power of 2 of the float `$VALUE`, at least as near as the type of the elements.
    pair : str
        The expression for a register with two elements, the floats `$LOW` and `$HIGH`, rounded to nearest even. "":
        they are rounded and shifted one by one.
    is_rounded : bool
        Whether float32 is rounded to TF32. Products and convolutions use the unit where torch's switches allow it.

    Raises
    ------
    ValueError
        The fragments are not those of such matrices.
    """

    name: str
    m: int
    n: int
    k: int
    dtype: torch.dtype
    lanes: int
    left: Fragment
    right: Fragment
    result: Fragment
    multiply: str
    header: str = ""
    element: str = "$ELEMENT"
    load_left: tuple[Load | None, Load | None] = (None, None)
    load_right: tuple[Load | None, Load | None] = (None, None)
    copies: Copies | None = None
    exchange: str = ""
    power: str = "OB_LIB(exp2)($VALUE)"
    pair: str = ""
    is_rounded: bool = False

    def __post_init__(self) -> None:
        if self.result.kind != "float" or self.result.packed != 1:
            raise ValueError(
                f"the unit {self.name!r} accumulates in {self.result.kind}; the result must be one float per register"
            )
        for what, fragment, rows, columns in (
            ("left", self.left, self.m, self.k),
            ("right", self.right, self.k, self.n),
            ("result", self.result, self.m, self.n),
        ):
            held = list(self._held(what, fragment, rows, columns))
            missing = {(row, column) for row in range(rows) for column in range(columns)} - set(held)
            if missing:
                raise ValueError(f"the unit {self.name!r}: no lane holds element {min(missing)} of its {what}")
            if what == "result" and len(held) > rows * columns:
                raise ValueError(f"the unit {self.name!r}: several lanes hold the same element of its result")

    def _held(self, what: str, fragment: Fragment, rows: int, columns: int) -> Iterator[tuple[int, int]]:
        """Yield the places that the lanes hold."""
        for lane in range(self.lanes):
            for index in range(fragment.elements):
                row, column = fragment.place(lane, index)
                if not (0 <= row < rows and 0 <= column < columns):
                    raise ValueError(
                        f"the unit {self.name!r}: lane {lane} holds element {(row, column)} of its {what}, which "
                        f"has {rows} by {columns}"
                    )
                yield row, column


def unit_of(units: tuple[MatrixUnit, ...], dtype: torch.dtype) -> MatrixUnit | None:
    """Return the first unit for elements of a type; None if there is none."""
    return next((one for one in units if one.dtype == dtype), None)


# Copies that are done at once: they prove where a schedule copies to, not when it waits.
_COPIES = Copies(
    copy="{ uint4 copied = {0, 0, 0, 0}; if ($IS_WANTED) copied = *(OB_GLOBAL const uint4*)($FROM); "
    "*(OB_LOCAL_AT uint4*)($ARRAY + $AT) = copied; }",
    commit="",
    wait="",
)
_CONVERTED = {
    torch.float16: "ob_from_f16($ELEMENT)",
    torch.bfloat16: "ob_from_bf16($ELEMENT)",
    torch.float32: "$ELEMENT",
}
_REFERENCE = """\
OB_DEVICE void ob_reference_multiply(float* sums, const float* left, const float* right) {
  for (int i = 0; i < %d; ++i)
    for (int step = 0; step < %d; ++step) sums[i] += left[i * %d + step] * right[step];
}
"""


def reference(
    dtype: torch.dtype, m: int = 16, n: int = 8, k: int = 8, lanes: int = 16, *, has_copies: bool = False
) -> MatrixUnit:
    """Return a unit in plain C, by which schedules with matrix units run on devices that have none.

    A lane holds a column of the right operand, and the rows that it needs of the left one. `lanes` is a multiple of
    `n`, and `m` a multiple of their quotient.
    """
    down = lanes // n
    if down * n != lanes or m % down:
        raise ValueError(f"the reference unit of {m} by {n} can't have {lanes} lanes")
    rows, row = m // down, f"lane / {n} + index {{}}* {down}"
    return MatrixUnit(
        name=f"reference_{m}_{n}_{k}",
        m=m,
        n=n,
        k=k,
        dtype=dtype,
        lanes=lanes,
        left=Fragment("float", rows * k, row.format(f"/ {k} "), f"index % {k}"),
        right=Fragment("float", k, "index", f"lane % {n}"),
        result=Fragment("float", rows, row.format(""), f"lane % {n}"),
        multiply="ob_reference_multiply($SUMS, $LEFT, $RIGHT);",
        header=_REFERENCE % (rows, k, k),
        element=_CONVERTED[dtype],
        copies=_COPIES if has_copies else None,
    )
