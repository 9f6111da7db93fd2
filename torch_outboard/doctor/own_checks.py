# SPDX-License-Identifier: BSD-3-Clause
"""A driver's checks of its vendor's libraries, in a separate process, because opening them may crash it.

python -m torch_outboard.doctor.own_checks DRIVER OPTIONS prints the checks as JSON in the last line.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping

from torch_outboard._check import Check
from torch_outboard._child import ask_module

__all__ = ["own_checks"]

_TIMEOUT_SECONDS = 120


def own_checks(name: str, options: Mapping[str, str]) -> list[Check]:
    """Return `Driver.checks()` of a driver, or how the process ended."""
    answer = ask_module(__name__, name, json.dumps(dict(options)), seconds=_TIMEOUT_SECONDS)
    if answer.failure:
        return [Check(name, "wrong", "; ".join([f"its own checks {answer.failure}", *answer.output[-1:]]))]
    return [Check(**fields) for fields in answer.value]


def _main(name: str, options: dict[str, object]) -> None:
    import torch  # noqa: F401 - Driver.checks may expect torch to be imported

    from torch_outboard._discovery import find_driver

    print(json.dumps([check._asdict() for check in find_driver(name)(**options).checks()]))


if __name__ == "__main__":
    _main(sys.argv[1], json.loads(sys.argv[2]))
