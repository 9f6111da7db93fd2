# SPDX-License-Identifier: BSD-3-Clause
"""Matrix units as data: instructions with which a few items jointly multiply small matrices.

A unit adds the product of an m by k and a k by n matrix to an m by n matrix. Its items, the lanes, hold parts of the
three matrices in registers. The templates' `matrix` schedule builds kernels from a dialect's units. A vendor describes
a unit by the positions of the elements that each lane holds, and by the text that multiplies. The schedule loads
elements one by one, unless the unit names load instructions.

In some languages only the device's compiler knows these positions. The lanes then hold matrices jointly, as variables
of opaque types, and exchange elements only through the group's memory.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType

import torch

__all__ = [
    "Copies",
    "Fragment",
    "Load",
    "MatrixUnit",
    "Sums",
    "distributed_sums",
    "joint",
    "reference",
    "reference_of_joint",
    "unit_of",
]

_PLACE = re.compile(r"(?:lane|index|[0-9]+|[()+\-*/%&|^<> ])*")


@dataclass(frozen=True)
class Fragment:
    """The part of a small matrix that a lane holds.

    Attributes
    ----------
    kind : str
        The type of a register: "float", "ob_u32".
    count : int
        Registers per lane.
    row, column : str
        The position in the matrix of the element `index` of the item `lane`: expressions in these two names and
        integers, with C's `/`.
    packed : int
        Elements per register; the first is in the lowest bits.

    `joint` creates the fragment of a matrix that the lanes hold jointly: it has no positions, and its only register is
    a variable.
    """

    kind: str
    count: int
    row: str
    column: str
    packed: int = 1

    @property
    def is_joint(self) -> bool:
        """Whether the lanes hold the matrix jointly."""
        return self.row == self.column == ""

    @property
    def elements(self) -> int:
        """The number of elements per lane."""
        return self.count * self.packed

    @property
    def has_pairs(self) -> bool:
        """Whether a lane's elements 2 * i and 2 * i + 1 are adjacent in a row, starting at an even column."""
        places = [(self.place(lane, i), self.place(lane, i + 1)) for lane in (0, 1) for i in range(0, self.elements, 2)]
        return self.elements % 2 == 0 and all(
            row == other_row and column % 2 == 0 and next_column == column + 1
            for (row, column), (other_row, next_column) in places
        )

    def rows_of_lane(self, lanes: int) -> int:
        """Return how many rows a lane holds, each with equally many adjacent elements; 0 for other arrangements."""
        for rows in range(1, self.elements + 1):
            per_row = self.elements // rows
            if rows * per_row == self.elements and all(
                self.place(lane, index)[0] == self.place(lane, index // per_row * per_row)[0]
                for lane in range(lanes)
                for index in range(self.elements)
            ):
                return rows
        return 0

    def lanes_of_row(self, lanes: int) -> int:
        """Return how many adjacent lanes hold the same rows, a power of two."""
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


def joint(kind: str) -> Fragment:
    """Return a matrix that the lanes hold jointly, in a variable of the type `kind`."""
    return Fragment(kind, 1, "", "")


def distributed_sums(m: int, n: int, lanes: int) -> Fragment:
    """Return the sums of a jointly held matrix that each lane gets, with neighbouring pairs for neighbouring lanes.

    Raises ValueError if the pairs cannot be divided equally among the lanes.
    """
    pairs = n // 2
    down = lanes // max(pairs, 1)
    if n % 2 or pairs == 0 or down == 0 or down * pairs != lanes or m % down:
        raise ValueError(f"{lanes} lanes can't share {m} by {n} sums")
    return Fragment("float", m * n // lanes, f"lane / {pairs} + index / 2 * {down}", f"lane % {pairs} * 2 + index % 2")


@dataclass(frozen=True)
class Sums:
    """Sums that the lanes hold jointly.

    Attributes
    ----------
    kind : str
        The type of a variable that holds an m by n matrix of floats.
    zero : str
        The expression for a matrix of zeros.
    store : str
        The statement that stores `$SUMS` row by row in the array of floats `$ARRAY` of the group, from index `$AT` on.
    barrier : str
        The statement after which a unit's lanes see each other's stores to the group's memory.
    """

    kind: str
    zero: str
    store: str
    barrier: str = "OB_BARRIER;"


@dataclass(frozen=True)
class Load:
    """An instruction with which the lanes of a unit jointly load fragments from the group's memory.

    Each lane passes the position of some adjacent elements, at most 16 bytes. A line is a row of the left operand, or a
    column of the right operand. If the lanes hold the operand jointly, all pass the position of its first element.

    Attributes
    ----------
    text : str
        The statement that loads the registers `$INTO`. The lane's elements begin at index `$AT` of the array `$ARRAY`.
        For a joint operand, `$INTO` is a variable, and the distance between rows is `$APART` entries of the array; an
        entry is one element, or 16 bytes of elements.
    line, step : str
        The position of the first of these elements in the small matrix: expressions in `lane`, as in a fragment.
    fragments : int
        Fragments loaded at a time; their lines are consecutive.
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
        The statement that begins a copy from the pointer `$FROM` to the element `$AT` of the array `$ARRAY`, whose
        elements have `$BYTES` bytes. Both addresses are aligned to 16 bytes. If the condition `$IS_WANTED` is false, it
        stores zeros and does not read.
    commit : str
        The statement that ends a batch of copies.
    wait : str
        The statement that waits until all of the item's copies, except the latest `$LATER` batches, are done. A barrier
        follows.
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
        The element type of both operands in memory.
    lanes : int
        The number of adjacent items that work together, starting at a multiple of this number.
    left, right, result : Fragment
        The parts of the m by k, k by n and m by n matrices that a lane holds. The result's registers are floats. Each
        element of the result is held by one lane; an element of an operand may be held by several.
    sums : Sums or None
        Set if the lanes hold sums, and then also both operands, jointly. `result` describes the sums that a lane gets
        once they have passed through the group's memory, in any arrangement that stores well.
    multiply : str
        The statement that adds the product to `$SUMS`; `$LEFT`, `$RIGHT` and `$SUMS` point to a lane's registers, or
        are variables that the lanes hold jointly. All lanes of a group run the statement together.
    header : str
        Helpers that the texts call.
    element : str
        The text that converts `$ELEMENT`, an element as stored in memory, for a register.
    load_left, load_right : tuple of two Load or None
        How fragments are loaded if, in the group's memory, the elements of a line are adjacent (first) or the elements
        of a step along k are adjacent (second). None: elements are loaded one by one.
    copies : Copies or None
        If None, elements pass through registers on their way to the group's memory.
    exchange : str
        The expression for the float `$VALUE` of the lane whose number differs in the bit `$BIT`. All lanes of a group
        evaluate the expression together. "": numbers are exchanged through the group's memory.
    power : str
        The expression for 2 to the power of the float `$VALUE`, at least as accurate as the element type.
    pair : str
        The expression for a register with two elements, the floats `$LOW` and `$HIGH` rounded to nearest even. "": they
        are rounded and shifted one by one.
    is_rounded : bool
        Whether the unit rounds float32 to TF32. Products and convolutions use such a unit only if torch's switches
        allow it.

    Raises
    ------
    ValueError
        The fragments do not match these sizes.
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
    sums: Sums | None = None

    def __post_init__(self) -> None:
        if self.result.kind != "float" or self.result.packed != 1:
            raise ValueError(
                f"the unit {self.name!r} accumulates in {self.result.kind}; the result must be one float per register"
            )
        are_joint = [side.is_joint for side in (self.left, self.right)]
        if are_joint != [self.sums is not None] * 2 or self.result.is_joint:
            raise ValueError(f"the unit {self.name!r}: lanes hold both operands and the sums jointly, or none of them")
        if self.sums and not all((*self.load_left, *self.load_right)):
            raise ValueError(f"the unit {self.name!r}: only its own instructions load operands that lanes hold jointly")
        for matrix, fragment, rows, columns in (
            ("left", self.left, self.m, self.k),
            ("right", self.right, self.k, self.n),
            ("result", self.result, self.m, self.n),
        ):
            if fragment.is_joint:
                continue
            places = list(self._positions(matrix, fragment, rows, columns))
            missing = {(row, column) for row in range(rows) for column in range(columns)} - set(places)
            if missing:
                raise ValueError(f"the unit {self.name!r}: no lane holds element {min(missing)} of its {matrix}")
            if matrix == "result" and len(places) > rows * columns:
                raise ValueError(f"the unit {self.name!r}: several lanes hold the same element of its result")

    def _positions(self, matrix: str, fragment: Fragment, rows: int, columns: int) -> Iterator[tuple[int, int]]:
        """Yield the positions of the elements that the lanes hold."""
        for lane in range(self.lanes):
            for index in range(fragment.elements):
                row, column = fragment.place(lane, index)
                if not (0 <= row < rows and 0 <= column < columns):
                    raise ValueError(
                        f"the unit {self.name!r}: lane {lane} holds element {(row, column)} of its {matrix}, which "
                        f"has {rows} by {columns}"
                    )
                yield row, column


def unit_of(units: tuple[MatrixUnit, ...], dtype: torch.dtype) -> MatrixUnit | None:
    """Return the first unit for an element type, or None."""
    return next((unit for unit in units if unit.dtype == dtype), None)


# Synchronous copies: they test the addresses to which a schedule copies, but not its waits.
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
    """Return a unit in plain C, with which schedules for matrix units run on devices without such units.

    A lane holds a column of the right operand and the rows that it needs of the left operand. `lanes` must be a
    multiple of `n`, and `m` a multiple of `lanes / n`.
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


# Each lane holds whole matrices, and computes whole products.
_REFERENCE_OF_JOINT = """\
typedef struct { float at[$M * $K]; } ob_left_matrix;
typedef struct { float at[$K * $N]; } ob_right_matrix;
typedef struct { float at[$M * $N]; } ob_sum_matrix;
OB_DEVICE ob_sum_matrix ob_zeros(void) {
  ob_sum_matrix sums;
  for (int i = 0; i < $M * $N; ++i) sums.at[i] = 0;
  return sums;
}
OB_DEVICE void ob_add_product(ob_sum_matrix* sums, const ob_left_matrix* left, const ob_right_matrix* right) {
  for (int i = 0; i < $M; ++i)
    for (int j = 0; j < $N; ++j)
      for (int step = 0; step < $K; ++step) sums->at[i * $N + j] += left->at[i * $K + step] * right->at[step * $N + j];
}
"""
_LOAD_OF_JOINT = (
    "for (int element = 0; element < {rows} * {columns}; ++element) {{ const int row = element / {columns}, column = "
    "element % {columns}, each = sizeof(*$ARRAY) / {size}; $INTO.at[element] = {converted}; }}"
)
_STORE_OF_JOINT = (
    "if (lane == 0) for (int element = 0; element < {count}; ++element) $ARRAY[$AT + element] = $SUMS.at[element];"
)


def reference_of_joint(dtype: torch.dtype, m: int = 16, n: int = 16, k: int = 16, lanes: int = 32) -> MatrixUnit:
    """Return a unit in plain C whose lanes hold matrices jointly; `reference` returns a unit with known positions."""
    size, storage = dtype.itemsize, {2: "ob_u16", 4: "float"}[dtype.itemsize]

    def load(rows: int, columns: int, line: str, step: str) -> Load:
        element = f"((OB_LOCAL_AT const {storage}*)$ARRAY)[(($AT) + {line} * $APART) * each + {step}]"
        converted = _CONVERTED[dtype].replace("$ELEMENT", element)
        text = _LOAD_OF_JOINT.format(rows=rows, columns=columns, size=size, converted=converted)
        return Load(text, line="0", step="0")

    header = _REFERENCE_OF_JOINT
    for name, value in (("$M", m), ("$N", n), ("$K", k)):
        header = header.replace(name, str(value))
    return MatrixUnit(
        name=f"reference_of_joint_{m}_{n}_{k}",
        m=m,
        n=n,
        k=k,
        dtype=dtype,
        lanes=lanes,
        left=joint("ob_left_matrix"),
        right=joint("ob_right_matrix"),
        result=distributed_sums(m, n, lanes),
        multiply="ob_add_product(&$SUMS, &$LEFT, &$RIGHT);",
        header=header,
        load_left=(load(m, k, "row", "column"), load(m, k, "column", "row")),
        load_right=(load(k, n, "column", "row"), load(k, n, "row", "column")),
        sums=Sums("ob_sum_matrix", "ob_zeros()", _STORE_OF_JOINT.format(count=m * n)),
    )
