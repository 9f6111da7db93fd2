# SPDX-License-Identifier: BSD-3-Clause
"""The text of a plan; csrc/kernels/plan.h defines its syntax."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch

from torch_outboard.codegen.formula import MAX_INT64, expression_of, formula
from torch_outboard.kernels.refusal import CallRefusal

__all__ = ["NotAFormula", "PlanWriter"]


class NotAFormula(NotImplementedError):
    """A plan cannot express a size as a formula; the call is then traced again with known sizes."""


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class PlanWriter:
    """Writes a plan line by line and returns the names of its buffers."""

    def __init__(self, traced: Any) -> None:
        self._traced = traced
        self._steps: list[str] = []
        self._returns: list[str] = []
        self._buffers = 0
        self._values: list[str] = []
        self._places: dict[sympy.Symbol, int] = {}
        self._fixed: list[tuple[int, Any]] = []  # values that must equal an expression
        self._bind()

    def text(self) -> str:
        """Return the whole text, including guards for everything lowered so far."""
        values = [f"value {value}" for value in self._values]
        guards = [f"guard {guard}" for guard in dict.fromkeys(self._guards())]
        return "\n".join(["plan 1", *values, *guards, *self._steps, *self._returns]) + "\n"

    # Values and guards.

    def _bind(self) -> None:
        """Name each size and stride of the call's tensors.

        A symbol is bound to the first size or stride that equals it.
        """
        places: list[tuple[str, Any]] = []
        for traced_input in self._traced.inputs:
            if traced_input.symbol is not None:
                places.append((traced_input.symbol, expression_of(traced_input.fake)))
            if traced_input.tensor is None or traced_input.is_imaginary:
                continue
            whole = traced_input.fake if traced_input.whole is None else traced_input.whole
            for kind, numbers in (("size", whole.shape), ("stride", whole.stride())):
                for dim, number in enumerate(numbers):
                    places.append((f"{kind} {traced_input.tensor} {dim}", expression_of(number)))
        for text, expression in places:
            value = len(self._values)
            self._values.append(text)
            if isinstance(expression, sympy.Symbol) and expression not in self._places:
                self._places[expression] = value
            else:
                self._fixed.append((value, expression))

    def _guards(self) -> Iterator[str]:
        for value, expression in self._fixed:
            yield f"a{value} {self.formula(expression)} eq"
        env = self._traced.shape_env
        if env.deferred_runtime_asserts:
            raise NotAFormula("run-time assertions")
        for symbol, place in self._places.items():
            # If torch replaced a symbol, the condition that caused this is trivially true
            # afterwards, so it is guarded here.
            if (value := env.replace(symbol)) != symbol:
                yield f"a{place} {self.formula(value)} eq"
            bounds = env.var_to_range[symbol]
            # Bounds of sizes that torch derives from other sizes may exceed any possible size.
            if bounds.lower.is_Integer and bounds.lower > -MAX_INT64:
                yield f"a{place} {self.formula(bounds.lower)} ge"
            if bounds.upper.is_Integer and bounds.upper < MAX_INT64:
                yield f"a{place} {self.formula(bounds.upper)} le"
        for guard in env.guards:
            expression = env.replace(guard.expr)  # replaces symbols with known values
            if expression is not sympy.true:
                yield self.formula(expression)

    def formula(self, expression: Any) -> str:
        """Return an expression over the call's sizes as a formula.

        Raises NotAFormula if there is no such formula.
        """
        try:
            return formula(sympy.sympify(expression), self._places)
        except ValueError as error:
            raise NotAFormula(str(error)) from None

    def _formulas(self, expressions: Sequence[Any]) -> str:
        return f"[{', '.join(self.formula(expression) for expression in expressions)}]"

    # Steps.

    def step(self, text: str) -> None:
        self._steps.append(text)

    def _buffer(self, text: str) -> str:
        self._steps.append(text)
        self._buffers += 1
        return f"b{self._buffers - 1}"

    def number(self, place: int, dtype: torch.dtype) -> str:
        return self._buffer(f"number {place} {_dtype(dtype)}")

    def seed(self) -> str:
        return self._buffer("seed")

    def allocate(self, dtype: torch.dtype, sizes: Sequence[Any], strides: Sequence[Any]) -> str:
        return self._buffer(f"allocate {_dtype(dtype)} {self._formulas(sizes)} {self._formulas(strides)}")

    def view(
        self, base: str, sizes: Sequence[Any], strides: Sequence[Any], offset: Any, dtype: torch.dtype | None = None
    ) -> str:
        """Write a view, with another type if one is passed: strides and the offset count elements of the view."""
        of_type = base if dtype is None else f"{base} {_dtype(dtype)}"
        return self._buffer(f"view {of_type} {self._formulas(sizes)} {self._formulas(strides)} {self.formula(offset)}")

    def call(self, operator: torch._ops.OpOverload, args: list[Any], kwargs: Mapping[str, Any]) -> list[str]:
        """Write an operator call, and return the names of its results; no names with `out`."""
        schema = operator._schema
        arguments: list[str] = []
        for place, declared in enumerate(schema.arguments):
            if place < len(args):
                value = args[place]
            elif declared.name in kwargs:
                value = kwargs[declared.name]
            elif declared.has_default_value():
                value = declared.default_value
            else:
                raise CallRefusal(f"it calls {schema.name} without {declared.name} [plan]")
            arguments.append(self._argument(value, schema.name))
        results = [result for result in schema.returns if result.alias_info is None]
        if any(str(result.type) != "Tensor" for result in results):
            raise CallRefusal(f"it calls {schema.name}, which doesn't return only tensors [plan]")
        overload = f".{schema.overload_name}" if schema.overload_name else ""
        self.step(f"call {len(results)} {schema.name}{overload} [{', '.join(arguments)}]")
        self._buffers += len(results)
        return [f"b{number}" for number in range(self._buffers - len(results), self._buffers)]

    def _argument(self, value: Any, operator: str) -> str:
        match value:
            case None:
                return "none"
            case bool():
                return str(value).lower()
            case str():
                return value  # a tensor's name: operators that take text are refused below
            case float():
                return f"real {value.hex() if value == value and abs(value) != float('inf') else value}"
            case int() | sympy.Expr():
                return self.formula(value)
            case torch.SymInt():
                return self.formula(value.node.expr)
            case list() | tuple() if value and all(isinstance(item, str) for item in value):
                return f"tensors {'; '.join(value)}"
            case list() | tuple() if all(isinstance(item, (int, torch.SymInt, sympy.Expr)) for item in value):
                return f"numbers {'; '.join(self._argument(item, operator) for item in value)}"
        raise CallRefusal(f"it passes a {type(value).__name__} to {operator} [plan]")

    def returned_number(self, value: Any) -> None:
        self._returns.append(f"return number {self.formula(value)}")

    def returned(self, value: Any, outputs: Sequence[str]) -> None:
        if value is None:
            self._returns.append("return none")
        elif isinstance(value, list):
            if any(item is None for item in value):
                raise CallRefusal("it returns a list with undefined tensors [plan]")
            self._returns.append(f"return [{', '.join(outputs[item] for item in value)}]")
        else:
            self._returns.append(f"return {outputs[value]}")
