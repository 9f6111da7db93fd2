# SPDX-License-Identifier: BSD-3-Clause
"""The words that docs/vendor-questions.md lists are those of the sources, and the check of texts finds others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import torch_outboard
from tests.words import foreign_words, listed
from torch_outboard.codegen.dialects.opencl_c import OPENCL_C
from torch_outboard.codegen.kernel.overrides import unary_functions
from torch_outboard.codegen.prelude import _blocks, prelude

FOLDER = Path(torch_outboard.__file__).parent
SOURCES = [
    *prelude(),
    *(path.read_text(encoding="utf-8") for path in (FOLDER / "kernels").rglob("*.py")),
    *(path.read_text(encoding="utf-8") for path in (FOLDER / "codegen").rglob("*.py")),
]
TEXT = "OB_DEVICE float ob_f(float a) { const int b = 1, c = 2; return b < c ? OB_LIB(fabs)(a) : 0.5f; }"


def test_functions_are_those_of_the_sources() -> None:
    used = {
        name for text in SOURCES for name in re.findall(r"OB_LIB\((\w+)\)|\.function\(\"(\w+)\"", text) for name in name
    }
    assert listed()["functions"] == (used | set(unary_functions)) - {"", "name"}


def test_macros_are_those_of_the_sources() -> None:
    macros = listed()["header"] | listed()["optional"]
    assert {macro for macro in macros if not any(re.search(rf"\b{macro}\b", text) for text in SOURCES)} == set()


def test_the_prelude_has_no_other_words() -> None:
    """With doubles, whose constants have no suffix. `Dialect.source` defines the one macro."""
    text = "\n".join(block.written(frozenset(block.texts)) for block in _blocks(())[0])
    others = {word for word in foreign_words(text, OPENCL_C) if not word.endswith("(a double)")}
    assert others == {"OB_BEYOND_E4M3FN"}


def test_a_text_of_listed_words_passes() -> None:
    assert foreign_words(TEXT, OPENCL_C) == set()


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("0.5f", "0.5", "0.5 (a double)"),
        ("0.5f", "1e-3", "1e-3 (a double)"),
        ("b < c", "true", "true"),
        ("const int", "const unsigned", "unsigned"),
        ("b = 1", "b __attribute__((aligned(8))) = 1", "__attribute__"),
        ("fabs", "cbrt", "OB_LIB(cbrt)"),
        ("OB_LIB(fabs)(a)", "native_exp(a)", "native_exp"),
        ("OB_DEVICE", "#include <math.h>\nOB_DEVICE", "#include"),
    ],
)
def test_other_words_are_found(old: str, new: str, found: str) -> None:
    assert found in foreign_words(TEXT.replace(old, new), OPENCL_C)
