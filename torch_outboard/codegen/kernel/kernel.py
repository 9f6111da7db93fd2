# SPDX-License-Identifier: BSD-3-Clause
"""One kernel: the body that Inductor's scheduling drives, and its text in a dialect.

An item computes one element of the dimensions that are not reduced, or several neighbouring ones (columns.py). A
reduction is a loop of the item. All statements of a body are in a single buffer, in the order of Inductor's requests,
since loads may depend on computed values.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch._inductor.codegen.common import CSE, CSEVariable, DeferredLine, PythonPrinter
from torch._inductor.utils import IndentedBuffer
from torch._inductor.virtualized import V
from torch.utils._ordered_set import OrderedSet
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from torch_outboard.codegen.dialects.dialect import COMPUTE_TYPES, NARROW, STORAGE_TYPES, SUFFIXES
from torch_outboard.codegen.kernel import reduction, search
from torch_outboard.codegen.kernel.checking import CheckingKernel
from torch_outboard.codegen.kernel.checks import RECORD
from torch_outboard.codegen.kernel.indexing import IndexPrinter
from torch_outboard.codegen.kernel.overrides import SimtOverrides
from torch_outboard.codegen.kernel.values import cast, literal
from torch_outboard.codegen.mapping import columns
from torch_outboard.codegen.mapping import group as groups
from torch_outboard.codegen.mapping import run as runs

__all__ = ["SimtKernel", "TypedCSE"]

# Statements that must not run for an item whose mask is false.
_BRANCHES = re.compile(r"\bif\b|\bfor\b|\bob_fail\b|\bob_checked\b")


class TypedCSE(CSE[Any, Any]):
    """A CSE that declares each variable with its type, and records the variable's text."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.texts: dict[str, str] = {}

    def scoped_copy(self) -> TypedCSE:
        copy: TypedCSE = super().scoped_copy()
        copy.texts = dict(self.texts)
        # Values that earlier loops have stored are read from memory within the scope too, so those stores stay.
        copy.invalidated_stores = self.invalidated_stores
        return copy

    def generate(self, buffer: IndentedBuffer, expr: Any, **options: Any) -> Any:
        dtype = options.get("dtype")
        self.prefix = f"const {COMPUTE_TYPES[dtype]} " if isinstance(dtype, torch.dtype) else ""
        variable = super().generate(buffer, expr, **options)
        if isinstance(expr, str):
            self.texts[str(variable)] = expr
        return variable


class SimtKernel(CheckingKernel):
    """A kernel in the dialect of the class."""

    overrides = SimtOverrides
    suffix = ";"
    pexpr = staticmethod(PythonPrinter().doprint)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cse: Any = TypedCSE("", ";")
        self.printer = IndexPrinter()
        self.loads = self.stores = self.compute = IndentedBuffer()
        self.before = IndentedBuffer()  # before the loop: declarations of accumulators
        self.after = IndentedBuffer()  # after the loop: joining of lanes, results, their stores
        self.is_sequential = False  # whether the next loop must run in order, in one lane
        self._kept: OrderedSet[CSEVariable] = OrderedSet()
        self._numbers = itertools.count()
        self.lanes_name = f"lanes{next(self._numbers)}"
        self.cooperates = groups.cooperates(self.dialect, V.graph.get_current_device_or_throw())
        self.group = groups.group_of(self)  # how groups reduce rows, or None
        self.columns = 0 if self.group is not None else columns.count_columns(self)  # of an item, or 0
        self._mask = ""  # of the elements that are loaded, if a load is no branch
        self._needs_branch = False
        self.is_spread = groups.is_spread(self)  # whether an item has several elements, far from each other
        self._parts = 1  # how many of them
        self.is_run = runs.is_run(self)  # whether an item has a run of neighbouring elements
        self.entries_of_run: list[Any] = []  # the indices of an element that the body uses
        self.of_column: list[str] = []  # declarations for each column
        self.stores_of_row = IndentedBuffer()  # by a single item of a group
        self._shared: dict[str, torch.dtype] = {}  # memory of the group
        self._found: list[str] = []  # declarations for each column, for the code after this loop

    # Indices.

    def sexpr(self, expr: sympy.Expr) -> str:
        self.printer.sizes = set(self.args.sizevars.values())
        text: str = self.printer.doprint(expr)
        return text

    kexpr = sexpr

    def narrow(self, size: sympy.Expr) -> str:
        """Return a size in the type of the kernel's indices, which no part of a dimension exceeds."""
        text = self.sexpr(self.rename_indexing(size))
        return text if isinstance(size, sympy.Integer) else f"({self.index_dtype})({text})"

    def quotient(self, entry: Any) -> str:
        """Return an index that is a part of its tree's index. It is not negative."""
        if not isinstance(entry.expr, FloorDiv | ModularIndexing):
            return self.sexpr(self.rename_indexing(entry.expr))
        text, (_, divisor, *modulus) = f"{entry.root.prefix}index", entry.expr.args
        if divisor != 1:
            text = f"({text} / {self.narrow(divisor)})"
        return f"({text} % {self.narrow(modulus[0])})" if modulus else text

    # Types.

    def check_dtype(self, dtype: torch.dtype) -> None:
        """Raise NotImplementedError for a type that the dialect does not have."""
        if not self.dialect.supports(dtype):
            raise NotImplementedError(f"the dialect {self.dialect.name!r} has no {dtype}")

    def dtype_to_str(self, dtype: torch.dtype) -> str:
        return STORAGE_TYPES[dtype]

    # Memory.

    def load(self, name: str, index: sympy.Expr) -> Any:
        variable = self.args.input(name)
        dtype = V.graph.get_dtype(name)
        place = self.index_to_str(self.prepare_indexing(index))
        if self._mask:
            if sympy.sympify(V.graph.get_numel(name)).is_positive:
                place = f"{self._mask} ? {place} : 0"
            else:
                self._needs_branch = True
        text = self.loaded(variable, place, dtype)
        return self.cse.generate(self.compute, text, dtype=torch.float32 if dtype in NARROW else dtype, shape=())

    def loaded(self, variable: str, index: str, dtype: torch.dtype) -> str:
        """Return an element of memory as a value."""
        self.check_dtype(dtype)
        text = f"{variable}[{index}]"
        if self.may_be_lost:
            text = f"(ob_is_lost ? 0 : {text})"
        if dtype in NARROW:
            return f"ob_from_{SUFFIXES[dtype]}({text})"
        return f"({text} != 0)" if dtype == torch.bool else text

    def store(self, name: str, index: sympy.Expr, value: Any, mode: Any = None) -> None:
        variable = self.args.output(name)
        dtype = V.graph.get_dtype(name)
        self.check_dtype(dtype)
        place = self.index_to_str(self.prepare_indexing(index))
        text = cast(value, dtype)
        if mode == "atomic_add":
            if torch.are_deterministic_algorithms_enabled():
                raise NotImplementedError("atomic sums have no order, and deterministic mode is on")
            if SUFFIXES[dtype] not in self.dialect.atomics:
                raise NotImplementedError(f"the dialect {self.dialect.name!r} adds no {dtype} atomically")
            line = f"ob_atomic_add_{SUFFIXES[dtype]}({variable} + ({place}), {text});"
        elif mode is not None:
            raise NotImplementedError(f"the code generator 'simt' has no store of mode {mode!r}")
        elif dtype in NARROW:
            line = f"{variable}[{place}] = ob_to_{SUFFIXES[dtype]}({text});"
        else:
            line = f"{variable}[{place}] = {text};"
        if self.may_be_lost:
            line = f"if (!ob_is_lost) {line}"
        if self.is_spread:
            line = f"if (ob_is_inside) {line}"
        is_of_row = self.group is not None and not self.inside_reduction
        (self.stores_of_row if is_of_row else self.compute).writeline(DeferredLine(name, line))

    def store_reduction(self, name: str, index: sympy.Expr, value: Any) -> None:
        is_inside, self.inside_reduction = self.inside_reduction, False
        compute, self.compute = self.compute, self.after
        try:
            self.store(name, index, value)
        finally:
            self.inside_reduction, self.compute = is_inside, compute

    def masked(self, mask: Any, body: Callable[[], Any], other: Any) -> Any:
        """Emit `body`, which may load, for items whose mask is true."""
        lines = IndentedBuffer()
        outside, self.bounded = self.bounded, dict(self.bounded)
        outer, self._mask = self._mask, " && ".join(filter(None, (self._mask, str(mask)))) if self.cooperates else ""
        needed_branch, self._needs_branch = self._needs_branch, False
        with self.swap_buffers(lines):
            result = body()
            dtype = result.dtype
            result = cast(result, dtype)
        self.bounded, self._mask = outside, outer
        variable = self.cse.newvar(dtype=dtype, shape=())
        if self.cooperates and not self._needs_branch and not _BRANCHES.search(lines.getvalue()):
            # Loads without a branch can be in flight together. They read the first element if the mask is false.
            self._needs_branch = needed_branch
            self.compute.splice(lines)
            kind = COMPUTE_TYPES[dtype]
            self.compute.writeline(f"const {kind} {variable} = {mask} ? ({kind}){result} : {literal(other, dtype)};")
            return variable
        self._needs_branch = True
        self.compute.writeline(f"{COMPUTE_TYPES[dtype]} {variable} = {literal(other, dtype)};")
        self.compute.writeline(f"if ({mask}) {{")
        with self.compute.indent():
            self.compute.splice(lines)
            self.compute.writeline(f"{variable} = {result};")
        self.compute.writeline("}")
        return variable

    def bucketize(
        self,
        values: Any,
        boundaries: tuple[str, sympy.Expr, sympy.Expr, sympy.Expr],
        boundary_indices: Any,
        indexing_dtype: torch.dtype,
        right: bool,
        sorter: tuple[str, sympy.Expr] | None = None,
        sorter_indices: Any = None,
    ) -> Any:
        return search.bucketize(
            self, values, boundaries, boundary_indices, indexing_dtype, right, sorter, sorter_indices
        )

    # Reductions.

    def _trees(self, is_reduction: bool) -> list[Any]:
        trees: list[Any] = self.range_trees
        return [tree for tree in trees if bool(tree.is_reduction) == is_reduction]

    def fresh_buffer(self) -> IndentedBuffer:
        return IndentedBuffer()

    def row_index(self) -> str:
        """Return the number of the element in its row."""
        return f"{self._trees(True)[0].prefix}index"

    def row_size(self) -> int:
        """Return the number of elements of a row. Raise NotImplementedError if the number is symbolic."""
        size = self._trees(True)[0].numel
        if not isinstance(size, sympy.Integer):
            raise NotImplementedError("the code generator 'simt' sorts no rows of symbolic size")
        return int(size)

    def fresh_name(self, name: str) -> str:
        return f"{name}{next(self._numbers)}"

    def accumulator(self, dtype: torch.dtype, start: str) -> str:
        """Declare an accumulator with an element a lane, and return its name."""
        name = self.fresh_name("acc")
        self.before.writeline(f"{COMPUTE_TYPES[dtype]} {name}[{self.lanes_name}];")
        self.before.writeline(f"for (int lane = 0; lane < {self.lanes_name}; ++lane) {name}[lane] = {start};")
        return name

    def carried(self, dtype: torch.dtype) -> Any:
        """Declare a variable that lives from one element of the row to the next."""
        variable = self.cse.newvar(dtype=dtype, shape=())
        self.before.writeline(f"{COMPUTE_TYPES[dtype]} {variable} = {literal(0, dtype)};")
        return variable

    def shared(self, dtype: torch.dtype, number: int) -> str:
        """Declare memory of the group with an element an item, separate for each number, and return its name."""
        name = groups.shared_name(dtype, number)
        self._shared[name] = dtype
        return name

    def join_lanes(self, arrays: list[tuple[str, torch.dtype]], lines: Callable[[str, str], list[str]]) -> None:
        """Emit the join of the accumulators' lanes after the loop. `lines` returns the join of lane b into lane a."""
        if self.columns:
            return  # each lane has its own row
        if self.group is not None:
            groups.write_join(self, arrays, lines)
            return
        self.after.writeline(f"for (int span = {self.lanes_name} / 2; span > 0; span /= 2)")
        self.after.writeline("  for (int lane = 0; lane < span; ++lane) {")
        for line in lines("lane", "lane + span"):
            self.after.writeline("    " + line)
        self.after.writeline("  }")

    def result(self, dtype: torch.dtype, array: str, kept: torch.dtype) -> Any:
        """Declare the variable of a reduction's result, available after the loop, from an accumulator's lanes."""
        kind = torch.float32 if dtype in NARROW else dtype
        variable = self.cse.newvar(dtype=kind, shape=())
        text = f"{array}[{'lane' if self.columns else 0}]"
        if kind != kept:
            text = f"({text} != 0)" if kind == torch.bool else f"({COMPUTE_TYPES[kind]}){text}"
        self.after.writeline(f"const {COMPUTE_TYPES[kind]} {variable} = {text};")
        if self.columns:
            self.before.writeline(f"{COMPUTE_TYPES[kind]} {variable}_of[{self.lanes_name}];")
            self.after.writeline(f"{variable}_of[lane] = {variable};")
            self._found.append(f"const {COMPUTE_TYPES[kind]} {variable} = {variable}_of[lane];")
        self._kept.add(variable)
        return variable

    def reduction(self, dtype: torch.dtype, src_dtype: torch.dtype, reduction_type: Any, value: Any) -> Any:
        key = (src_dtype, reduction_type, value)
        if key not in self.cse.reduction_cache:
            self.cse.reduction_cache[key] = reduction.reduce(self, dtype, src_dtype, reduction_type, value)
        return self.cse.reduction_cache[key]

    def scan(self, dtypes: tuple[torch.dtype, ...], combine_fn: Callable[..., Any], values: Any) -> Any:
        return reduction.scan(self, dtypes, combine_fn, values)

    def sort(self, dtypes: tuple[torch.dtype, ...], values: Any, stable: bool, descending: bool) -> Any:
        return reduction.sort(self, dtypes, values, descending)

    # Text.

    def codegen_iteration_ranges_entry(self, entry: Any) -> None:
        if self.is_run:
            self.entries_of_run.append(entry)
            return
        line = f"const {self.index_dtype} {entry.name} = {self.quotient(entry)};"
        if self.columns and not entry.root.is_loop:
            self.of_column.append(line)
        else:
            (self.indexing_code if entry.root.is_loop else self.body).writeline(line)

    def codegen_body(self) -> None:
        parts = (self.before, self.indexing_code, self.compute, self.after)
        if not any(parts):
            return
        loops = [tree for tree in self.range_trees if tree.is_loop] if self.inside_reduction else []
        if self.columns:
            columns.write_part(self, loops)
            self._forget(loops)
            self.of_column += self._found
            self._found.clear()
        elif loops:
            lanes = self._lanes(loops)
            # Deferred lines (stores that Inductor may still remove) can't be changed any more. So a name stands for the
            # number of lanes.
            self.body.writeline(f"enum {{ {self.lanes_name} = {lanes} }};")
            self.body.splice(self.before)
            self._write_loops(loops, lanes)
            self._forget(loops)
            self.body.splice(self.after)
        else:
            for part in parts:
                self.body.splice(part)
            if self.group is not None:
                # A row's stores run at the end of the kernel, so later loops read the variable and not memory.
                self._kept.update(self.cse.store_cache.values())
        for part in parts:
            part.clear()
        self.is_sequential = False
        self.lanes_name = f"lanes{next(self._numbers)}"

    def _forget(self, loops: list[Any]) -> None:
        """Drop the values computed in loops, except the loops' results. Later code computes them again if needed."""
        self.cse.invalidate(self._kept)
        for tree in loops:
            tree.cache_clear()

    def _lanes(self, loops: list[Any]) -> int:
        """Return how many lanes share a row: one if the order matters or rows are short."""
        if self.group is not None:
            return self.group.lanes
        if self.is_sequential or len(loops) > 1 or not self.before:
            return 1
        size = loops[0].numel
        return 1 if isinstance(size, sympy.Integer) and size < self.dialect.lanes else self.dialect.lanes

    def _write_loops(self, loops: list[Any], lanes: int) -> None:
        if self.group is not None:
            groups.write_loops(self, loops[0], self._write_loop_body)
            return
        if lanes == 1:
            self._write_plain_loops(loops)
            return
        (tree,) = loops
        index, number, prefix = self.index_dtype, f"{tree.prefix}numel", tree.prefix
        whole = f"{prefix}whole{next(self._numbers)}"
        self.body.writeline(f"const {index} {whole} = {number} - {number} % {lanes};")
        self.body.writeline(f"for ({index} {prefix}base = 0; {prefix}base < {whole}; {prefix}base += {lanes})")
        self.body.writelines(runs.vectors(self, 1))
        self.body.writeline(f"  for (int lane = 0; lane < {lanes}; ++lane) {{")
        self._write_loop_body(f"const {index} {prefix}index = {prefix}base + lane, turn = {prefix}base / {lanes};")
        self.body.writeline("  }")
        if not isinstance(tree.numel, sympy.Integer) or tree.numel % lanes != 0:
            self.body.writeline(f"for ({index} {prefix}index = {whole}; {prefix}index < {number}; ++{prefix}index) {{")
            self._write_loop_body(f"const {index} lane = {prefix}index - {whole}, turn = {whole} / {lanes};")
            self.body.writeline("}")

    def _write_plain_loops(self, loops: list[Any]) -> None:
        if len(loops) == 1 and not self.before and not self.is_sequential:
            self.body.writelines(runs.vectors(self, 2))
        turn = self.open_loops(loops)
        self._write_loop_body(f"const {self.index_dtype} lane = 0, turn = {turn};")
        self.body.writeline("}" * len(loops))

    def open_loops(self, loops: list[Any]) -> str:
        """Write the heads of loops over the elements of a row, one a turn, and return the number of the turn."""
        index = self.index_dtype
        for tree in loops:
            name = tree.prefix + "index"
            self.body.writeline(f"for ({index} {name} = 0; {name} < {tree.prefix}numel; ++{name}) {{")
        turn: str = loops[0].prefix + "index"
        for tree in loops[1:]:
            turn = f"({turn}) * {tree.prefix}numel + {tree.prefix}index"
        return turn

    def _write_loop_body(self, first: str) -> None:
        with self.body.indent(2):
            if self.before:
                self.body.writeline(first)
            self.body.splice(self.indexing_code)
            self.body.splice(self.compute)

    def parameters(self) -> Iterator[tuple[str, str, str, Any]]:
        """Yield the declaration, the name, the letter of a launch and the wrapper's value of each argument."""
        arguments: tuple[Any, ...] = self.args.python_argdefs()
        names, given, kinds, _ = arguments
        written = {inner for inner in self.args.output_buffers.values() if isinstance(inner, str)}
        written |= {one.inner_name for one in self.args.inplace_buffers.values() if hasattr(one, "inner_name")}
        for argument, value, kind in zip(names, given, kinds, strict=True):
            name = argument.name
            if hasattr(kind, "expr"):
                yield f"const ob_i64 {name}", name, "i", value
                continue
            is_written = name in written
            # A mutated buffer may also be an input.
            is_alone = given.count(value) == 1
            declared = f"OB_GLOBAL {'' if is_written else 'const '}{STORAGE_TYPES[kind.dtype]}*"
            yield f"{declared}{' OB_RESTRICT' if is_alone else ''} {name}", name, "w" if is_written else "r", value
        for tree in self.range_trees:
            if not isinstance(tree.numel, sympy.Integer):
                name = f"{tree.prefix}numel_given"
                yield f"const ob_i64 {name}", name, "i", tree.numel

    def types(self) -> tuple[str, ...]:
        """Return the types of the parameters that calls pass."""
        kinds = {"i": "int64_t", "r": "const void*", "w": "void*"}
        return tuple(kinds[letter] for _, _, letter, _ in self.parameters())

    def items(self) -> str:
        """Return the number of items as an expression of the kernel's parameters."""
        return " * ".join(columns.items(tree, size, self.columns) for tree, size in self._sizes()) or "1"

    def items_formula(self) -> str:
        """Return the number of items in the postfix form of a launch's formulas, where a2 is the third parameter."""
        names = [name for _, name, _, _ in self.parameters()]
        words = [
            columns.items_formula(tree, f"a{names.index(size)}" if size in names else size, self.columns)
            for tree, size in self._sizes()
        ] or ["1"]
        return " ".join([words[0], *(f"{word} mul" for word in words[1:])])

    def geometry(self) -> tuple[str, str]:
        """Return the number of groups, as a formula of a launch, and the items of a group: fewer with columns."""
        if self.group is not None:
            taken, items = self.group.across, groups.ITEMS
        elif self.is_spread:
            taken, items = groups.ITEMS * self._parts, groups.ITEMS
        elif self.is_run:
            taken, items = runs.ELEMENTS, 1
        else:
            taken = items = max(self.dialect.group // max(self.columns, 1), 1)
        return f"{self.items_formula()} {taken} ceildiv", str(items)

    def _sizes(self) -> Iterator[tuple[Any, str]]:
        for tree in self._trees(False):
            is_known = isinstance(tree.numel, sympy.Integer)
            yield tree, str(int(tree.numel)) if is_known else f"{tree.prefix}numel_given"

    def codegen_kernel(self, name: str | None = None) -> str:
        self.codegen_body()
        trees = sorted(
            self._trees(False), key=lambda tree: "xyz".index(tree.prefix)
        )  # the first is contiguous in memory
        run = runs.Run(self, trees) if self.is_run else None
        code = IndentedBuffer()
        for number, check in enumerate(self.checks):
            code.writeline(f"// check {number}: {check!r}")
        declared = [text for text, *_ in self.parameters()]
        parameters = ", ".join([*declared, RECORD] if self.checks else declared)
        code.writeline(self.dialect.kernel.format(name=name or "KERNEL_NAME", parameters=parameters) + " {")
        if self.is_spread:
            self._parts = groups.parts_of_item(self.body.getvalue())
        with code.indent():
            code.writelines([f"const ob_i64 {name} = {text};" for text, name in self.printer.named.items()])
            self._write_indices(code, trees, run)
            for old, new in self.args.aliases():
                code.writeline(f"#define {old} {new}")
            code.splice(self.body)
            if self.group is not None:
                groups.write_stores(self, code)
            code.writelines(["}"] * self.is_spread if run is None else run.closing)
            for old, _ in self.args.aliases():
                code.writeline(f"#undef {old}")
        code.writeline("}")
        return code.getvalue()

    def _write_indices(self, code: IndentedBuffer, trees: list[Any], run: runs.Run | None) -> None:
        index = self.index_dtype
        for tree in self.range_trees:
            size = f"{tree.numel}" if isinstance(tree.numel, sympy.Integer) else f"({index}){tree.prefix}numel_given"
            code.writeline(f"const {index} {tree.prefix}numel = {size};")
        total = f"(ob_i64){' * (ob_i64)'.join(self._counts(trees)) or 1}"
        if run is not None:
            code.writelines([*run.write(total), *["bool ob_is_lost = false;"] * self.may_be_lost])
            return
        if self.group is not None:
            code.writelines(groups.declared(self._shared))
            code.writelines(groups.write_number(self.group, total))
            (row,) = self._trees(True)
            code.writeline(f"const {index} {row.prefix}end = ob_is_inside ? {row.prefix}numel : 0;")
        elif self.is_spread:
            code.writelines(groups.write_parts(self._parts, total, index))
        else:
            code.writeline(f"const ob_i64 ob_number = {self.dialect.item};")
            code.writeline(f"if (ob_number >= {total}) return;")
        code.writelines(["bool ob_is_lost = false;"] * self.may_be_lost)
        code.writelines(self.index_lines(trees, "ob_number"))

    def _counts(self, trees: list[Any]) -> list[str]:
        return [columns.items(tree, f"{tree.prefix}numel", self.columns) for tree in trees]

    def index_lines(self, trees: list[Any], number: str) -> list[str]:
        """Return the declarations of an item's indices, one in each dimension, computed from the item's number."""
        lines: list[str] = []
        for tree, count in zip(trees, self._counts(trees), strict=True):
            here = number if tree is trees[-1] else f"({number} % {count})"
            lines += columns.index_of(self, tree, here)
            number = f"({number} / {count})"
        return lines

    def call_kernel(self, name: str, node: Any = None, deallocate_ws: bool = True) -> None:
        wrapper = V.graph.wrapper_code
        for symbol in self.args.sizevars:
            wrapper.ensure_size_computed(symbol)
        values = [
            value if isinstance(value, str) else V.graph.sizevars.simplify(value) for *_, value in self.parameters()
        ]
        arguments = [value if isinstance(value, str) else self.pexpr(value) for value in values]
        # Wrappers that compute with sizes take them as expressions.
        raw = {"raw_args": values} if getattr(wrapper, "takes_expressions", False) else {}
        device = V.graph.get_current_device_or_throw()
        wrapper.generate_kernel_call(name, arguments, arg_types=list(self.types()), triton=False, device=device, **raw)
