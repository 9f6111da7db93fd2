# SPDX-License-Identifier: BSD-3-Clause
"""docs/amp.md agrees with the running torch's lists."""

from __future__ import annotations

import importlib.machinery
import importlib.util
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]


def test_the_table_of_policies_is_up_to_date(device):
    path = str(ROOT / "scripts" / "amp_table")
    spec = importlib.util.spec_from_loader("amp_table", importlib.machinery.SourceFileLoader("amp_table", path))
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    page = script.PAGE.read_text(encoding="utf-8")
    rows = script.read_rows(page)
    version = ".".join(torch.__version__.split(".")[:2])
    if not any(version in versions for versions in rows.values()):
        pytest.skip(f"the page has no column for torch {version}")
    assert script.render(page, script.with_running_torch(rows)) == page, "run scripts/amp_table"
