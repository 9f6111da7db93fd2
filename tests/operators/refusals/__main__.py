# SPDX-License-Identifier: BSD-3-Clause
"""Run the matrix of refusals on a driver, and print what differs from the CPU.

python -m tests.operators.refusals --driver NAME [--only REGEX] [--refused-only] [--book] [--large]
                                 [--share K/N]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
import warnings
from collections.abc import Iterator

import torch

import torch_outboard
from torch_outboard.testing.share import Share

from . import captured, comparison, mutations
from .lists import ALLOWED, JUDGE_VALUES, UNCHECKED

AS_LARGE = ", as a large call"  # of which the CPU is not asked


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--driver", required=True)
    parser.add_argument("--only", default="", help="operators whose names match")
    parser.add_argument("--refused-only", action="store_true", help="leave out what the CPU takes")
    parser.add_argument("--book", action="store_true", help="operators that the book computes itself")
    parser.add_argument(
        "--large", action="store_true", help="repeat each as a large call, of which the CPU is not asked"
    )
    parser.add_argument("--share", type=Share.parse, default=Share(1, 1), metavar="K/N", help="of the operators")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    calls = [
        call for call in captured.all_calls() if re.search(arguments.only, call.name) and call.name not in UNCHECKED
    ]
    if arguments.book:
        calls = [call for call in calls if call.name in _of_the_book()]
    calls = [call for call in calls if arguments.share.has(call.name)]
    torch_outboard.attach(arguments.driver)
    device = torch.device(torch._C._get_privateuse1_backend_name(), 0)
    failed = compared = 0
    for call in calls:
        for text, difference in _differences(call, device, arguments.refused_only, arguments.large):
            compared += 1
            if difference is not None and (call.name, text.removesuffix(AS_LARGE)) not in ALLOWED:
                failed += 1
                print(f"{call.name} | {text} | {difference}", flush=True)
    print(f"{len(calls)} operators, {compared} calls compared, {failed} differ")
    sys.stdout.flush()
    os._exit(1 if failed or not compared else 0)


def _of_the_book() -> set[str]:
    """Return the operators whose formula, decomposition or template is the package's own."""
    from torch_outboard.kernels.book import table

    rows = table._book().items()
    return {name.removesuffix(".default") for name, row in rows if row.decomposition or row.computed or row.template}


def _differences(
    call: captured.OperatorCall, device: torch.device, refused_only: bool, as_large: bool
) -> Iterator[tuple[str, str | None]]:
    for change in mutations.changes_of(call):
        torch.manual_seed(0)
        theirs = comparison.result_of(change.call, comparison.CPU)
        if refused_only and theirs.error is None:
            continue
        is_empty = ": size 0 of" in change.text  # and never large
        for is_large in (False,) if is_empty or not as_large else (False, True):
            with _asked_of_none() if is_large else contextlib.nullcontext():
                torch.manual_seed(0)
                ours = comparison.result_of(change.call, device)
            may_be_late = change.is_of_values or call.name in JUDGE_VALUES
            may_be_late = may_be_late or (ours.is_late and comparison.depends_on_values(change.call))
            text = change.text + AS_LARGE if is_large else change.text
            yield text, comparison.difference(ours, theirs, may_be_late)


@contextlib.contextmanager
def _asked_of_none() -> Iterator[None]:
    before = torch_outboard._C.limit_checked_calls(0, 0)
    try:
        yield
    finally:
        torch_outboard._C.limit_checked_calls(*before)


if __name__ == "__main__":
    main()
