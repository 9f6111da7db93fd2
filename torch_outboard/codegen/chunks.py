# SPDX-License-Identifier: BSD-3-Clause
"""A kernel over lists of tensors. It processes the elements of all tensors in chunks, which a table describes.

The body is taken from a kernel for a one-dimensional tensor, which loads and stores by element number. Here the body
becomes a loop over a chunk. The loop's pointers come from a row of the table (csrc/kernels/chunk_plan.h defines its
layout). Values that are the same for all elements of a chunk, such as an optimizer's step corrections, are computed
before the loop: a compiler cannot move them there without proving that memory does not change.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.codegen.common import DeferredLine
from torch._inductor.virtualized import V

from torch_outboard.codegen import chunk_joins
from torch_outboard.codegen.dialects.dialect import COMPUTE_TYPES, STORAGE_TYPES, Dialect
from torch_outboard.codegen.dialects.frame import Parameter
from torch_outboard.codegen.kernel.kernel import SimtKernel
from torch_outboard.codegen.kernel.values import cast
from torch_outboard.codegen.mapping.item import Item
from torch_outboard.codegen.mapping.machine import groups_share_work, limits_of
from torch_outboard.codegen.mapping.mapping import Mapping
from torch_outboard.codegen.program import DeviceProgram
from torch_outboard.codegen.scheduling import SimtScheduling

__all__ = ["ChunkBody", "Operand", "Result", "chunk_scheduling"]

# The statements that allow splitting the loop: a declaration of a variable, a store, or a
# combination.
_DECLARATION = re.compile(r"const \w+ (\w+) = (.*);")
_STORE = re.compile(r"\w+\[.*\] = .*;|if \(.*\) \*\w+ = 1;")
_NAME = re.compile(r"\b[A-Za-z_]\w*")
# C types of the numbers that a launch passes.
_NUMBER_TYPES = {torch.int64: "int64_t", torch.float32: "float", torch.float64: "double"}
_FROM_WORD = {torch.int64: "(ob_i64){}", torch.float32: "OB_AS_F32((ob_u32){})", torch.float64: "OB_AS_F64({})"}


# Bytes of group memory per item, for combining results.
_GROUP_BYTES_PER_ITEM = 16


@dataclass(frozen=True)
class Operand:
    """An input of the graph, as csrc/kernels/chunk_plan.h describes it.

    Attributes
    ----------
    kind : str
        "list", "element", "numbers", "number" or "tensor". The kinds "numbers" and "number" are passed by value.
    argument : int
        The position in the operator's schema.
    """

    kind: str
    argument: int

    @property
    def is_number(self) -> bool:
        return self.kind in ("number", "numbers")


@dataclass(frozen=True)
class Result:
    """The destination of an output: an argument, or new memory if `argument` is None.

    If `is_flag` is true, the argument is a single tensor, which any true element of the result sets to 1.
    """

    argument: int | None = None
    is_flag: bool = False


@dataclass
class ChunkBody:
    """A computation on lists. The lowering of its graph fills in the plan and the programs.

    Attributes
    ----------
    shaped_by : int
        The argument whose tensors determine the number of elements per row.
    join : chunk_joins.Join, optional
        How a second kernel combines the results of a tensor's chunks into one result.
    """

    operands: Sequence[Operand]
    results: Sequence[Result]
    shaped_by: int
    join: chunk_joins.Join | None = None
    text: str = ""
    programs: list[DeviceProgram] = field(default_factory=list)


@dataclass(frozen=True)
class _Parameter:
    """A parameter of the loop, and the value that the kernel passes for it."""

    declared: Parameter
    passed: str


class ChunkKernel(SimtKernel):
    """A kernel over chunks in the class's dialect."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        device = V.graph.get_current_device_or_throw()
        limits = limits_of(self.dialect, device)
        self.items_of_group = limits.items_with(_GROUP_BYTES_PER_ITEM) if groups_share_work(self.dialect, device) else 1
        self.wanted: ChunkBody = V.graph.wrapper_code.request  # type: ignore[attr-defined]

    def choose_mapping(self) -> Mapping:
        # An item of the loop processes one element at a time, and continues only while elements are
        # left.
        return Item(self, is_parallel=False, items=1)

    def _operand(self, name: str) -> Operand:
        if name not in V.graph.graph_input_names:
            raise NotImplementedError("a kernel over chunks reads the result of another kernel")
        return self.wanted.operands[V.graph.graph_input_names.index(name)]

    def load(self, name: str, index: Any) -> Any:
        if name in V.graph.graph_input_names and self._operand(name).is_number:
            return self.cse.generate(self.compute, self.args.input(name), dtype=V.graph.get_dtype(name), shape=())
        return super().load(name, index)

    def store(self, name: str, index: Any, value: Any, mode: Any = None) -> None:
        if self.wanted.join is not None:
            line = self.wanted.join.joined("ob_parts[lane]", cast(value, self.wanted.join.kept))
            self.compute.writeline(DeferredLine(name, line))
        elif any(result.is_flag for result in self._results(name)):
            line = f"if ({cast(value, torch.bool)}) *{self.args.output(name)} = 1;"
            self.compute.writeline(DeferredLine(name, line))
        else:
            super().store(name, index, value, mode)

    def _results(self, name: str) -> list[Result]:
        """Return the results that are stored under a name, or none if the name is only an intermediate value."""
        outputs = zip(V.graph.graph_outputs, self.wanted.results, strict=True)
        return [result for node, result in outputs if node.get_name() == name]

    def output_name(self, name: str) -> str:
        """Return the name of a result's pointer."""
        inner = self.args.output_buffers[name]
        if not isinstance(inner, str):
            raise NotImplementedError("a kernel over chunks doesn't compute one of its results")
        return inner

    def call_kernel(self, name: str, node: Any = None, deallocate_ws: bool = True) -> None:
        pass  # the operator's call is a single launch, with the plan's arguments

    def codegen_kernel(self, name: str | None = None) -> str:
        self.codegen_body()
        if self.checks or self.args.sizevars or self.args.inplace_buffers:
            raise NotImplementedError("a kernel over chunks can neither check values nor read sizes")
        stored = [name for name, inner in self.args.output_buffers.items() if isinstance(inner, str)]
        if any(len(self._results(name)) != 1 for name in stored):
            raise NotImplementedError("a kernel over chunks stores a value that is not a result, or a result twice")
        plan = _Plan(self)
        before, body = _divided(self.body.getvalue().splitlines())
        index, items, join = self.index_dtype, self.items_of_group, self.wanted.join
        declared = self.dialect.declared
        loop = [
            Parameter("ob_item", index),
            Parameter("xnumel", index),
            *(parameter.declared for parameter in plan.parameters),
        ]
        kind, whole = "void", ""
        turns = [
            f"for ({index} xindex = ob_item; xindex < xnumel; xindex += {items}) {{",
            *(f"  {line}" for line in body),
            "}",
        ]
        if join is not None:
            kind, whole = join.type, f"{join.type} ob_part = "
            turns = chunk_joins.loop(join, self.dialect, body, index, items)
        passed = [f"({index})(ob_number % {items})", f"({index})(ob_rest < ob_elements ? ob_rest : ob_elements)"]
        function = [
            f"OB_DEVICE {kind} ob_chunk({', '.join(map(declared, loop))}) {{",
            *(f"  {line}" for line in [*plan.first, *before, *turns]),
            "}",
        ]
        row = self.dialect.pointer("ob_u64", is_written=False)
        lines = [
            f"  const ob_i64 ob_number = {self.dialect.item};",
            f"  const ob_u64 ob_place = ob_table[ob_number / {items}];",
            f"  {row} ob_row = ob_table + ob_chunks + (ob_i64)(ob_place >> 32) * {plan.width};",
            "  const ob_i64 ob_first = (ob_i64)(ob_u32)ob_place * ob_elements;",
            f"  const ob_i64 ob_rest = (ob_i64)ob_row[{plan.width - 1}] - ob_first;",
            f"  {whole}ob_chunk({', '.join([*passed, *(parameter.passed for parameter in plan.parameters)])});",
            *(f"  {line}" for line in (chunk_joins.store_of_chunk(join, items) if join is not None else [])),
        ]
        self.wanted.text, self.width = plan.text(), plan.width
        self.types_of_launch = ("table", "int64_t", "int64_t", *plan.types)
        parameters = [Parameter("ob_table", "ob_u64", True), Parameter("ob_chunks", "ob_i64")]
        parameters += [Parameter("ob_elements", "ob_i64"), *plan.given]
        arrays = chunk_joins.arrays_of(join, items) if join is not None else []
        kernel = self.dialect.frame(name or "KERNEL_NAME", parameters, "\n".join(lines) + "\n", arrays)
        return "\n".join(function) + "\n" + kernel


class _Plan:
    """The kernel's inputs: the columns of a row, the kernel's arguments, and the loop's parameters built from both."""

    def __init__(self, kernel: ChunkKernel) -> None:
        self.kernel = kernel
        self.columns: list[str] = []
        self.arguments: list[str] = []
        self.given: list[Parameter] = []  # the kernel's own arguments
        self.types: list[str] = []
        self.parameters: list[_Parameter] = []
        self.first: list[str] = []  # declarations at the start of the loop's function
        names = list(V.graph.graph_input_names)
        self.inputs = {kernel.wanted.operands[names.index(name)]: name for name in kernel.args.input_buffers}
        self.written = {result.argument for result in kernel.wanted.results}
        shape = Operand("list", kernel.wanted.shaped_by)
        self._add_list(shape)
        for operand in self.inputs:
            if operand != shape:
                (self._add_list if operand.kind == "list" else self._add_other)(operand)
        if kernel.wanted.join is not None:
            self._column("chunk")
            self.given.append(Parameter("ob_joined", STORAGE_TYPES[kernel.wanted.join.kept], True, True))
            self.types.append("void*")
            return
        for node, result in zip(V.graph.graph_outputs, kernel.wanted.results, strict=True):
            self._add_result(node.get_name(), result)

    @property
    def width(self) -> int:
        return len(self.columns) + 1

    def text(self) -> str:
        lines = [
            *(f"column {column}" for column in self.columns),
            *(f"argument {argument}" for argument in self.arguments),
        ]
        if self.kernel.wanted.join is not None:
            lines.append(self.kernel.wanted.join.text())
        return "\n".join(["chunks 1", *lines]) + "\n"

    def _inner(self, operand: Operand) -> tuple[str, torch.dtype]:
        name = self.inputs[operand]
        return self.kernel.args.input_buffers[name], V.graph.get_dtype(name)

    def _column(self, text: str) -> str:
        self.columns.append(text)
        return f"ob_row[{len(self.columns) - 1}]"

    def _add_list(self, operand: Operand) -> None:
        is_written = operand.argument in self.written
        word = self._column(f"list {operand.argument} {'w' if is_written else 'r'}")
        if operand in self.inputs:
            inner, dtype = self._inner(operand)
            self._pointer(inner, dtype, f"{word} + ob_first", is_written)

    def _pointer(self, name: str, dtype: torch.dtype, place: str, is_written: bool, is_alone: bool = True) -> None:
        kind = self.kernel.dialect.pointer(STORAGE_TYPES[dtype], is_written=is_written)
        declared = Parameter(name, STORAGE_TYPES[dtype], True, is_written, is_alone)
        self.parameters.append(_Parameter(declared, f"({kind}){place}"))

    def _add_other(self, operand: Operand) -> None:
        inner, dtype = self._inner(operand)
        if operand.is_number and dtype not in _NUMBER_TYPES:
            raise NotImplementedError(f"a launch can't pass a number of {dtype}")
        kind = str(dtype).removeprefix("torch.")
        if operand.kind == "element":
            self._pointer(inner, dtype, self._column(f"element {operand.argument} r"), False)
        elif operand.kind == "numbers":
            word = self._column(f"number {operand.argument} {kind}")
            passed = _FROM_WORD[dtype].format(word)
            self.parameters.append(_Parameter(Parameter(inner, COMPUTE_TYPES[dtype]), passed))
        else:
            name = f"ob_given{len(self.given)}"
            if operand.kind == "number":
                self._argument(
                    f"number {operand.argument} {kind}", Parameter(name, COMPUTE_TYPES[dtype]), _NUMBER_TYPES[dtype]
                )
                self.parameters.append(_Parameter(Parameter(inner, COMPUTE_TYPES[dtype]), name))
            else:
                element = STORAGE_TYPES[dtype]
                self._argument(f"tensor {operand.argument} r", Parameter(name, element, True), "const void*")
                self.parameters.append(_Parameter(Parameter(inner, element, True, is_alone=True), name))

    def _argument(self, text: str, declared: Parameter, kind: str) -> None:
        self.arguments.append(text)
        self.given.append(declared)
        self.types.append(kind)

    def _add_result(self, name: str, result: Result) -> None:
        inner = self.kernel.output_name(name)
        dtype = V.graph.get_dtype(name)
        target = Operand("list", -1 if result.argument is None else result.argument)
        if result.is_flag:
            parameter = f"ob_given{len(self.given)}"
            self._argument(f"tensor {result.argument} w", Parameter(parameter, "float", True, True), "void*")
            self.parameters.append(_Parameter(Parameter(inner, "float", True, True), parameter))
        elif result.argument is None:
            word = self._column(f"fresh {str(dtype).removeprefix('torch.')}")
            self._pointer(inner, dtype, f"{word} + ob_first", True)
        elif target in self.inputs:
            # One pointer per memory, so that no two pointers in the loop alias.
            pointer = self.kernel.dialect.pointer(STORAGE_TYPES[dtype], is_written=True)
            self.first.append(f"{pointer} {inner} = {self._inner(target)[0]};")
        else:
            text = f"list {result.argument} w"
            word = f"ob_row[{self.columns.index(text)}]" if text in self.columns else self._column(text)
            self._pointer(inner, dtype, f"{word} + ob_first", True)


def _divided(lines: list[str]) -> tuple[list[str], list[str]]:
    """Split lines into lines that are the same for all elements, and other lines. Unknown statements prevent this."""
    varying = {"xindex"}
    before: list[str] = []
    rest: list[str] = []
    for line in map(str.strip, lines):
        declaration = _DECLARATION.fullmatch(line)
        if declaration is None and not _STORE.fullmatch(line):
            return [], lines
        if declaration is not None and varying.isdisjoint(_NAME.findall(declaration[2])):
            before.append(line)
            continue
        if declaration is not None:
            varying.add(declaration[1])
        rest.append(line)
    return before, rest


class _ChunkScheduling(SimtScheduling):
    """A scheduling that stores a graph's single kernel in the requested ChunkBody."""

    def define_kernel(self, src_code: str, node_schedule: Any, kernel: Any) -> str:
        wanted: ChunkBody = kernel.wanted
        if wanted.programs or any(isinstance(operation, ir.ExternKernel) for operation in V.graph.operations):
            raise NotImplementedError("an operator over chunks must lower to exactly one kernel")
        name = "ob_chunks"
        dialect = kernel.dialect
        items = kernel.items_of_group
        program = DeviceProgram(
            name=name,
            language=dialect.language or dialect.name,
            types=kernel.types_of_launch,
            code=dialect.source(src_code.replace("KERNEL_NAME", name)),
            entry=name,
            grid=("a1",),
            block=(str(items),),
            options=dialect.options,
        )
        wanted.programs.append(program)
        if wanted.join is not None:
            # The last column of a row has the number of its first chunk.
            wanted.programs.append(
                chunk_joins.rows_program(wanted.join, dialect, kernel.width, kernel.width - 2, items)
            )
        return name


def chunk_scheduling(dialect: Dialect) -> type[_ChunkScheduling]:
    """Return the scheduling for kernels over chunks in a dialect."""
    kernel = type("DialectChunkKernel", (ChunkKernel,), {"dialect": dialect})
    return type("DialectChunkScheduling", (_ChunkScheduling,), {"kernel_type": kernel})
