# SPDX-License-Identifier: BSD-3-Clause
"""The input of a template: an operator call in a graph with symbolic sizes, and the plan to write to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch._inductor.virtualized import V
from torch.utils._sympy.functions import FloorDiv

from torch_outboard.codegen.dialects.dialect import STORAGE_TYPES, Dialect
from torch_outboard.codegen.dialects.frame import LocalArray, Parameter
from torch_outboard.codegen.dialects.group_limits import GroupLimits
from torch_outboard.codegen.program import DeviceProgram
from torch_outboard.kernels.plans.text import PlanWriter
from torch_outboard.kernels.refusal import CallRefusal
from torch_outboard.kernels.tune.schedules import SCHEDULE, Schedule, family_of, tuned_name

__all__ = ["Kernel", "Layout", "TemplateCall", "Tensor", "number_text", "simplified"]


def simplified(value: Any) -> sympy.Expr:
    """Return an expression with each symbol replaced that is known to equal another symbol or a number."""
    return V.graph.sizevars.simplify(sympy.sympify(value))


def number_text(name: str, value: Any) -> str:
    """Return the text of a number in a kernel: digits if the number is known, else a parameter's name."""
    value = simplified(value)
    return str(int(value)) if isinstance(value, sympy.Integer) else name


@dataclass(frozen=True)
class Layout:
    """The element type, sizes and strides of a tensor to allocate."""

    dtype: torch.dtype
    size: Sequence[sympy.Expr]
    stride: Sequence[sympy.Expr]


@dataclass(frozen=True)
class Tensor(Layout):
    """A tensor of the plan, with its name in the plan."""

    name: str


@dataclass
class TemplateCall:
    """A call for which a template writes steps.

    Attributes
    ----------
    arguments : mapping
        Tensors, numbers, lists and None, by the schema's names.
    results : list of Layout or None
        The operator's results, as its meta kernel reports them; None for an undefined tensor.
    is_cpu : bool
        Whether the device is a CPU: its kernels use vectors where other devices use groups of items.
    schedule_of : function of str
        Returns the device's schedule with a given name, as tune/schedule_table.py stores it.
    taken : str
        The chosen schedule; kernels launched from now on name it.
    dynamic_memory : int
        Bytes of dynamic local memory per group if two groups share a multiprocessor. Call `schedule` before: only plans
        with a schedule are stored for the device's memory.
    limits : GroupLimits
        The items and the local memory that a group can have.
    """

    operator: torch._ops.OpOverload
    arguments: Mapping[str, Any]
    results: Sequence[Layout | None]
    plan: PlanWriter
    dialect: Dialect
    is_cpu: bool
    add_program: Callable[[DeviceProgram], int]
    schedule_of: Callable[[str], Schedule]
    taken: str = ""
    dynamic_memory: int = 0
    limits: GroupLimits = GroupLimits()

    def tensor(self, name: str) -> Tensor:
        """Return a tensor argument.

        Raises Refusal if the dialect lacks the tensor's type.
        """
        tensor = self.arguments[name]
        assert isinstance(tensor, Tensor)
        if not self.dialect.supports(tensor.dtype):
            raise CallRefusal(
                f"the dialect {self.dialect.name!r} does not support {tensor.dtype}: float64 needs has_double, int16 "
                "and uint16 need has_int16, and other dtypes need a kernel from the driver [element-type]"
            )
        return tensor

    @property
    def family(self) -> str:
        """The family of operators with which the operator shares schedules."""
        return family_of(self.operator._schema.name)

    @property
    def dtype(self) -> torch.dtype:
        """The element type of the first tensor."""
        return next(argument.dtype for argument in self.arguments.values() if isinstance(argument, Tensor))

    def schedule(self, way: str) -> Schedule:
        """Return the parameters of the schedule `way` ("strips" or "tiles") for the operator and its element type."""
        name = tuned_name(self.family, way, self.dtype)
        chosen = self.schedule_of(name)
        self.taken = f"{SCHEDULE}{name}: {', '.join(f'{parameter} {value}' for parameter, value in chosen.items())}\n"
        return chosen

    def allocate(self, layout: Layout) -> Tensor:
        sizes, strides = ([simplified(number) for number in numbers] for numbers in (layout.size, layout.stride))
        name = self.plan.allocate(layout.dtype, sizes, strides)
        return Tensor(layout.dtype, layout.size, layout.stride, name)

    def free(self, tensor: Tensor) -> None:
        self.plan.step(f"free {tensor.name}")

    def launch(self, *kernels: Kernel) -> None:
        """Launch kernels in turn, as one program: it compiles in half the time of separate programs.

        A kernel that is launched several times is written once.
        """
        for kernel in kernels:
            self._check_limits(kernel)
        texts = dict.fromkeys(kernel.written(self.dialect) for kernel in kernels)
        code = self.dialect.source(self.taken + "\n".join(texts))
        for kernel in kernels:
            program = DeviceProgram(
                name=kernel.name,
                language=self.dialect.language or self.dialect.name,
                types=(*kernel.types, "int64_t"),
                code=code,
                entry=kernel.name,
                grid=(f"a{len(kernel.parameters)}",),
                block=(str(kernel.group),),
                local_bytes=str(kernel.local_bytes),
                options=self.dialect.options,
            )
            passed = [*kernel.passed, simplified(kernel.groups)]
            arguments = [argument if isinstance(argument, str) else self.plan.formula(argument) for argument in passed]
            self.plan.step(f"launch {self.add_program(program)} [{', '.join(arguments)}]")

    def _check_limits(self, kernel: Kernel) -> None:
        """Raise Refusal if a group of the device is too small for a kernel."""
        memory = sum(array.bytes for array in kernel.arrays)
        if kernel.group > self.limits.items or memory > self.limits.memory:
            raise CallRefusal(
                f"a group of {kernel.name} needs {kernel.group} items and {memory} bytes of local memory, but the "
                f"device allows {self.limits.items} and {self.limits.memory} [group-size]"
            )

    def repeat(self, turns: Any, *kernels: Kernel) -> None:
        """Launch kernels in turn, and repeat the whole sequence `turns` times."""
        self.plan.step(f"repeat {self.plan.formula(simplified(turns))}")
        for kernel in kernels:
            self.launch(kernel)
        self.plan.step("end")


@dataclass
class Kernel:
    """A kernel and its launch.

    Attributes
    ----------
    before : str
        The kernel's own helpers.
    text : str
        The kernel's body, in which `ob_groups` is the number of groups.
    groups : sympy.Expr
        The number of groups of items.
    group : int
        The number of items in a group.
    parameters, types, passed : list
        The parameters' names in the text, their types, and the launch's arguments: tensor names and expressions.
    arrays : list of LocalArray
        Memory shared by the items of a group.
    local_bytes : int
        Bytes of dynamic local memory, which holds the arrays with an offset.
    """

    name: str
    before: str = ""
    text: str = ""
    groups: Any = 0
    group: int = 1
    parameters: list[Parameter] = field(default_factory=list)
    types: list[str] = field(default_factory=list)
    passed: list[Any] = field(default_factory=list)
    arrays: list[LocalArray] = field(default_factory=list)
    local_bytes: int = 0

    def written(self, dialect: Dialect) -> str:
        """Return the kernel's complete text."""
        parameters = [*self.parameters, Parameter("ob_groups", "ob_i64")]
        return self.before + dialect.frame(self.name, parameters, self.text, self.arrays)

    def pointer(
        self, name: str, tensor: Tensor, is_written: bool = False, element: str = "", is_alone: bool = True
    ) -> None:
        """Declare a pointer to a tensor's memory, with another type of the same size if one is given.

        If one item reads memory that another item writes, pass `is_alone=False`.
        """
        kind = element or STORAGE_TYPES[tensor.dtype]
        parameter = Parameter(name, kind, is_pointer=True, is_written=is_written, is_alone=is_alone)
        self._declare(parameter, f"{'' if is_written else 'const '}{kind}*", tensor.name)

    def number(self, name: str, value: Any) -> str:
        """Return the text of a number, and declare a parameter if the text names one.

        A size of 0 is a parameter: compilers refuse texts that divide by 0, also where nothing runs.
        """
        text = number_text(name, value)
        if text == "0":
            text = name
        if text == name:
            self.parameter(name, value)
        return text

    def spread(self, call: TemplateCall, count: Any, items: int = 64) -> None:
        """Launch `count` independent items, in groups of `items` or of as many as the device allows."""
        self.group = min(items, call.limits.items)
        self.groups = FloorDiv(count + self.group - 1, self.group)

    def turn(self) -> None:
        """Declare `turn`, which counts the repetitions of the launches from 0."""
        self._declare(Parameter("turn", "ob_i64"), "int64_t", "turn")

    def parameter(self, name: str, value: Any) -> None:
        """Declare a number that differs between launches."""
        self._declare(Parameter(name, "ob_i64"), "int64_t", simplified(value))

    def _declare(self, parameter: Parameter, kind: str, passed: Any) -> None:
        """Declare a parameter once, even if several operands share a name."""
        if parameter in self.parameters:
            assert self.passed[self.parameters.index(parameter)] == passed, f"{self.name} has two {parameter.name}"
            return
        self.parameters.append(parameter)
        self.types.append(kind)
        self.passed.append(passed)
