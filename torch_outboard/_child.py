# SPDX-License-Identifier: BSD-3-Clause
"""Modules that return JSON, each run in a separate process, which a vendor's library may crash."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["Answer", "ask_module"]

_MAX_OUTPUT_LINES = 20  # of a process's output


class Answer(NamedTuple):
    """The result of a module: JSON, or how its process failed, with the last lines that it printed."""

    value: Any
    failure: str  # such as "ended with status 1", or "" if the module returned JSON
    output: list[str]  # of standard error; after a failure, of both outputs


def ask_module(
    module: str, *arguments: str, seconds: float | None = None, variables: Mapping[str, str] | None = None
) -> Answer:
    """Run a module with `python -m`, and return the JSON in the last line of its standard output."""
    command = [sys.executable, "-m", module, *arguments]
    environment = {**os.environ, **(variables or {})}
    try:
        done = subprocess.run(command, capture_output=True, timeout=seconds, env=environment)
    except subprocess.TimeoutExpired as error:
        return Answer(None, f"did not end within {seconds} s", _lines(error.stdout, error.stderr))
    if done.returncode != 0:
        return Answer(None, f"ended with status {done.returncode}", _lines(done.stdout, done.stderr))
    try:
        return Answer(json.loads(done.stdout.strip().rpartition(b"\n")[2]), "", _lines(done.stderr))
    except ValueError:
        return Answer(None, "ended without an answer", _lines(done.stdout, done.stderr))


def _lines(*texts: bytes | None) -> list[str]:
    """Return the last lines of texts in any encoding."""
    return [line for text in texts for line in (text or b"").decode(errors="replace").strip().splitlines()][
        -_MAX_OUTPUT_LINES:
    ]
