# SPDX-License-Identifier: BSD-3-Clause
"""A matrix product as text: its operands and results, independent of the schedule.

Result[b, m, n] = sum over k of left[b, m, k] * right[b, k, n]. An operand holds the text that loads an element, so a
convolution is a product whose right operand reads windows of an image. The epilogue holds the text that stores a sum.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch.utils._sympy.functions import FloorDiv

from torch_outboard.codegen.dialects.dialect import COMPUTE_TYPES, HALVES, STORAGE_TYPES, SUFFIXES
from torch_outboard.kernels.refusal import CallRefusal
from torch_outboard.kernels.templates.call import Kernel

__all__ = [
    "Epilogue",
    "Number",
    "Operand",
    "Product",
    "SumType",
    "ceil_div",
    "filled",
    "loaded",
    "partly_filled",
    "statements",
    "stored",
]


@dataclass(frozen=True)
class SumType:
    """The type in which elements are multiplied and added."""

    dtype: torch.dtype  # dtype of temporaries
    suffix: str  # suffix of vector functions: "f32"
    kind: str  # type of variables: "float"
    size: int

    @staticmethod
    def of(dtype: torch.dtype) -> SumType:
        """Return the accumulation type for a dtype. Integer sums are unsigned: they wrap, with the same bits."""
        if dtype in HALVES or dtype == torch.float32:
            return SumType(torch.float32, "f32", "float", 4)
        if dtype == torch.float64:
            return SumType(torch.float64, "f64", "double", 8)
        if dtype == torch.int64:
            return SumType(torch.int64, "u64", "ob_u64", 8)
        if dtype in (torch.uint8, torch.int8, torch.int16, torch.int32):
            return SumType(torch.int32, "u32", "ob_u32", 4)
        raise CallRefusal(f"no template multiplies matrices of {dtype} [products]")


def loaded(place: str, dtype: torch.dtype, sums: SumType) -> str:
    """Return an element of memory, converted to the accumulation type."""
    if dtype in HALVES:
        return f"ob_from_{SUFFIXES[dtype]}({place})"
    return place if STORAGE_TYPES[dtype] == sums.kind else f"({sums.kind}){place}"


def stored(place: str, value: str, dtype: torch.dtype) -> str:
    """Return the statement that stores a number of the accumulation type."""
    if dtype in HALVES:
        return f"{place} = ob_to_{SUFFIXES[dtype]}({value});"
    return f"{place} = ({COMPUTE_TYPES[dtype]})({value});"


# A number in a kernel: type, name and text.
Number = tuple[str, str, str]


def statements(numbers: Iterable[Number]) -> str:
    """Return the statements that compute numbers, each of which may use the numbers before it."""
    return "".join(f"const {kind} {name} = {text}; " for kind, name, text in numbers)


@dataclass(frozen=True)
class Operand:
    """Loads of an operand's elements; a line is a row of the left operand or a column of the right operand.

    Attributes
    ----------
    declare : function of Kernel
        Declares the pointers and numbers that the texts name.
    of_line : tuple of Number
        Numbers computed once per line. Their texts may read `line`, `batch` and earlier numbers.
    of_step : str
        Statements of a step along k, which read `step`: computations that all lines share.
    place : str
        The element in memory, as an expression in the names of the line and the step.
    dtype : torch.dtype
        The type of the element in memory.
    is_dense_along_steps : bool
        Whether adjacent elements in memory belong to adjacent steps, not to adjacent lines.
    condition : str
        The condition that the element is in memory; otherwise it is 0. "": always. The elements of an aligned 16-byte
        chunk share the condition.
    adjacent : str
        The element `lane` lines further, as an expression in this line's names. "": vectors cannot load it.
    multiples : tuple of str
        Numbers of elements. If these and the number of lines or steps are all multiples of the elements in 16 bytes,
        chunks of adjacent elements begin at multiples of 16 bytes from the pointer.
    pointer : str
        The name of the pointer.
    lines_in_memory : str
        The number of lines in memory, if adjacent elements belong to adjacent lines. "": the operand's lines.
    stride : tuple of sympy.Expr and str, or None
        The distance in elements between lines (or between steps, if adjacent elements belong to adjacent lines), and
        its text. None if the distances are not equal.
    """

    declare: Callable[[Kernel], None]
    of_line: tuple[Number, ...]
    of_step: str
    place: str
    dtype: torch.dtype
    is_dense_along_steps: bool
    condition: str = ""
    adjacent: str = ""
    multiples: tuple[str, ...] = ()
    pointer: str = ""
    lines_in_memory: str = ""
    stride: tuple[Any, str] | None = None

    @property
    def has_chunks(self) -> bool:
        """Whether adjacent elements in memory belong to adjacent lines or steps, so that several load at once."""
        return self.adjacent != "" or self.is_dense_along_steps

    def raw(self) -> str:
        """Return the element as stored in memory, of the type `STORAGE_TYPES[dtype]`."""
        return self._or_zero(self.place)

    def element(self, sums: SumType) -> str:
        """Return the element in the accumulation type."""
        return self._or_zero(loaded(self.place, self.dtype, sums))

    def adjacent_element(self, sums: SumType) -> str:
        """Return the element `lane` lines further, in the accumulation type. Requires `adjacent`."""
        return loaded(self.adjacent, self.dtype, sums)

    def _or_zero(self, value: str) -> str:
        return f"({self.condition}) ? {value} : 0" if self.condition else value

    def lines(self, at: str) -> str:
        """Return the statements that store a line's numbers in arrays, at an index."""
        return "".join(f"{name}_at[{at}] = {name}; " for _, name, _ in self.of_line)

    def computed(self) -> str:
        """Return the statements that compute a line's numbers."""
        return statements(self.of_line)

    def arrays(self, count: int | str) -> str:
        return "".join(f"{kind} {name}_at[{count}]; " for kind, name, _ in self.of_line)

    def reload(self, at: str) -> str:
        """Return the statements that read a line's numbers from arrays."""
        return "".join(f"const {kind} {name} = {name}_at[{at}]; " for kind, name, _ in self.of_line)


@dataclass(frozen=True)
class Epilogue:
    """Stores of results. The texts read `value`, `batch`, `row` and `column`.

    Attributes
    ----------
    declare : function of Kernel
        Declares the pointers and numbers that the texts name.
    value : str
        The number to store, in the accumulation type.
    place : str
        The result in memory.
    dtype : torch.dtype
        The type of the result in memory.
    dense : str
        Adjacent elements in memory belong to adjacent rows ("row") or columns ("column"). "": neither.
    multiples, pointer
        As for an operand, for chunks of two elements instead of 16 bytes.
    condition : str
        The condition that the result exists. "": always.
    """

    declare: Callable[[Kernel], None]
    value: str
    place: str
    dtype: torch.dtype
    dense: str = ""
    multiples: tuple[str, ...] = ()
    pointer: str = ""
    condition: str = ""

    @property
    def store(self) -> str:
        """The statement that stores a result."""
        text = stored(self.place, self.value, self.dtype)
        return f"if ({self.condition}) {{ {text} }}" if self.condition else text


@dataclass(frozen=True)
class Product:
    """A matrix product, from which the schedules build kernels.

    Attributes
    ----------
    of_batch : tuple of Number
        Numbers computed from `batch`, which all texts may name.
    steps_of_batch : str
        The number of steps of a batch, in terms of these numbers, if it may be less than `depth`. "": always `depth`.

    Only the schedule for matrix units supports these two.
    """

    name: str
    batch: sympy.Expr
    rows: sympy.Expr
    columns: sympy.Expr
    depth: sympy.Expr
    sums: SumType
    left: Operand
    right: Operand
    epilogue: Epilogue
    before: str = ""
    of_batch: tuple[Number, ...] = ()
    steps_of_batch: str = ""

    def sizes(self, kernel: Kernel) -> dict[str, str]:
        """Declare the sizes and return their texts."""
        return {
            "BATCH": kernel.number("batches", self.batch),
            "ROWS": kernel.number("rows", self.rows),
            "COLUMNS": kernel.number("columns", self.columns),
            "DEPTH": kernel.number("depth", self.depth),
            "OF_BATCH": f"  {statements(self.of_batch)}\n" if self.of_batch else "",
        }


def ceil_div(size: Any, unit: int) -> sympy.Expr:
    """Return how many units are needed to hold `size`."""
    return FloorDiv(sympy.sympify(size) + (unit - 1), unit)


def filled(text: str, words: Mapping[str, str]) -> str:
    """Return a text with each `$WORD` replaced by its text in `words`, which may contain placeholders itself."""
    text = partly_filled(text, words)
    if lacking := _WORD.search(text):
        raise KeyError(lacking[1])
    return text


def partly_filled(text: str, words: Mapping[str, str]) -> str:
    """Fill in a text like `filled`, but keep placeholders that `words` does not contain."""
    begin = 0
    while found := _WORD.search(text, begin):
        begin = found.start()
        if found[1] in words:
            text = text[:begin] + words[found[1]] + text[found.end() :]
        else:
            begin = found.end()
    return text


_WORD = re.compile(r"\$([A-Z_]+)")
