# SPDX-License-Identifier: BSD-3-Clause
"""The checks of a kernel: indices, assertions and divisors. A kernel reports a failure in its stream's record."""

from __future__ import annotations

from typing import Any, ClassVar

import sympy  # type: ignore[import-untyped]
import torch
from torch._inductor.codegen.common import CSEVariable
from torch._inductor.codegen.simd import SIMDKernel
from torch.utils._sympy.functions import ModularIndexing
from torch.utils._sympy.symbol import SymT, symbol_is_type

from torch_outboard._errors import NotSupportedError
from torch_outboard.codegen.dialects.dialect import Dialect
from torch_outboard.codegen.kernel.checks import ZERO, is_never_zero, operator_of, unwrapped_index
from torch_outboard.codegen.mapping.mapping import Mapping

__all__ = ["CheckingKernel"]


class CheckingKernel(SIMDKernel[CSEVariable]):
    """The part of a kernel that checks its inputs."""

    dialect: ClassVar[Dialect]
    mapping: Mapping
    cse: Any  # kernel.TypedCSE

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.checks: list[str] = []  # the possible failures, in the form that launches take
        self.bounded: dict[str, CSEVariable] = {}  # checked indices -> their variables, which are within bounds
        self.may_be_lost = False  # an item may have an invalid index and no valid one to continue with

    def check_bounds(self, expr: sympy.Expr, size: sympy.Expr, lower: bool, upper: bool) -> None:
        if not (lower or upper) or (isinstance(expr, ModularIndexing) and expr.args[2] == size):
            return
        bounds = unwrapped_index(expr, self.cse.texts)
        index, bound = self.index_to_str(expr), self.index_to_str(self.rename_indexing(size))
        operator = operator_of(self.current_node)
        if not self._records():
            say = f"ob_raise_index({_quoted(operator)}, {bounds or index}, {bound})"
            self.emit(f"if (!(0 <= {index} && {index} < {bound})) {say}")
            return
        arguments = self._record_arguments(f"index {operator}")
        is_variable = isinstance(expr, sympy.Symbol) and symbol_is_type(expr, SymT.TMP)
        if not size.is_positive or not is_variable:
            # There is no valid index to continue with, or the index is computed in place.
            self.may_be_lost = self.mapping.is_guarded
            end = "ob_is_lost = 1;" if self.may_be_lost else self.mapping.leave
            fail = f"{self._if_inside}ob_fail({arguments}, {bounds or index}, {bound}); {end}"
            self.emit(f"if (!(0 <= {index} && {index} < {bound})) {{ {fail} }}")
            return
        text = f"ob_checked({arguments}, {index}, {bound}, {bounds or index})"
        if self.mapping.is_guarded:
            text = f"ob_is_inside ? {text} : 0"
        self.bounded[str(expr)] = self.cse.generate(self.compute, text, dtype=torch.int64, shape=())

    def device_assert_async(self, cond: Any, msg: str) -> None:
        if self._records():
            self.emit(f"if (!({cond})) {self._if_inside}ob_fail({self._record_arguments(f'assert {msg}')}, 0, 0)")
        else:
            self.emit(f"if (!({cond})) ob_raise_assert({_quoted(msg)})")

    def check_divisor(self, divisor: str) -> None:
        """Emit a check that an integer divisor is not zero, if it may be zero and failures can be reported."""
        if not self.dialect.checks or is_never_zero(divisor, self.cse.texts):
            return
        if self.dialect.records:
            fail = f"ob_fail({self._record_arguments(f'assert {ZERO}')}, 0, 0)"
            self.emit(f"if ({divisor} == 0) {self._if_inside}{fail}")
        else:
            self.emit(f"if ({divisor} == 0) ob_raise_assert({_quoted(ZERO)})")

    @property
    def _if_inside(self) -> str:
        return "if (ob_is_inside) " if self.mapping.is_guarded else ""

    def _records(self) -> bool:
        if not self.dialect.checks:
            raise NotSupportedError(
                f"a kernel in {self.dialect.name} can't report a bad index or a failed assertion, and PyTorch's "
                f"operator {operator_of(self.current_node)} must: move it out of the compiled function"
            )
        return self.dialect.records

    def _record_arguments(self, check: str) -> str:
        if check not in self.checks:
            self.checks.append(check)
        return f"ob_failures, ob_ticket, ob_kernel, {self.checks.index(check)}u"

    def emit(self, statement: str) -> None:
        self.cse.generate(self.compute, statement, assignment=False)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
