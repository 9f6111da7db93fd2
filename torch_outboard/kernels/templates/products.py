# SPDX-License-Identifier: BSD-3-Clause
"""Products of matrices and of batches of matrices, with an added tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy  # type: ignore[import-untyped]

from torch_outboard.kernels.refusal import CallRefusal
from torch_outboard.kernels.templates.call import Kernel, Layout, TemplateCall, Tensor, number_text
from torch_outboard.kernels.templates.product import Epilogue, Operand, Product, SumType, loaded
from torch_outboard.kernels.templates.schedules.registry import PRODUCTS

__all__ = ["addmm", "baddbmm", "bmm", "factor_text", "mm"]


def mm(call: TemplateCall) -> list[str | None]:
    return _product(call, call.tensor("self"), call.tensor("mat2"), None)


def addmm(call: TemplateCall) -> list[str | None]:
    return _product(call, call.tensor("mat1"), call.tensor("mat2"), call.tensor("self"))


def bmm(call: TemplateCall) -> list[str | None]:
    return _product(call, call.tensor("self"), call.tensor("mat2"), None)


def baddbmm(call: TemplateCall) -> list[str | None]:
    return _product(call, call.tensor("batch1"), call.tensor("batch2"), call.tensor("self"))


def _product(call: TemplateCall, left: Tensor, right: Tensor, added: Tensor | None) -> list[str | None]:
    layout = call.results[0]
    assert layout is not None
    if not left.dtype == right.dtype == layout.dtype or (added is not None and added.dtype != layout.dtype):
        raise CallRefusal("its tensors have different dtypes [mixed-types]")
    sums = SumType.of(left.dtype)
    result = call.allocate(layout)
    product = Product(
        name="ob_product",
        batch=left.size[0] if len(left.size) == 3 else sympy.Integer(1),
        rows=left.size[-2],
        columns=right.size[-1],
        depth=left.size[-1],
        sums=sums,
        left=_operand("left", left, is_left=True),
        right=_operand("right", right, is_left=False),
        epilogue=_epilogue(call, result, added, sums),
    )
    PRODUCTS.schedule_of(call).multiply(call, product)
    return [result.name]


def _strides(tensor: Layout, rank: int) -> tuple[Any, Any, Any]:
    """Return the strides of batch, row and column of a tensor expanded to the result's shape."""
    sizes = [sympy.Integer(1)] * (rank - len(tensor.size)) + list(tensor.size)
    strides = [sympy.Integer(0)] * (rank - len(tensor.size)) + list(tensor.stride)
    strides = [sympy.Integer(0) if size == 1 else stride for size, stride in zip(sizes, strides, strict=True)]
    return (*[sympy.Integer(0)] * (3 - rank), *strides)


def _operand(name: str, tensor: Tensor, *, is_left: bool) -> Operand:
    batch, row, column = _strides(tensor, len(tensor.size))
    line, step = (row, column) if is_left else (column, row)

    names = _Names(name, {"batch": batch, "line": line, "step": step}, tensor)
    place, adjacent = (f"{name}[{name}_from + {more}step * {names['step']}]" for more in ("", "lane + "))
    return Operand(
        declare=names.declare,
        of_line=(("ob_i64", f"{name}_from", f"batch * {names['batch']} + line * {names['line']}"),),
        of_step="",
        place=place,
        dtype=tensor.dtype,
        is_dense_along_steps=step == 1 and line != 1,
        adjacent=adjacent if line == 1 else "",
        multiples=(names["batch"], names["step" if line == 1 else "line"]),
        pointer=name,
        stride=(step, names["step"]) if line == 1 else (line, names["line"]),
    )


class _Names:
    """Texts of strides, which a kernel declares together with the pointer."""

    def __init__(self, name: str, strides: dict[str, Any], tensor: Tensor) -> None:
        self._name, self._strides, self._tensor = name, strides, tensor

    def __getitem__(self, which: str) -> str:
        return number_text(f"{self._name}_{which}", self._strides[which])

    def declare(self, kernel: Kernel, is_written: bool = False) -> None:
        kernel.pointer(self._name, self._tensor, is_written)
        for which, stride in self._strides.items():
            kernel.number(f"{self._name}_{which}", stride)


def factor_text(value: Any, sums: SumType) -> str:
    """Return a factor as text in the accumulation type."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise CallRefusal(f"a factor is a {type(value).__name__} [wrong-call]")
    if sums.suffix.startswith("f"):
        value = float(value)
        if value != value or value in (float("inf"), float("-inf")):
            sign = "-" if value < 0 else ""
            return f"({sums.kind}){sign}{'OB_NAN' if value != value else 'OB_INFINITY'}"
        return f"({sums.kind}){value!r}"
    if isinstance(value, float):
        raise CallRefusal("a factor of an integer product is not an integer [wrong-call]")
    return f"({sums.kind}){value}"


def _epilogue(call: TemplateCall, result: Tensor, added: Tensor | None, sums: SumType) -> Epilogue:
    rank = len(result.size)
    strides = dict(zip(("batch", "row", "column"), _strides(result, rank), strict=True))
    out = _Names("result", strides, result)
    index = f"batch * {out['batch']} + row * {out['row']} + column * {out['column']}"
    alpha, beta = call.arguments.get("alpha", 1), call.arguments.get("beta", 1)
    value = "value" if alpha == 1 or added is None else f"{factor_text(alpha, sums)} * value"
    # With a factor of 0, the added tensor is not read, so its NaNs do not reach the result.
    reads = added is not None and beta != 0
    declares: Sequence[_Names] = [out]
    if reads:
        assert added is not None
        names = _Names("added", dict(zip(("batch", "row", "column"), _strides(added, rank), strict=True)), added)
        place = f"added[batch * {names['batch']} + row * {names['row']} + column * {names['column']}]"
        factor = "" if beta == 1 else f"{factor_text(beta, sums)} * "
        value = f"{value} + {factor}{loaded(place, added.dtype, sums)}"
        declares = [out, names]

    def declare(kernel: Kernel) -> None:
        for name in declares:
            name.declare(kernel, is_written=name is out)

    dense = next((axis for axis in ("column", "row") if strides[axis] == 1), "")
    multiples = tuple(out[axis] for axis in strides if axis != dense)
    return Epilogue(declare, value, f"result[{index}]", result.dtype, dense, multiples, "result")
