# SPDX-License-Identifier: BSD-3-Clause
"""Shares of the databases: each case runs in one of them, and each file takes part in all."""

from __future__ import annotations

import collections
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import ledger
import pytest
import shares

from torch_outboard.testing.share import Share

ROOT = Path(__file__).resolve().parents[2]


def collect(*places: str, share: str = "") -> list[str]:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "--driver=null", *places]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    environment |= {shares.VARIABLE: share, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    answer = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return [line for line in answer.stdout.splitlines() if "::" in line]


def test_eight_shares_run_every_case_once_and_every_file_each_time() -> None:
    places = ["tests/kernels", "tests/driver/test_streams.py"]
    everything = collect(*places)
    databases = [name for name in everything if not name.startswith("tests/driver")]
    assert len(databases) > 1000 and len(everything) > len(databases)
    items = [SimpleNamespace(nodeid=name, path=name.split("::")[0]) for name in databases]
    files = {item.path for item in items}
    runs: collections.Counter[str] = collections.Counter()
    for number in range(1, 9):
        share = Share(number, 8)
        rest = {item.nodeid for item in shares.left_out(items, share)}  # type: ignore[arg-type]
        collected = [name for name in databases if name not in rest]
        assert {name.split("::")[0] for name in collected} == files
        assert len(collected) < len(databases) / 7
        runs.update(name for name in collected if share.has(name))
        # Taken besides: the first case of a file that has none in this share.
        besides = [name for name in collected if not share.has(name)]
        assert len({name.split("::")[0] for name in besides}) == len(besides) < len(files)
        if number == 3:
            # Of a few files that import little: what the hook leaves is what left_out leaves.
            few = ["tests/kernels/test_norms.py", "tests/kernels/test_sparse.py", "tests/driver/test_streams.py"]
            wanted = [name for name in everything if name.split("::")[0] in few and name not in rest]
            assert sorted(collect(*few, share="3/8")) == sorted(wanted)
    assert runs == dict.fromkeys(databases, 1)


@pytest.mark.parametrize("text", ["", "3", "0/8", "9/8", "-1/8", "3/8/8", "a/b", "1/0", " 3/8"])
def test_a_text_that_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a share: write K/N with 1 <= K <= N, such as 3/8"):
        Share.parse(text)


def test_a_run_with_a_wrong_share_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(shares.VARIABLE, "9/8")
    with pytest.raises(pytest.UsageError, match="OUTBOARD_TEST_SHARE: '9/8' is not a share"):
        shares.current_share()
    monkeypatch.delenv(shares.VARIABLE)
    assert shares.current_share() == (1, 1)
    assert Share(1, 1).has("anything") and str(Share(3, 8)) == "3/8"


def test_the_ledger_names_what_exceeds_its_budget_first() -> None:
    spent = {"unit": 100.0, "kernels on DiscreteOpenCL": 61.0, "driver on sim": 30.0, "native": 0.2, "amp on sim": 12.0}
    budget = {"unit": 100, "kernels on DiscreteOpenCL": 50, "driver on sim": 60}
    assert ledger.rows(spent, budget) == [
        "     12 s of    new  amp on sim",
        "     61 s of     50  kernels on DiscreteOpenCL  over its budget",
        "    100 s of    100  unit",
        "     30 s of     60  driver on sim",
        "    203 s of    210  in all",
    ]


def test_the_ledger_charges_processes_to_the_test_that_waits_for_them(run_python) -> None:
    before = ledger.processor_seconds()
    run_python("import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass")
    assert ledger.processor_seconds() - before >= 0.3
