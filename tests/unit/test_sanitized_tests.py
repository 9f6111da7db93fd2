# SPDX-License-Identifier: BSD-3-Clause
"""The tests that tests/stress runs with sanitizers, or leaves out, exist under these names."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from stress import test_runtime_sanitizers as sanitized

from .contract import ROOT


def _names() -> Iterator[tuple[str, str]]:
    """Yield files or folders, and a pattern of a test in them."""
    yield from ((f"tests/unit/{name}", "def test_") for name in sanitized.UNIT)
    for tests in sanitized.DESELECTED.values():
        for path, _, test in (name.partition("::") for name in tests):
            yield f"tests/{path}", rf"def {test.partition('[')[0]}\("
    yield from (("tests/distributed", rf"def test_\w*{name}") for name in sanitized.GROUPS)


@pytest.mark.parametrize(("place", "pattern"), sorted(set(_names())))
def test_what_the_sanitizers_run_exists(place: str, pattern: str) -> None:
    path = ROOT / place
    files = path.glob("test_*.py") if path.is_dir() else [path]
    assert any(re.search(pattern, file.read_text()) for file in files)
