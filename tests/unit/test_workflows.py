# SPDX-License-Identifier: BSD-3-Clause
"""The workflow that answers PyTorch's relay, as far as it can be checked without GitHub."""

from __future__ import annotations

import re
import subprocess

import pytest

from .contract import ROOT

WORKFLOW = ROOT / ".github" / "workflows" / "pytorch.yml"
TEXT = WORKFLOW.read_text(encoding="utf-8")
EXPRESSION = re.compile(r"\$\{\{.*?\}\}", re.DOTALL)


def scripts():
    yaml = pytest.importorskip("yaml")
    [job] = yaml.safe_load(TEXT)["jobs"].values()
    return [step["run"] for step in job["steps"] if "run" in step]


def test_it_answers_both_events_and_reads_alone():
    yaml = pytest.importorskip("yaml")
    workflow = yaml.safe_load(TEXT)
    assert workflow[True] == {"repository_dispatch": {"types": ["pull_request", "push"]}}  # YAML's "on"
    assert workflow["permissions"] == {"contents": "read"} and "secrets." not in TEXT
    [job] = workflow["jobs"].values()
    assert "permissions" not in job and "closed" in job["if"]
    checkouts = [step for step in job["steps"] if "checkout" in step.get("uses", "")]
    assert len(checkouts) == 2 and all(step["with"]["persist-credentials"] is False for step in checkouts)


def test_no_script_contains_what_an_event_says():
    """A title or a branch of a pull request would be run as a command."""
    assert not [script for script in scripts() if EXPRESSION.search(script)]


def test_every_script_is_one_for_the_shell():
    for script in scripts():
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_the_lines_that_it_rewrites_are_there(tmp_path):
    """On torch's main branch, whose version no release of this package serves."""
    (tmp_path / "torch_outboard").mkdir()
    for name in ("torch_outboard/_build.py", "pyproject.toml"):
        (tmp_path / name).write_text((ROOT / name).read_text(encoding="utf-8"), encoding="utf-8")
    lines = [line for script in scripts() for line in script.splitlines() if line.startswith("sed ")]
    assert len(lines) == 2
    subprocess.run(["bash", "-ec", "\n".join(["minor='2, 99'", *lines])], cwd=tmp_path, check=True)
    assert "\nNEWEST_TORCH = (2, 99)\n" in (tmp_path / "torch_outboard/_build.py").read_text()
    assert '"torch", #' in (tmp_path / "pyproject.toml").read_text()


def test_every_path_in_a_script_is_there():
    named = {word for script in scripts() for word in re.findall(r"\btests/\w+|\btorch_outboard/\w+\.py", script)}
    assert named and all((ROOT / name).exists() for name in named)
