# SPDX-License-Identifier: BSD-3-Clause
"""Values of a graph as C++ expressions of torch_outboard::Value, for operator arguments."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch._inductor import ir
from torch._inductor.codegen.cpp_wrapper_cpu import CppWrapperCpu
from torch._inductor.virtualized import V
from torch.utils._sympy.numbers import int_oo

from torch_outboard import _C
from torch_outboard._errors import NotSupportedError

__all__ = ["ValueWriter", "formula_in_cpp", "number", "text_literal"]

_MIN_INT64 = -(2**63)


class ValueWriter:
    """Writes values for one wrapper. References to views write their own lines to the wrapper.

    `device_index` returns the index of one of the driver's devices, as text.
    """

    def __init__(self, wrapper: CppWrapperCpu, device_index: Callable[[torch.device], str]) -> None:
        self._wrapper = wrapper
        self._device_index = device_index

    def write(self, value: Any, user: str) -> str:
        """Return the expression of a value. `user` is the operator that error messages name.

        Raises
        ------
        NotSupportedError
            If the value cannot be expressed.
        """
        match value:
            case None | ir.NoneAsConstantBuffer():
                return "OutboardValue::none()"
            case ir.ShapeAsConstantBuffer():
                return self._expression(value.expr)
            case ir.Buffer() | ir.BaseView() | ir.MutableBox():
                return f"OutboardValue::tensor({value.codegen_reference()}.get())"
            case torch.SymInt() | torch.SymFloat() | torch.SymBool():
                return self._expression(value.node.expr)
            case sympy.Basic():
                return self._expression(value)
            case list() | tuple():
                return f"OutboardValue::list({{{', '.join(self.write(element, user) for element in value)}}})"
            case torch.device():
                return self._device(value)
            case _:
                return self._constant(value, user)

    def _constant(self, value: Any, user: str) -> str:
        wrapper = self._wrapper
        match value:
            case bool():
                return f"OutboardValue::boolean({'true' if value else 'false'})"
            case int():
                return f"OutboardValue::integer({'INT64_MIN' if value == _MIN_INT64 else f'{value}LL'})"
            case float():
                return f"OutboardValue::real({_real(value)})"
            case complex():
                return f"OutboardValue::complex({_real(value.real)}, {_real(value.imag)})"
            case str():
                return f"OutboardValue::text({json.dumps(value)})"
            case torch.dtype():
                return f"OutboardValue::integer({wrapper.codegen_dtype(value)})"  # type: ignore[no-untyped-call]
            case torch.layout():
                return f"OutboardValue::integer({wrapper.codegen_layout(value)})"  # type: ignore[no-untyped-call]
            case torch.memory_format():
                return f"OutboardValue::integer({wrapper.codegen_memory_format(value)})"  # type: ignore[no-untyped-call]
        raise NotSupportedError(
            f"cpp_wrapper and AOTInductor do not support {user}'s arguments of type {type(value).__name__}: use "
            "plain torch.compile"
        )

    def _expression(self, value: Any) -> str:
        text = self._wrapper.codegen_sizevar(value)
        if value is sympy.true or value is sympy.false or isinstance(value, sympy.logic.boolalg.Boolean):
            return f"OutboardValue::boolean({text})"
        is_integer = value.is_integer or value in (int_oo, -int_oo)
        return f"OutboardValue::{'integer' if is_integer else 'real'}({text})"

    def _device(self, device: torch.device) -> str:
        kind, index = self._wrapper.codegen_device(device).split(", ")  # type: ignore[no-untyped-call]
        if device.type == _C.driver_name():
            index = self._device_index(device)
        return f"OutboardValue::device({kind}, {index})"


def number(wrapper: CppWrapperCpu, value: Any) -> str:
    """Return a kernel's numeric argument in C++: a known number, a variable's name, or an expression."""
    match value:
        case bool() | int():
            return f"{int(value)}LL"
        case float():
            return _real(value)
        case sympy.Basic():
            return str(wrapper.codegen_sizevar(V.graph.sizevars.simplify(value)))
    return str(value)  # a variable


_OPERATORS = {"add": "+", "sub": "-", "mul": "*", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def formula_in_cpp(formula: str, numbers: Sequence[str]) -> str:
    """Return a formula of csrc/kernels/expression.h as C++, with C++ expressions for its numbers."""
    stack: list[str] = []
    for word in formula.split():
        if word in _OPERATORS:
            right = stack.pop()
            stack[-1] = f"int64_t({stack[-1]} {_OPERATORS[word]} {right})"
        elif word in ("min", "max"):
            right = stack.pop()
            stack[-1] = f"std::{word}<int64_t>({stack[-1]}, {right})"
        elif word in ("floordiv", "ceildiv", "mod"):
            right = stack.pop()
            stack[-1] = f"torch_outboard::{word}({stack[-1]}, {right})"
        else:
            stack.append(f"int64_t({numbers[int(word[1:])]})" if word.startswith("a") else f"int64_t({word})")
    return stack.pop()


def _real(value: float) -> str:
    if math.isnan(value):
        return "std::numeric_limits<double>::quiet_NaN()"
    if math.isinf(value):
        return f"{'-' if value < 0 else ''}std::numeric_limits<double>::infinity()"
    return repr(value)


def text_literal(text: str | bytes) -> str:
    """Return a C++ literal for text in UTF-8 or for bytes, with one literal line per line."""
    content = text.encode() if isinstance(text, str) else text
    lines = content.split(b"\n")
    lines[:-1] = [line + b"\n" for line in lines[:-1]]
    return "\n".join('"' + "".join(map(_character, line)) + '"' for line in lines)


def _character(code: int) -> str:
    # Octal escapes end after three digits, whatever follows.
    return chr(code) if 32 <= code < 127 and chr(code) not in '"\\?' else f"\\{code:03o}"
