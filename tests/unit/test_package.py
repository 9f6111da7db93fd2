# SPDX-License-Identifier: BSD-3-Clause
"""The package as a whole: what importing costs, coverage before a driver, the example's size."""

from __future__ import annotations

import re
import sys

import torch_outboard
from torch_outboard import Coverage, CoverageRow
from torch_outboard._discovery import found_drivers

from .contract import ROOT

IMPORT = """
import time, torch
start = time.process_time()
import torch_outboard
print(1000 * (time.process_time() - start))
"""


def test_importing_adds_little_to_torch(run_python):
    # Time of this process alone, so that others on the machine don't count; the best of three.
    assert min(float(run_python(IMPORT).stdout) for _ in range(3)) <= 30


def test_importing_loads_no_more_than_it_must(run_python):
    answer = run_python(
        "import torch, sys; before = set(sys.modules); import torch_outboard; print(*sorted(set(sys.modules) - before))"
    )
    added = set(answer.stdout.split())
    assert all(name.startswith("torch_outboard") for name in added)
    assert "torch_outboard._C" not in added


def test_coverage_is_a_table():
    rows = [CoverageRow("aten::mm", "host", 3), CoverageRow("aten::add.Tensor", "native", 20)]
    coverage = Coverage(rows)
    assert list(coverage) == sorted(rows) and len(coverage) == 2 and coverage[0].op == "aten::add.Tensor"
    assert coverage.calls() == 23 and coverage.calls(provider="host") == 3 and coverage.calls("aten::mm", "native") == 0
    assert coverage.to_dicts()[1] == {"op": "aten::mm", "provider": "host", "calls": 3}
    lines = str(coverage).splitlines()
    assert any(re.search(r"aten::add\.Tensor\s*│ native\s*│\s*20", line) for line in lines)
    assert "2 operators, 23 calls" in lines[-1]
    assert coverage == Coverage(reversed(rows)) and coverage[:1] == Coverage([rows[1]])


def test_coverage_without_a_driver_is_empty():
    assert len(torch_outboard.coverage()) == 0
    torch_outboard.reset_coverage()


def test_the_fallback_modes(run_python):
    run_python(
        """
import os, warnings
import pytest, torch, torch_outboard
from unit.toys import Toy
torch_outboard.attach(Toy)
x = torch.empty(3, device="toy")
with pytest.raises(RuntimeError, match="aten::sinh"):
    x.sinh()
from torch_outboard import _C
_C.set_fallback_mode("warn")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    x.cosh(), x.cosh()
assert len(caught) == 1 and "cosh" in str(caught[0].message)
_C.set_fallback_mode("silent")
with warnings.catch_warnings():
    warnings.simplefilter("error")
    x.tan()
assert torch_outboard.coverage().calls(provider="fallback") >= 3
with pytest.raises(ValueError, match="'warn', 'error' or 'silent', not 'loud'"):
    _C.set_fallback_mode("loud")
""",
        env={"OUTBOARD_FALLBACK": "error"},
    )


def test_the_example_is_short():
    lines = (ROOT / "examples" / "pure_python_driver.py").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 120


def test_only_drivers_know_the_names_of_drivers():
    own = {name: found for name, found in found_drivers().items() if found.target.startswith("torch_outboard.")}
    assert own
    words = set()
    for name, found in own.items():
        driver = found.load()
        words |= {name, driver.name, driver.__name__, f"libob_{name}"}
    # Languages of kernels are named after languages: opencl_c. "null" is a word of C, and a driver's only in quotes.
    quoted = {word for word in words if word == "null"}
    pattern = re.compile(
        "|".join(
            [rf"(?<![a-z]){word}(?!_c\b)(?![a-z])" for word in sorted(words - quoted)]
            + [rf"[\"'`]{word}[\"'`]" for word in quoted]
        ),
        re.IGNORECASE,
    )
    assert pattern.search('attach("sim")') and pattern.search("OUTBOARD_SIM_DEVICES") and pattern.search('"null"')
    assert not pattern.search("opencl_c simple null")
    files = [
        path
        for folder in ("csrc", "torch_outboard")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".pyi", ".cpp", ".h", ".c", ".jinja", ".html"}
        and not path.is_relative_to(ROOT / "torch_outboard" / "drivers")
    ]
    assert len(files) > 80
    named = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]
    assert not named, "\n".join(named)


def test_this_process_has_no_driver():
    assert torch_outboard.attached_driver() is None
    assert "torch_outboard.device" not in sys.modules
