# SPDX-License-Identifier: BSD-3-Clause
"""Modules that answer in a process of their own: their answers, and each way not to answer."""

from __future__ import annotations

import os

import pytest

from torch_outboard._child import ask_module


@pytest.fixture
def ask(tmp_path, monkeypatch):
    """Return a function that writes a module and asks it."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))

    def ask(code, *arguments, **options):
        (tmp_path / "asked.py").write_text(f"import json, os, sys, time\n{code}")
        return ask_module("asked", *arguments, **options)

    return ask


def test_the_last_line_is_the_answer(ask):
    answer = ask(
        "print('a chip')\nprint('old', file=sys.stderr)\nprint(json.dumps([sys.argv[1], os.environ['OF']]))",
        "one",
        variables={"OF": "two"},
    )
    assert answer == (["one", "two"], "", ["old"])
    assert ask("print('null')") == (None, "", [])


@pytest.mark.parametrize(
    ("code", "failure", "output"),
    [
        ("print('a')\nprint('b', file=sys.stderr)\nsys.exit(3)", "ended with status 3", ["a", "b"]),
        ("print(1, flush=True)\nos.abort()", "ended with status -6", ["1"]),
        ("print(*range(50), sep='\\n')\nsys.exit(1)", "ended with status 1", [str(line) for line in range(30, 50)]),
        ("", "ended without an answer", []),
        ("print('{')", "ended without an answer", ["{"]),
        ("sys.stdout.buffer.write(b'Ger\\xe4t')", "ended without an answer", ["Ger\N{REPLACEMENT CHARACTER}t"]),
    ],
)
def test_no_answer_is_a_failure(ask, code, failure, output):
    assert ask(code) == (None, failure, output)


def test_a_process_that_does_not_end_is_ended(ask):
    answer = ask("print('waits', flush=True)\ntime.sleep(600)", seconds=2)
    assert answer.failure == "did not end within 2 s" and answer.output in (["waits"], [])
