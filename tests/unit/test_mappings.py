# SPDX-License-Identifier: BSD-3-Clause
"""Mappings alone, with a stand-in for their kernel: what they write, and for which kernels they are chosen."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import sympy
import torch
from torch._inductor.utils import IndentedBuffer
from torch._inductor.virtualized import V

from torch_outboard.codegen.dialects.dialect import Dialect
from torch_outboard.codegen.dialects.frame import LocalArray
from torch_outboard.codegen.dialects.group_limits import GroupLimits
from torch_outboard.codegen.dialects.opencl_c import OPENCL_C
from torch_outboard.codegen.dialects.slang import SLANG
from torch_outboard.codegen.mapping import choice
from torch_outboard.codegen.mapping.columns import Columns
from torch_outboard.codegen.mapping.group import Group, Shape
from torch_outboard.codegen.mapping.item import Item
from torch_outboard.codegen.mapping.mapping import Element
from torch_outboard.codegen.mapping.run import ELEMENTS, Run
from torch_outboard.codegen.mapping.spread import Spread


def tree(prefix: str, numel: int) -> Any:
    return SimpleNamespace(prefix=prefix, numel=sympy.Integer(numel), is_reduction=prefix == "r0_", is_loop=True)


class Kernel:
    """A body without Inductor."""

    dialect: ClassVar[Dialect] = OPENCL_C
    index_dtype = "ob_i32"

    def __init__(self, *trees: Any, reads: tuple[str, ...] = ()) -> None:
        self.range_trees = list(trees)
        self.body, self.before, self.indexing_code, self.compute, self.after = (IndentedBuffer() for _ in range(5))
        self.lanes_name, self.is_sequential, self.forgotten = "lanes0", False, 0
        is_reduction = any(tree.is_reduction for tree in trees)
        self.features = SimpleNamespace(is_reduction=lambda: is_reduction, reduction_nodes=lambda: [node(reads)])

    def fresh_name(self, name: str) -> str:
        return f"{name}7"

    def narrow(self, size: Any) -> str:
        return str(size)

    def quotient(self, entry: Any) -> str:
        return str(entry.expr)

    def forget(self, loops: list[Any]) -> None:
        self.forgotten += 1

    def keep_stored(self) -> None:
        pass


class SlangKernel(Kernel):
    """A body in a language without `restrict`."""

    dialect = SLANG


def node(reads: tuple[str, ...]) -> Any:
    """Return a reduction of r over columns x that reads these indices."""
    x, r = sympy.symbols("x r")
    body = SimpleNamespace(
        iter_vars=[x], reduce_vars=[r], get_read_exprs=lambda: [sympy.sympify(read, {"x": x, "r": r}) for read in reads]
    )
    return SimpleNamespace(_body=body, node=SimpleNamespace(data=None))


def text(buffer: IndentedBuffer) -> str:
    return " ".join(buffer.getvalue().split())


def test_an_item_joins_its_lanes_in_halves() -> None:
    kernel = Kernel(tree("x", 9), tree("r0_", 40))
    mapping = Item(kernel, is_parallel=True, items=64)
    assert mapping.launch() == (64, 64)
    mapping.join_lanes([("acc", torch.float32)], lambda a, b: [f"acc[{a}] += acc[{b}];"])
    assert "span = lanes0 / 2" in text(kernel.after) and "acc[lane] += acc[lane + span];" in text(kernel.after)
    kernel.before.writeline("float acc[lanes0];")
    kernel.compute.writeline("acc[lane] += 1;")
    mapping.write_part([kernel.range_trees[1]])
    assert text(kernel.body).startswith("enum { lanes0 = 16 }; float acc[lanes0];")
    # 40 is no multiple of 16: a second loop takes the rest.
    assert text(kernel.body).count("acc[lane] += 1;") == 2 and kernel.forgotten == 1


@pytest.mark.parametrize(("is_sequential", "size"), [(True, 40), (False, 15)])
def test_a_row_in_order_or_a_short_one_has_one_lane(is_sequential: bool, size: int) -> None:
    kernel = Kernel(tree("x", 9), tree("r0_", size))
    kernel.before.writeline("float acc[lanes0];")
    kernel.is_sequential = is_sequential
    assert Item(kernel, is_parallel=True, items=64).lanes([kernel.range_trees[1]]) == 1


def test_columns_have_a_lane_each() -> None:
    kernel = Kernel(tree("x", 70), tree("r0_", 40))
    mapping = Columns(kernel, is_parallel=True, items=64, columns=16)
    assert mapping.launch() == (4, 4) and mapping.lane == "lane"
    assert mapping.count(kernel.range_trees[0], "xnumel") == "((xnumel + 15) / 16)"
    mapping.join_lanes([("acc", torch.float32)], lambda a, b: ["wrong"])
    assert text(kernel.after) == ""
    mapping.keep("tmp1", "float")
    assert text(kernel.before) == "float tmp1_of[lanes0];" and text(kernel.after) == "tmp1_of[lane] = tmp1;"
    mapping.write_part([])
    kernel.body.clear()
    mapping.write_part([])
    assert "const float tmp1 = tmp1_of[lane];" in text(kernel.body)


def test_a_group_stores_rows_at_its_end_by_one_item() -> None:
    kernel = Kernel(tree("x", 9), tree("r0_", 4000))
    mapping = Group(kernel, True, Shape(across=1, along=256, is_across_first=False, lanes=4))
    assert mapping.launch() == (1, 256) and mapping.is_guarded
    mapping.store("buf0", "out[x0] = tmp1;", is_of_row=True)
    mapping.store("buf1", "out[r0] = tmp2;", is_of_row=False)
    mapping.join_lanes([("acc", torch.float32)], lambda a, b: [f"acc[{a}] += acc[{b}];"])
    assert mapping.arrays() == [LocalArray("float", "ob_shared_f32_0", "256")]
    assert len(kernel.compute._lines) == 1 and len(mapping._stores._lines) == 1


@pytest.fixture
def nothing_removed() -> Iterator[None]:
    """Of the buffers that are stored."""
    removed = SimpleNamespace(removed_buffers=(), inplaced_to_remove=())
    with V.set_graph_handler(removed), V.set_kernel_handler(removed):
        yield


ELEMENT = Element("out", "r0_1 + x0", "tmp1", "float", "ob_to_f16")


def group(kernel: Kernel) -> Group:
    return Group(kernel, True, Shape(across=1, along=64, is_across_first=False, lanes=2))


@pytest.mark.usefixtures("nothing_removed")
@pytest.mark.parametrize("has_accumulators", [False, True])
def test_a_group_loads_all_lanes_before_it_stores_them_without_restrict(has_accumulators: bool) -> None:
    kernel = SlangKernel(tree("x", 9), tree("r0_", 4000))
    if has_accumulators:
        kernel.before.writeline("float acc[lanes0];")
    mapping = group(kernel)
    kernel.compute.writeline("const float tmp1 = in[r0_1];")
    mapping.store_element("buf0", ELEMENT, is_of_row=False)
    mapping.write_part([kernel.range_trees[1]])
    lanes = "for (int lane = 0; lane < 2; ++lane) {"
    keep = "in[r0_1]; ob_place7[lane] = (ob_i32)(r0_1 + x0); ob_value7[lane] = tmp1; }"
    store = "out[ob_place7[lane]] = ob_to_f16(ob_value7[lane]); }"
    written = text(kernel.body)
    whole, rest = written.split(f"{store} }} [unroll] {lanes}")
    assert "ob_i32 ob_place7[2]; float ob_value7[2];" in whole and f"{keep} [unroll] {lanes}" in whole
    assert f"{keep} }} [unroll] {lanes}" in rest and rest.endswith(f"{store} }}")
    # The arrays are of one loop.
    kernel.body.clear()
    kernel.compute.clear()
    mapping.write_part([kernel.range_trees[1]])
    assert "ob_place7" not in text(kernel.body)


@pytest.mark.usefixtures("nothing_removed")
@pytest.mark.parametrize(("kind", "is_long"), [(Kernel, False), (SlangKernel, True)])
def test_a_group_stores_each_element_at_once_with_restrict_or_in_a_long_loop(kind: type[Kernel], is_long: bool) -> None:
    kernel = kind(tree("x", 9), tree("r0_", 4000))
    mapping = group(kernel)
    kernel.compute.writelines(["x;" * 100] * 50 * is_long)
    mapping.store_element("buf0", ELEMENT, is_of_row=False)
    mapping.write_part([kernel.range_trees[1]])
    assert "out[r0_1 + x0] = ob_to_f16(tmp1); }" in text(kernel.body) and "r0_at += 64" in text(kernel.body)


def test_what_is_not_reduced_is_spread_on_gpus_and_a_run_on_cpus() -> None:
    spread = Spread(Kernel(tree("x", 9)), is_parallel=True, items=256)
    spread.prepare(spread.kernel.range_trees)
    assert spread.launch() == (1024, 256) and "ob_part < 4" in " ".join(spread.head("n"))
    spread.kernel.body.writelines(["x;" * 100] * 50)
    spread.prepare(spread.kernel.range_trees)
    assert spread.launch() == (256, 256) and "ob_part < 1" in " ".join(spread.head("n"))
    assert Run(Kernel(tree("x", 9)), is_parallel=False).launch() == (ELEMENTS, 1)


ROWS, COLUMNS = ("r + 40*x",), ("x + 9*r",)


@pytest.mark.parametrize(
    ("shape", "reads", "machine", "has_groups", "kind"),
    [
        ((9,), (), "cpu", True, Run),
        ((9,), (), "gpu", True, Spread),
        ((9,), (), "gpu", False, Item),
        ((9, 40), ROWS, "cpu", True, Item),
        ((9, 40), COLUMNS, "cpu", True, Columns),
        ((9, 40), COLUMNS, "gpu", True, Group),
        ((9, 40), ROWS, "gpu", True, Group),
        ((9, 16), ROWS, "gpu", True, Item),
        ((9, 40), ROWS, "gpu", False, Item),
    ],
)
def test_the_choice(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], reads: Any, machine: str, has_groups: bool, kind: type
) -> None:
    hint = SimpleNamespace(optimization_hint=lambda size, fallback: int(size))
    graph = SimpleNamespace(get_current_device_or_throw=lambda: torch.device("cpu"), sizevars=hint)
    monkeypatch.setattr(choice, "V", SimpleNamespace(graph=graph))
    monkeypatch.setattr(choice, "is_cpu", lambda device: machine == "cpu")
    monkeypatch.setattr(choice, "limits_of", lambda dialect, device: GroupLimits())
    monkeypatch.setattr(choice, "groups_share_work", lambda dialect, device: has_groups and machine == "gpu")
    kernel = Kernel(*map(tree, ("x", "r0_"), shape), reads=reads)
    assert type(choice.choose_mapping(kernel)) is kind
