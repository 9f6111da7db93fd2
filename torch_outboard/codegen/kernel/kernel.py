# SPDX-License-Identifier: BSD-3-Clause
"""One kernel: the body that Inductor's scheduling drives, and its text in a dialect.

The kernel's mapping (codegen/mapping/) distributes elements over items, and writes the loops around the statements that
the kernel collects. All statements of a body are in a single buffer, in the order in which Inductor requests them,
because loads may depend on computed values.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch._inductor import ir
from torch._inductor.codegen.common import CSE, CSEVariable, PythonPrinter
from torch._inductor.utils import IndentedBuffer
from torch._inductor.virtualized import V
from torch.utils._ordered_set import OrderedSet
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from torch_outboard.codegen.dialects.dialect import COMPUTE_TYPES, NARROW, STORAGE_TYPES, SUFFIXES
from torch_outboard.codegen.dialects.frame import Parameter
from torch_outboard.codegen.kernel import reduction, search
from torch_outboard.codegen.kernel.checking import CheckingKernel
from torch_outboard.codegen.kernel.checks import RECORD
from torch_outboard.codegen.kernel.indexing import IndexPrinter
from torch_outboard.codegen.kernel.overrides import SimtOverrides
from torch_outboard.codegen.kernel.values import cast, literal
from torch_outboard.codegen.mapping.choice import choose_mapping
from torch_outboard.codegen.mapping.mapping import Element, Mapping

__all__ = ["SimtKernel", "TypedCSE"]

# Statements that must not run for an item whose mask is false.
_BRANCHES = re.compile(r"\bif\b|\bfor\b|\bob_fail\b|\bob_checked\b")


_BITS = 64  # bits of the argument for such a value


def _from_bits(variable: str, dtype: torch.dtype) -> str:
    """Return the value of a dtype whose bits an integer begins with."""
    if dtype in NARROW:
        return f"ob_from_{SUFFIXES[dtype]}(({STORAGE_TYPES[dtype]}){variable})"
    if dtype.is_floating_point:
        return f"OB_AS_{SUFFIXES[dtype].upper()}({'(ob_u32)' if dtype == torch.float32 else ''}{variable})"
    return f"(({STORAGE_TYPES[dtype]}){variable}{' != 0' if dtype == torch.bool else ''})"


def _computed(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in NARROW else dtype


class TypedCSE(CSE[Any, Any]):
    """A CSE that declares each variable with its type, and records the variable's text."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.texts: dict[str, str] = {}

    def scoped_copy(self) -> TypedCSE:
        copy: TypedCSE = super().scoped_copy()
        copy.texts = dict(self.texts)
        # Within the scope, values stored by earlier loops are read from memory, so keep their
        # stores.
        copy.invalidated_stores = self.invalidated_stores
        return copy

    def generate(self, buffer: IndentedBuffer, expr: Any, **options: Any) -> Any:
        dtype = options.get("dtype")
        known, bounds = self.try_get(expr) if isinstance(expr, str) else None, options.get("bounds")
        if known is not None and bounds is not None and bounds.is_singleton() and known.bounds.is_singleton():
            options["bounds"] = known.bounds  # the type may round two bounds to the same number
        self.prefix = f"const {COMPUTE_TYPES[dtype]} " if isinstance(dtype, torch.dtype) else ""
        variable = super().generate(buffer, expr, **options)
        if isinstance(expr, str):
            self.texts[str(variable)] = expr
        return variable


class SimtKernel(CheckingKernel):
    """A kernel in the class's dialect."""

    overrides = SimtOverrides
    suffix = ";"
    pexpr = staticmethod(PythonPrinter().doprint)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cse: Any = TypedCSE("", ";")
        self.printer = IndexPrinter(self.dialect.suffixes)
        self.loads = self.stores = self.compute = IndentedBuffer()
        self.before = IndentedBuffer()  # before the loop: declarations of accumulators
        self.after = IndentedBuffer()  # after the loop: combining of lanes, results, their stores
        self.is_sequential = False  # whether the next loop must run in order, in one lane
        self._kept: OrderedSet[CSEVariable] = OrderedSet()
        self._numbers = itertools.count()
        self.lanes_name = f"lanes{next(self._numbers)}"
        self._mask = ""  # condition of the elements to load, if a load needs no branch
        self._needs_branch = False
        self.mapping = self.choose_mapping()

    def choose_mapping(self) -> Mapping:
        """Return the distribution of the kernel's elements over items."""
        return choose_mapping(self)

    # Indices.

    def sexpr(self, expr: sympy.Expr) -> str:
        self.printer.sizes = set(self.args.sizevars.values())
        text: str = self.printer.doprint(expr)
        return text

    kexpr = sexpr

    def narrow(self, size: sympy.Expr) -> str:
        """Return a size in the type of the kernel's indices, which holds any part of a dimension."""
        text = self.sexpr(self.rename_indexing(size))
        return text if isinstance(size, sympy.Integer) else f"({self.index_dtype})({text})"

    def quotient(self, entry: Any) -> str:
        """Return an index that is part of its tree's index. It is never negative."""
        if not isinstance(entry.expr, FloorDiv | ModularIndexing):
            return self.sexpr(self.rename_indexing(entry.expr))
        text, (_, divisor, *modulus) = f"{entry.root.prefix}index", entry.expr.args
        if divisor != 1:
            text = f"({text} / {self.narrow(divisor)})"
        return f"({text} % {self.narrow(modulus[0])})" if modulus else text

    # Types.

    def check_dtype(self, dtype: torch.dtype) -> None:
        """Raise NotImplementedError for a type that the dialect does not support, except as the bits of halves."""
        if not self.dialect.supports(dtype) and dtype != torch.int16:
            raise NotImplementedError(f"the dialect {self.dialect.name!r} has no {dtype}")

    def dtype_to_str(self, dtype: torch.dtype) -> str:
        return STORAGE_TYPES[dtype]

    # Memory.

    def load(self, name: str, index: sympy.Expr) -> Any:
        variable = self.args.input(name)
        dtype = V.graph.get_dtype(name)
        if self._is_by_value(name):
            self.check_dtype(dtype)
            return self.cse.generate(self.compute, _from_bits(variable, dtype), dtype=_computed(dtype), shape=())
        place = self.index_to_str(self.prepare_indexing(index))
        if self._mask:
            if sympy.sympify(V.graph.get_numel(name)).is_positive:
                place = f"{self._mask} ? {place} : 0"
            else:
                self._needs_branch = True
        text = self.loaded(variable, place, dtype)
        return self.cse.generate(self.compute, text, dtype=_computed(dtype), shape=())

    def _is_by_value(self, name: str) -> bool:
        """Return True if launches pass the value of a graph's input, which is one element on the CPU."""
        given = V.graph.graph_inputs.get(name)
        if self.dialect.runs_on_host or not isinstance(given, ir.TensorBox):
            return False
        is_scalar = given.get_numel() == 1 and given.get_device() == torch.device("cpu")
        return given.get_dtype().itemsize <= _BITS // 8 and (is_scalar or name in getattr(V.graph, "scalars", ()))

    def loaded(self, variable: str, index: str, dtype: torch.dtype) -> str:
        """Return an element of memory as a value."""
        self.check_dtype(dtype)
        text = f"{variable}[{index}]"
        if self.may_be_lost:
            zero = "0" if self.dialect.has_int16 else f"({STORAGE_TYPES[dtype]})0"
            text = f"(ob_is_lost ? {zero} : {text})"
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
                raise NotImplementedError("atomic additions run in no fixed order, and deterministic mode is on")
            if SUFFIXES[dtype] not in self.dialect.atomics:
                raise NotImplementedError(f"the dialect {self.dialect.name!r} has no atomic addition for {dtype}")
            line = f"ob_atomic_add_{SUFFIXES[dtype]}({variable} + ({place}), {text});"
        elif mode is not None:
            raise NotImplementedError(f"the code generator 'simt' has no store mode {mode!r}")
        else:
            helper = f"ob_to_{SUFFIXES[dtype]}" if dtype in NARROW else ""
            element = Element(variable, place, text, COMPUTE_TYPES[dtype], helper)
            if not self.may_be_lost:
                self.mapping.store_element(name, element, is_of_row=not self.inside_reduction)
                return
            line = element.store()
        if self.may_be_lost:
            line = f"if (!ob_is_lost) {line}"
        self.mapping.store(name, line, is_of_row=not self.inside_reduction)

    def store_reduction(self, name: str, index: sympy.Expr, value: Any) -> None:
        is_inside, self.inside_reduction = self.inside_reduction, False
        compute, self.compute = self.compute, self.after
        try:
            self.store(name, index, value)
        finally:
            self.inside_reduction, self.compute = is_inside, compute

    def masked(self, mask: Any, body: Callable[[], Any], other: Any) -> Any:
        """Emit `body`, which may load, only for items whose mask is true."""
        lines, is_parallel = IndentedBuffer(), self.mapping.is_parallel
        outside, self.bounded = self.bounded, dict(self.bounded)
        outer, self._mask = self._mask, " && ".join(filter(None, (self._mask, str(mask)))) if is_parallel else ""
        needed_branch, self._needs_branch = self._needs_branch, False
        with self.swap_buffers(lines):
            result = body()
            dtype = result.dtype
            result = cast(result, dtype)
        self.bounded, self._mask = outside, outer
        variable = self.cse.newvar(dtype=dtype, shape=())
        if is_parallel and not self._needs_branch and not _BRANCHES.search(lines.getvalue()):
            # Loads without a branch can be in flight together. If the mask is false, they read the
            # first element.
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

    def row_index(self) -> str:
        """Return the number of the element in its row."""
        return f"{self._trees(True)[0].prefix}index"

    def row_size(self) -> int:
        """Return the number of elements in a row. Raise NotImplementedError if the number is symbolic."""
        size = self._trees(True)[0].numel
        if not isinstance(size, sympy.Integer):
            raise NotImplementedError("the code generator 'simt' can't sort rows of symbolic size")
        return int(size)

    def fresh_name(self, name: str) -> str:
        return f"{name}{next(self._numbers)}"

    def accumulator(self, dtype: torch.dtype, start: str) -> str:
        """Declare an accumulator with one element per lane, and return its name."""
        name = self.fresh_name("acc")
        self.before.writeline(f"{COMPUTE_TYPES[dtype]} {name}[{self.lanes_name}];")
        self.before.writeline(f"for (int lane = 0; lane < {self.lanes_name}; ++lane) {name}[lane] = {start};")
        return name

    def loop_carried(self, dtype: torch.dtype) -> Any:
        """Declare a variable that persists from one element of the row to the next."""
        variable = self.cse.newvar(dtype=dtype, shape=())
        self.before.writeline(f"{COMPUTE_TYPES[dtype]} {variable} = {literal(0, dtype)};")
        return variable

    def join_lanes(self, arrays: list[tuple[str, torch.dtype]], lines: Callable[[str, str], list[str]]) -> None:
        """Emit the code that combines the accumulators' lanes after the loop. `lines` combines lane b into lane a."""
        self.mapping.join_lanes(arrays, lines)

    def result(self, dtype: torch.dtype, array: str, kept: torch.dtype) -> Any:
        """Declare the variable of a reduction's result, available after the loop, from an accumulator's lanes."""
        kind = torch.float32 if dtype in NARROW else dtype
        variable = self.cse.newvar(dtype=kind, shape=())
        text = f"{array}[{self.mapping.lane}]"
        if kind != kept:
            text = f"({text} != 0)" if kind == torch.bool else f"({COMPUTE_TYPES[kind]}){text}"
        self.after.writeline(f"const {COMPUTE_TYPES[kind]} {variable} = {text};")
        self.mapping.keep(str(variable), COMPUTE_TYPES[kind])
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
        self.mapping.declare(entry)

    def codegen_body(self) -> None:
        parts = (self.before, self.indexing_code, self.compute, self.after)
        if not any(parts):
            return
        self.mapping.write_part([tree for tree in self.range_trees if tree.is_loop] if self.inside_reduction else [])
        for part in parts:
            part.clear()
        self.is_sequential = False
        self.lanes_name = f"lanes{next(self._numbers)}"

    def forget(self, loops: list[Any]) -> None:
        """Drop the values computed in loops, except the loops' results. Later code recomputes them if needed."""
        self.cse.invalidate(self._kept)
        for tree in loops:
            tree.cache_clear()

    def keep_stored(self) -> None:
        """Keep the stored variables past the next loop, which then does not read them from memory."""
        self._kept.update(self.cse.store_cache.values())

    def parameters(self) -> Iterator[tuple[Parameter, str, Any]]:
        """Yield each parameter, its letter in a launch, and the wrapper's value."""
        arguments: tuple[Any, ...] = self.args.python_argdefs()
        names, types, kinds, _ = arguments
        written = {inner for inner in self.args.output_buffers.values() if isinstance(inner, str)}
        written |= {buffer.inner_name for buffer in self.args.inplace_buffers.values() if hasattr(buffer, "inner_name")}
        for argument, value, kind in zip(names, types, kinds, strict=True):
            name = argument.name
            if hasattr(kind, "expr"):
                yield Parameter(name, "ob_i64"), "i", value
                continue
            is_written = name in written
            if not is_written and self._is_by_value(value):
                yield Parameter(name, "ob_i64"), "s", value
                continue
            # A mutated buffer may also be an input, and then has two parameters.
            is_alone = types.count(value) == 1
            parameter = Parameter(name, STORAGE_TYPES[kind.dtype], True, is_written, is_alone)
            yield parameter, "w" if is_written else "r", value
        for tree in self.range_trees:
            if not isinstance(tree.numel, sympy.Integer):
                yield Parameter(f"{tree.prefix}numel_given", "ob_i64"), "i", tree.numel

    def types(self) -> tuple[str, ...]:
        """Return the types of the parameters that calls pass."""
        kinds = {"i": "int64_t", "s": "const scalar*", "r": "const void*", "w": "void*"}
        return tuple(kinds[letter] for _, letter, _ in self.parameters())

    def items(self) -> str:
        """Return the number of items as an expression in the kernel's parameters."""
        return " * ".join(self.mapping.count(tree, size) for tree, size in self._sizes()) or "1"

    def items_formula(self) -> str:
        """Return the number of items in the postfix form of a launch's formulas, where a2 is the third parameter."""
        names = [parameter.name for parameter, *_ in self.parameters()]
        words = [
            self.mapping.count_formula(tree, f"a{names.index(size)}" if size in names else size)
            for tree, size in self._sizes()
        ] or ["1"]
        return " ".join([words[0], *(f"{word} mul" for word in words[1:])])

    def geometry(self) -> tuple[str, str]:
        """Return the number of groups, as a launch formula, and the number of items per group."""
        covered, items = self.mapping.launch()
        return f"{self.items_formula()} {covered} ceildiv", str(items)

    def _sizes(self) -> Iterator[tuple[Any, str]]:
        for tree in self._trees(False):
            is_known = isinstance(tree.numel, sympy.Integer)
            yield tree, str(int(tree.numel)) if is_known else f"{tree.prefix}numel_given"

    def codegen_kernel(self, name: str | None = None) -> str:
        self.codegen_body()
        trees = sorted(
            self._trees(False), key=lambda tree: "xyz".index(tree.prefix)
        )  # the first dimension is contiguous in memory
        self.mapping.prepare(trees)
        code = IndentedBuffer()
        parameters = [*(parameter for parameter, *_ in self.parameters()), *(RECORD if self.checks else ())]
        with code.indent():
            code.writelines([f"const ob_i64 {name} = {text};" for text, name in self.printer.named.items()])
            self._write_indices(code, trees)
            for old, new in self.args.aliases():
                code.writeline(f"#define {old} {new}")
            code.splice(self.body)
            self.mapping.write_end(code)
            for old, _ in self.args.aliases():
                code.writeline(f"#undef {old}")
        checks = "".join(f"// check {number}: {check!r}\n" for number, check in enumerate(self.checks))
        return checks + self.dialect.frame(name or "KERNEL_NAME", parameters, code.getvalue(), self.mapping.arrays())

    def _write_indices(self, code: IndentedBuffer, trees: list[Any]) -> None:
        index, mapping = self.index_dtype, self.mapping
        for tree in self.range_trees:
            size = f"{tree.numel}" if isinstance(tree.numel, sympy.Integer) else f"({index}){tree.prefix}numel_given"
            code.writeline(f"const {index} {tree.prefix}numel = {size};")
        counts = [mapping.count(tree, f"{tree.prefix}numel") for tree in trees]
        code.writelines(mapping.head(f"(ob_i64){' * (ob_i64)'.join(counts) or 1}"))
        code.writelines(["bool ob_is_lost = 0;"] * self.may_be_lost)
        code.writelines(mapping.indices(trees))

    def call_kernel(self, name: str, node: Any = None, deallocate_ws: bool = True) -> None:
        wrapper = V.graph.wrapper_code
        for symbol in self.args.sizevars:
            wrapper.ensure_size_computed(symbol)
        values = [
            value if isinstance(value, str) else V.graph.sizevars.simplify(value) for *_, value in self.parameters()
        ]
        arguments = [value if isinstance(value, str) else self.pexpr(value) for value in values]
        # Wrappers that compute with sizes need them as expressions.
        raw = {"raw_args": values} if getattr(wrapper, "takes_expressions", False) else {}
        device = V.graph.get_current_device_or_throw()
        wrapper.generate_kernel_call(name, arguments, arg_types=list(self.types()), triton=False, device=device, **raw)
