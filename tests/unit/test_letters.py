# SPDX-License-Identifier: BSD-3-Clause
"""The letters of arguments: the core's table, and the types in Python that it names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from torch_outboard import _C
from torch_outboard.codegen.letters import kernel_letters, passed_types, program_letters

ROOT = Path(__file__).resolve().parents[2]


def test_each_kind_has_its_own_letter_and_type() -> None:
    kinds = _C.argument_kinds()
    declared = re.findall(r"^  \w+ = '(.)',", (ROOT / "csrc/kernels/argument_kind.h").read_text(), re.MULTILINE)
    assert sorted(declared) == sorted(kind["letter"] for kind in kinds)
    for field in ("letter", "type", "meaning"):
        assert len({kind[field] for kind in kinds}) == len(kinds), field


@pytest.mark.parametrize(
    ("type_name", "of_program", "on_host"),
    [
        ("const float*", "r", "r"),
        ("float*", "w", "w"),
        ("int64_t", "i", "i"),
        ("const long", "i", "i"),
        ("int", "j", "i"),
        ("int32_t", "j", None),
        ("int16_t", "h", None),
        ("int8_t", "b", None),
        ("float", "f", "f"),
        ("const double", "d", "d"),
        ("table", "t", None),
        ("kept", "k", None),
        ("zero", "n", None),
        ("local", "l", None),
        ("record", "e", None),
        ("half", None, None),
    ],
)
def test_types_have_letters(type_name: str, of_program: str | None, on_host: str | None) -> None:
    for letters, wanted in ((program_letters, of_program), (kernel_letters, on_host)):
        if wanted is None:
            with pytest.raises(TypeError, match=f"the kernel k has an argument of type '{type_name}'"):
                letters("k", [type_name])
        else:
            assert letters("k", [type_name]) == wanted


def test_calls_pass_no_local_memory_and_no_record() -> None:
    assert passed_types(("local", "kept", "zero", "float*", "table", "record")) == ["kept", "float*", "table"]
