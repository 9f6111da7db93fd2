# SPDX-License-Identifier: BSD-3-Clause
"""What a driver says of its vendor's libraries, in a process of its own: opening them may end it.

python -m torch_outboard.doctor.own_checks DRIVER OPTIONS prints it, as JSON in the last line.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping

from torch_outboard._check import Check

__all__ = ["own_checks"]

_SECONDS = 120


def own_checks(name: str, options: Mapping[str, str]) -> list[Check]:
    """Return `Driver.checks()` of a driver, or how the process ended."""
    command = [sys.executable, "-m", __name__, name, json.dumps(dict(options))]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        return [Check(name, "wrong", f"its own checks did not end within {_SECONDS} s")]
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:]
        return [Check(name, "wrong", "; ".join([f"its own checks ended with status {done.returncode}", *last]))]
    return [Check(**fields) for fields in json.loads(done.stdout.splitlines()[-1])]


def _main(name: str, options: dict[str, object]) -> None:
    import torch  # noqa: F401 - as Driver.checks says

    from torch_outboard._discovery import find_driver

    print(json.dumps([check._asdict() for check in find_driver(name)(**options).checks()]))


if __name__ == "__main__":
    _main(sys.argv[1], json.loads(sys.argv[2]))
