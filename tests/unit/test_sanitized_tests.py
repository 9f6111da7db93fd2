# SPDX-License-Identifier: BSD-3-Clause
"""The tests that tests/stress runs with sanitizers, or leaves out, exist under these names."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from stress import test_runtime_sanitizers as sanitized

from .contract import ROOT


def _names() -> Iterator[tuple[str, str]]:
    """Yield files or folders, and a pattern of a test that is among their tests."""
    yield from ((f"tests/unit/{name}", "") for name in sanitized.UNIT)
    for tests in sanitized.DESELECTED.values():
        for path, _, test in (name.partition("::") for name in tests):
            yield f"tests/{path}", rf"{test.partition('[')[0]}\("
    yield from ((" ".join(sanitized.GROUP_TESTS), name) for name in sanitized.GROUPS)


@pytest.mark.parametrize(("places", "name"), sorted(set(_names())))
def test_what_the_sanitizers_run_exists(places: str, name: str) -> None:
    files = [
        file
        for place in places.split()
        for file in ((ROOT / place).glob("test_*.py") if (ROOT / place).is_dir() else [ROOT / place])
    ]
    assert any(
        re.search(rf"^def test_\w*{name.removeprefix('test_')}", file.read_text(), re.MULTILINE) for file in files
    )
