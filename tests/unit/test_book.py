# SPDX-License-Identifier: BSD-3-Clause
"""The book of operators: every row names operators of the running torch, and holds once."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from torch_outboard import _C
from torch_outboard.kernels import book
from torch_outboard.kernels.book import arithmetic, table
from torch_outboard.kernels.book.row import Body, Draw, Fill, Numbers, Operator, RefusalReason, Update
from torch_outboard.kernels.operators import base_name, overload_of
from torch_outboard.kernels.refusal import Refusal
from torch_outboard.kernels.templates import matrices

ROWS = [(name, row) for subject in table.SUBJECTS for row in subject.OPERATORS for name in row.names.split()]
# Their modules define operators.
FUNCTIONS = {**table.templates(), **table.lowerings()}
ROOT = Path(__file__).resolve().parents[2]
OF_ONE_OVERLOAD = ("decomposition", "check", "template", "lowering")


def test_each_module_with_rows_is_a_subject():
    modules = [importlib.import_module(f"{book.__name__}.{info.name}") for info in pkgutil.iter_modules(book.__path__)]
    assert {module for module in modules if hasattr(module, "OPERATORS")} == set(table.SUBJECTS)


def test_no_operator_has_two_rows(monkeypatch):
    assert len({name for name, _ in ROWS}) == len(ROWS) > 200
    monkeypatch.setattr(arithmetic, "OPERATORS", (*arithmetic.OPERATORS, Operator("aten::mm.default")))
    with pytest.raises(ValueError, match=r"aten::mm\.default has two rows in the book"):
        table._book.__wrapped__()


# Operators of rows that torch 2.11 does not have.
OF_NEWER_TORCH = {"aten::_foreach_clone"}


def test_every_row_names_an_operator_and_says_something():
    # Facts of an in-place form have its name.
    known = {name for schema in torch._C._jit_get_all_schemas() for name in (schema.name, base_name(schema.name))}
    own = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "csrc" / "ops" / "own").glob("*.cpp")))
    for name, row in ROWS:
        if "." in name:
            overload_of(name)
        elif name.startswith("outboard::"):  # registered when a driver is attached
            assert f"{name.removeprefix('outboard::')}(" in own, name
        else:
            assert name in known | OF_NEWER_TORCH, name
        assert replace(row, names="") != Operator("") or name == "aten::gather.default"


def test_what_belongs_to_an_overload_is_not_said_of_all():
    for name, row in ROWS:
        if "." not in name:
            assert not [field for field in OF_ONE_OVERLOAD if getattr(row, field)], name
            # Operators of our own have one overload each.
            assert not isinstance(row.computed, (Draw, Fill)) or name.startswith("outboard::"), name
        else:
            assert not isinstance(row.computed, (Body, Numbers, Update)), name


def test_named_arguments_are_arguments():
    for name, row in ROWS:
        if "." not in name:
            continue
        arguments = {argument.name for argument in overload_of(name)._schema.arguments}
        read = getattr(row.computed, "read", ()) + getattr(row.computed, "ignored", ())
        assert arguments.issuperset([*read, *row.determined, *filter(None, [row.filled])]), name


def test_what_rows_name_by_text_exists():
    for _, row in ROWS:
        for text in (row.template, row.lowering, row.each.reduction if row.each else ""):
            assert not text or callable(table.named_function(text))
    for each in (row.each for _, row in ROWS if row.each):
        for operator in (each.operator, *each.by_overload.values()):
            assert callable(operator) or not operator or overload_of(operator)


def test_a_row_of_one_overload_goes_before_the_row_of_all():
    fill, put = table.operator_of("aten::index_fill.int_Tensor"), table.operator_of("aten::index_fill_.int_Scalar")
    assert fill.filled == put.filled == "value"
    assert fill.check is not None and put.check is None and put.decomposition is None
    assert table.operator_of("aten::sort").decomposition is not table.operator_of("aten::sort.stable").decomposition
    assert table.operator_of("aten::cos") == Operator("")


def test_numbers_by_value():
    assert table.by_value("aten::add.Tensor") == (2,)
    assert table.by_value("aten::add.Scalar") == ()  # torch implements it by the other
    assert table.by_value("aten::uniform_") == (1, 2)
    assert table.by_value("aten::arange.start_out") == (0, 1, 2) and table.without_readers(
        "aten::arange.start_out"
    ) == (1,)
    assert table.guarded("aten::topk") == (1,) and table.guarded("aten::topk.values") == (1,)
    assert table.guarded("aten::relu") == table.by_value("aten::relu") == ()


def test_refusals_hold_for_their_types_alone():
    with pytest.raises(Refusal, match="it works on storages, not on elements"):
        table.check_refused("aten::resize_", [])
    with pytest.raises(Refusal, match="for half and bfloat16"):
        table.check_refused("aten::logit", [torch.empty(1), torch.empty(1, dtype=torch.bfloat16)])
    table.check_refused("aten::logit", [torch.empty(1)])
    assert not RefusalReason("", (torch.uint8,)).holds([])


def test_a_decomposition_that_declines_leaves_the_call_to_inductors():
    def decomposed(row: Operator, known: Any) -> Any:
        return table._decomposition("aten::relu", row, known)(1)

    assert decomposed(Operator("", decomposition=lambda x: x + 1), lambda x: x + 2) == 2
    assert decomposed(Operator("", decomposition=lambda x: NotImplemented), lambda x: x + 2) == 3
    assert decomposed(Operator("", decomposition=lambda x: NotImplemented), None) is NotImplemented
    checked = Operator("", check=lambda x: 1 / (x - 1))
    with pytest.raises(ZeroDivisionError):
        decomposed(checked, lambda x: x + 2)


# What the core has of the book: cmake/book.py reads the rows as text.

sys.path.insert(0, str(ROOT / "cmake"))
FOLDER = Path(book.__path__[0])
READER = importlib.import_module("book")


def test_the_text_says_what_the_rows_say():
    assert {name: vars(facts) for name, facts in READER.rows_of(FOLDER).items()} == {
        name: vars(row.facts) for name, row in sorted(ROWS) if row.facts is not None
    }


def test_the_core_has_the_sizes_of_the_kernels_of_matrices():
    assert f"OB_MATRIX_LIMITS({matrices.MAX_SHORT_SIDE}, {matrices.MAX_LONG_SIDE})" in READER.text(FOLDER)


def test_the_core_is_built_from_this_book():
    """If it fails, build: facts reach the core, and the code generator, only so."""
    traits = ("kernel_checks", "kernel_divides", "kernel_adds", "raises_runtime_error")
    of_book = {(trait, name) for name, row in ROWS for trait in traits if getattr(row.facts, trait, False)}
    assert set(_C.kernel_traits()) == of_book
    places = {place for _, _, place in _C.describe_operator("aten::random_.from")}
    assert {"aten::random_", "aten::random_.from"} & places == {"aten::random_.from"}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ('Operator("aten::add", facts=Facts(layout=CONTIGUOUS))', r"book/own\.py:2: facts have literals alone"),
        ('Operator("aten::add", facts=Facts(colour="red"))', "facts have literals alone.*colour"),
        ('Operator(f"aten::{one}", facts=Facts(like=1))', "facts have literals alone"),
        (
            'Operator("aten::add aten::sub", facts=Facts(like=1)), Operator("aten::sub", facts=Facts(like=2))',
            "another row has facts of aten::sub: make one row of both",
        ),
    ],
)
def test_the_build_refuses_rows_that_it_cannot_read(tmp_path: Path, rows: str, message: str):
    folder = tmp_path / "torch_outboard" / "kernels" / "book"
    folder.mkdir(parents=True)
    (folder / "facts.py").write_text((FOLDER / "facts.py").read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "own.py").write_text(f"CONTIGUOUS = 1\nOPERATORS = ({rows},)\n", encoding="utf-8")
    with pytest.raises(SystemExit, match=message):
        READER.text(folder)


def test_the_book_is_read_without_inductor():
    """A process that reads its plans from disk needs the rows, but neither Inductor nor sympy."""
    program = (
        "import sys, torch_outboard.kernels.builder as builder\n"
        "assert builder.numbers('aten::add.Tensor') == 4\n"
        "print(*(module for module in ('sympy', 'torch._inductor', 'torch._dynamo') if module in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() in ("", "torch._inductor"), done.stdout
