# SPDX-License-Identifier: BSD-3-Clause
"""Lists of recorded calls: what is written is called again, and nothing else is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from torch_outboard.kernels.disk import recorded
from torch_outboard.kernels.disk.calls import Samples
from torch_outboard.kernels.disk.recorded import describe_call, read_calls, write_calls

CPU = Samples(torch.device("cpu"), torch.float32, "cpu")


def called(name: str, arguments: list[Any], folder: Path, monkeypatch: Any) -> list[Any]:
    """Return the arguments of a call that went through a list."""
    line = describe_call(name, arguments)
    assert line is not None
    write_calls(folder / "calls", ["a program"], [line])
    arguments_seen: list[Any] = []
    schema = recorded.overload_of(name)._schema

    class FakeOverload:
        _schema = schema

        def __call__(self, *arguments: Any, **named: Any) -> None:
            arguments_seen.extend([*arguments, *named.items()])

    monkeypatch.setattr(recorded, "overload_of", lambda name: FakeOverload())
    ((label, call, _),) = read_calls(folder / "calls", "")
    assert label == f"{name}, line 2"
    call.run(CPU)
    return arguments_seen


def test_a_call_comes_back(tmp_path: Path, monkeypatch: Any) -> None:
    x = torch.empty(3, 4, dtype=torch.bfloat16).t()
    back, dims, keeps, dtype = called("aten::sum.dim_IntList", [x, [0, -1], True, torch.float64], tmp_path, monkeypatch)
    assert (back.shape, back.stride(), back.dtype) == (x.shape, x.stride(), x.dtype)
    assert (dims, keeps, dtype) == ([0, -1], True, ("dtype", torch.float64))


@pytest.mark.parametrize("value", [float("inf"), -0.0, 3, True, None, torch.channels_last, torch.strided, "none"])
def test_values_come_back(value: Any) -> None:
    rebuilt = recorded._from_json(json.loads(json.dumps(recorded._to_json(value))), torch.device("cpu"))
    assert repr(rebuilt) == repr(value) and type(rebuilt) is type(value)


def test_what_has_no_text_is_left_out() -> None:
    assert describe_call("aten::rand", [[3], torch.Generator()]) is None
    assert describe_call("aten::neg", [torch.ones(2, dtype=torch.complex64).conj()]) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a list of recorded calls"),
        ("{}\n", "not a list of recorded calls"),
        ('{"programs": []}\n{}\n', "line 2 is not a recorded call"),
    ],
)
def test_other_files_are_no_lists(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "calls").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_calls(tmp_path / "calls", "")


def test_an_argument_of_another_form_is_refused() -> None:
    for description in ({"tensor": "float32 3"}, {"tensor": "float32 3:1;"}, {"what": 1}):
        with pytest.raises(ValueError, match="is not a recorded argument"):
            recorded._from_json(description, torch.device("cpu"))
