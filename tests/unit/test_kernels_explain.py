# SPDX-License-Identifier: BSD-3-Clause
"""`outboard kernels explain` without a device: what it names exists, and bad input gets an error that helps."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from torch_outboard.cli import main
from torch_outboard.kernels import explain, route, samples

ROOT = Path(__file__).resolve().parents[2]
RUN = "import sys; from torch_outboard.cli import main; main(sys.argv[1:])"


def run(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(main, ["kernels", "explain", *arguments])


def places(output: str) -> list[tuple[str, int]]:
    return [(path, int(line)) for path, line in re.findall(r"^ +(\S+\.\w+):(\d+)$", output, re.MULTILINE)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("indx_put",), "unknown operator aten::indx_put; did you mean aten::index_put"),
        (("aten::xyzzy_of_nothing",), "unknown operator aten::xyzzy_of_nothing: write it as aten::add.Tensor"),
        (
            ("add",),
            "aten::add has several overloads: choose one of aten::add.Scalar, aten::add.Scalar_out, aten::add.T",
        ),
        *(
            ((name,), "torch.nn.functional.multilabel_soft_margin_loss is a composite in Python of other operators")
            for name in ("multilabel_soft_margin_loss", "torch.nn.functional.multilabel_soft_margin_loss")
        ),
        (("add.Tensr",), "aten::add.Tensr has no such overload: choose one of aten::add.Scalar"),
        (("relu", "--dtype", "float31"), "float31"),
        (("relu", "--shape", "4,x"), "'4,x' is not a list of sizes such as 4,3"),
        (("relu", "--shape", "4,-3"), "'4,-3' is not a list of sizes such as 4,3"),
        (("",), "unknown operator aten::"),
    ],
)
def test_bad_input_is_named(arguments: tuple[str, ...], words: str) -> None:
    answer = run(*arguments)
    assert answer.exit_code == 2 and words in answer.output, answer.output


def test_an_unknown_driver_is_named(run_python: Any) -> None:
    answer = run_python(RUN, "kernels", "explain", "relu", "--driver", "attic", status=1)
    assert "attic" in answer.stderr and "Traceback" not in answer.stderr


def test_copies_of_views_have_a_place() -> None:
    for operator in ("t_copy", "expand_copy"):
        assert any(path == "torch/_refs/__init__.py" for path, _ in places(run(operator).output))


def test_a_formula_of_complex_numbers_is_named() -> None:
    output = run("_fft_r2c").output
    assert "is computed by formula _real_to_complex if a tensor is complex" in output
    assert "is lowered by Inductor if no tensor is complex" in output
    assert "complex" not in run("relu").output


@pytest.mark.parametrize(
    "given", ["index_put", "aten::index_put", "aten.index_put", "torch.ops.aten.index_put.default"]
)
def test_operators_may_be_named_as_users_write_them(given: str) -> None:
    assert explain.chosen_operator(given) == "aten::index_put"


@pytest.mark.parametrize(
    ("operator", "function", "file"),
    [
        ("index_put_", "_index_put", "torch_outboard/kernels/book/indexing.py"),
        ("add.Tensor", "_add", "torch_outboard/kernels/book/arithmetic.py"),
        ("sort.stable", "sort", "torch_outboard/kernels/templates/sorts.py"),
        ("relu", "pointwise", "torch/_inductor/lowering.py"),
        ("arange.start_out", "_range", "torch_outboard/kernels/book/fills.py"),
    ],
)
def test_python_places_hold_what_they_are_named_for(operator: str, function: str, file: str) -> None:
    output = run(operator).output
    lines_of_file = [line for path, line in places(output) if path == file]
    assert lines_of_file, output
    folder = ROOT if file.startswith("torch_outboard/") else Path(torch.__file__).parents[1]
    lines = (folder / file).read_text(encoding="utf-8").splitlines()
    # A decorator may stand before the function, whose name is another
    # one for Inductor's own wrappers.
    texts = ["\n".join(lines[line - 1 : line + 2]) for line in lines_of_file]
    assert any(f"def {function}(" in text or (function == "pointwise" and "def " in text) for text in texts), texts


@pytest.mark.parametrize(
    "operator", ["div.Tensor", "index.Tensor", "std.correction", "native_batch_norm", "cat", "topk"]
)
def test_facts_are_where_it_says(operator: str) -> None:
    notes = [note for note in explain.notes_of(f"aten::{operator}") if note.of in ("operator", "checks")]
    parts = [note.place.partition(":") for note in notes if note.place.startswith("torch_outboard/kernels/book/")]
    assert parts
    for path, _, line in parts:
        text = (ROOT / path).read_text(encoding="utf-8").splitlines()[int(line) - 1]
        assert re.search(rf'\baten::{operator.partition(".")[0]}(\.\w+)?["\s]', text), f"{path}:{line}: {text}"


def place_of_row(name: str) -> str:
    row_and_place = explain._row_named(name)
    if row_and_place is None:
        return ""
    row, place = row_and_place
    assert name in row.names.split()
    return place


def test_rows_of_the_book_are_where_it_says() -> None:
    for name in ("aten::upsample_bicubic2d", "aten::resize", "aten::topk", "aten::_foreach_lerp"):
        path, _, line = place_of_row(name).partition(":")
        assert name in (ROOT / path).read_text(encoding="utf-8").splitlines()[int(line) - 1]
    assert place_of_row("aten::_foreach_abs") == "torch_outboard/kernels/book/lists.py"
    assert place_of_row("aten::cos") == ""


def test_the_notes_say_what_is_known() -> None:
    def texts(operator: str) -> str:
        return "\n".join(f"{note.of} {note.text}" for note in explain.notes_of(operator))

    assert "generated is refused: it works on storages, not on elements" in texts("aten::resize_")
    assert "generated k: symbols of plans, with guards" in texts("aten::topk")
    assert "alpha by value" in texts("aten::add.Tensor") and "alpha by value" in texts("aten::add_.Tensor")
    assert "generated values are checked by _check_filled_slices" in texts("aten::index_fill_.int_Tensor")
    assert "generated runs for each tensor of its lists: aten::add.Tensor" in texts("aten::_foreach_add.List")
    assert "generated some calls are composed" in texts("aten::nonzero")
    assert "generated neither the book nor Inductor defines it" in texts("aten::_linalg_eigvals")
    assert "checks memory overlap of self among its own elements, partial overlap with other" in texts(
        "aten::add_.Tensor"
    )
    assert "host the CPU kernel of aten::add.out" in texts("aten::add.Tensor")


# Arguments for a call.


def shown(
    operator: str,
    *shapes: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
    has_mask: bool = False,
    **values: Any,
) -> str:
    wanted = samples.SampleRequest(dtype, shapes, has_mask, values)
    positional, named = samples.sample_call(operator, wanted, torch.device("cpu"))
    return ", ".join([*map(samples.shown, positional), *(f"{key}={samples.shown(arg)}" for key, arg in named.items())])


def test_arguments_suit_the_schema() -> None:
    assert shown("aten::add.Tensor") == "float32[4, 4], float32[4, 4]"
    assert shown("aten::mm", (4, 3), (3, 5), dtype=torch.bfloat16) == "bfloat16[4, 3], bfloat16[3, 5]"
    assert shown("aten::index_put") == "float32[4, 4], [int64[4]], float32[4, 4], False"
    assert shown("aten::index_put", has_mask=True) == "float32[4, 4], [bool[4, 4]], float32[], False"
    of_mask = shown("aten::index_put", (4, 3), (12,), has_mask=True, accumulate=True)
    assert of_mask == "float32[4, 3], [bool[4, 3]], float32[12], True"
    assert shown("aten::sum.dim_IntList", dim=[1], keepdim=True) == "float32[4, 4], [1], True"
    assert shown("aten::add.out") == "float32[4, 4], float32[4, 4], out=float32[0]"
    assert shown("aten::convolution").startswith("float32[2, 3, 8, 8], float32[4, 3, 3, 3], None, [1, 1], [0, 0]")


def test_arguments_that_the_cpu_refuses_are_an_error() -> None:
    with pytest.raises(
        samples.NoSample, match=r"could not build a sample call of aten::mm: the CPU kernel raises .*. Pass other"
    ):
        shown("aten::mm", (4, 3), (4, 3))
    with pytest.raises(
        samples.NoSample, match="no argument tensor1 to set: its arguments other than tensors are value$"
    ):
        shown("aten::addcmul", tensor1=1)
    with pytest.raises(samples.NoSample, match="no argument dim to set: it takes only tensors"):
        shown("aten::relu", dim=1)
    with pytest.raises(samples.NoSample, match="Pass --shape"):
        shown("aten::_conj")


def test_a_kernel_that_dies_is_an_error() -> None:
    assert samples._run_in_fork(lambda: (3, "")) == (3, "")
    place, error = samples._run_in_fork(lambda: os.kill(os.getpid(), signal.SIGKILL))  # type: ignore[arg-type, return-value]
    assert place == -1 and "crashes" in error


# Routes.


def test_nothing_is_noted_outside_a_scope() -> None:
    route.begin("aten::relu")
    assert route.run_decomposition("aten::relu", "decomposition", lambda x: x + 1, [1], {}) == 2
    route.add_decision("aten::relu", "lowering")
    with route.record_routes() as routes:
        route.add_decision("aten::relu", "lowering")  # no plan is being built
        assert route.run_decomposition("aten::relu", "decomposition", lambda x: x + 1, [1], {}) == 2
    assert routes == [] and not route.is_recording()


def test_decisions_are_noted_in_their_order_and_depth() -> None:
    def inner(x: int) -> Any:
        return NotImplemented

    def outer(x: int) -> int:
        assert route.run_decomposition("aten::b", "decomposition", inner, [x], {}) is NotImplemented
        return x

    with route.record_routes() as routes:
        route.begin("aten::a")
        assert route.run_decomposition("aten::a", "decomposition", outer, [1], {}) == 1
        for _ in range(2):  # a plan that is traced twice
            route.add_decision(torch.ops.aten.mm.default, "template")
        route.end("plan 1", ["kernel"])
    [noted] = routes
    assert [(decision.operator, decision.depth, decision.has_declined) for decision in noted.decisions] == [
        ("aten::a", 0, False),
        ("aten::b", 1, True),
        ("aten::mm.default", 0, False),
    ]
    assert (noted.text, noted.kernels, noted.refusal) == ("plan 1", ["kernel"], "")
