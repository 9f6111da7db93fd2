# SPDX-License-Identifier: BSD-3-Clause
"""Draw calls of operators, and print what differs from the CPU, with the least changes that show it.

python -m tests.operators.fuzz --driver NAME [--calls 20000] [--seed N] [--only REGEX] [--share 0/1]
"""

from __future__ import annotations

import argparse
import functools
import os
import random
import re
import resource
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

import torch_outboard

from ..refusals import captured
from ..refusals.comparison import CPU, errors_of_other_values
from ..refusals.lists import JUDGE_VALUES, UNCHECKED_VALUES
from .changes import Change, drawn
from .comparison import TOLERANCES, Outcome, difference, difference_of_values, outcome_of
from .lists import has_rounded_constants, is_left_out, may_be_wrong, may_differ
from .placed import place_all

MAX_MEMORY_BYTES = 8 << 30  # of the process
IN_A_ROW = 8  # calls of one operator with other sizes and values, which share its plans


@dataclass(frozen=True)
class Verdict:
    difference: str | None
    is_refused: bool  # by the CPU


@dataclass(frozen=True)
class Fuzzer:
    device: torch.device
    is_exact: bool

    def compare(self, call: captured.OperatorCall, changes: Sequence[Change]) -> Verdict:
        """Return the difference of a changed call from the CPU's, and whether the CPU accepts the call."""
        unplaced = call
        for change in changes[:-1]:
            unplaced = change.of(unplaced)
        drawn_call = changes[-1].of(unplaced)
        theirs = outcome_of(drawn_call, CPU)
        ours = outcome_of(drawn_call, self.device)
        others = errors_of_other_values(unplaced) if ours.error is not None else set()
        if call.name in JUDGE_VALUES:
            others.add(type(None))
        least = TOLERANCES[torch.float32] if has_rounded_constants(call.operator) else 0.0
        text = difference(ours, theirs, others, self.is_exact, least)
        if ours.is_late and theirs.error is None and call.name in UNCHECKED_VALUES:
            text = None
        if text is not None and not self.is_exact and self._depends_on_layout(unplaced, theirs):
            text = None
        if text is not None and not self.is_exact and may_differ(unplaced):
            text = None
        return Verdict(text, theirs.error is not None)

    @staticmethod
    def _depends_on_layout(call: captured.OperatorCall, theirs: Outcome) -> bool:
        """Return whether the CPU's answer differs for contiguous tensors: some of its kernels ignore strides."""
        plain = outcome_of(replace(call, arguments=place_all(call.arguments, None, frozenset())), CPU)
        return type(plain.error) is not type(theirs.error) or any(
            isinstance(result, torch.Tensor) and difference_of_values(result, wanted, 0.0, 1e-9) is not None
            for result, wanted in zip(plain.results, theirs.results, strict=False)
        )

    def minimised(self, call: captured.OperatorCall, changes: list[Change]) -> list[Change]:
        """Remove the changes that a difference does not need. The layouts, which place the tensors, stay."""
        for change in changes[:-1]:
            fewer = [kept for kept in changes if kept != change]
            if self.compare(call, fewer).difference is not None:
                changes = fewer
        return changes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--driver", required=True)
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--only", default="", help="operators whose names match")
    parser.add_argument("--share", default="0/1", help="a part of the operators: 1/4 is the second of four")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))  # a drawn number may be a size
    share, shares = map(int, arguments.share.split("/"))
    calls = [call for call in captured.all_calls() if not is_left_out(call.operator)][share::shares]
    calls = [call for call in calls if re.search(arguments.only, call.name)]
    torch_outboard.attach(arguments.driver)
    device = torch.device(torch._C._get_privateuse1_backend_name(), 0)
    fuzzer = Fuzzer(device, is_exact=bool(torch_outboard._C.reaches_memory(0)))
    print(f"seed {arguments.seed}", flush=True)
    failed = compared = refused = 0
    for call, changes in _draws(calls, arguments.calls, random.Random(arguments.seed)):
        _note(f"{call.name} {' '.join(map(str, changes))}")
        verdict = fuzzer.compare(call, changes)
        compared += 1
        refused += verdict.is_refused
        if verdict.difference is not None:
            failed += 1
            least = fuzzer.minimised(call, changes)
            print(f"{call.name} | {' '.join(map(str, least))} | {fuzzer.compare(call, least).difference}", flush=True)
    print(f"{compared} calls compared, of which the CPU refuses {refused}; {failed} differ")
    sys.stdout.flush()
    os._exit(1 if failed or not compared else 0)


def _draws(
    calls: list[captured.OperatorCall], count: int, generator: random.Random
) -> Iterator[tuple[captured.OperatorCall, list[Change]]]:
    for _ in range(-(-count // IN_A_ROW)):
        call = generator.choice(calls)
        for _ in range(IN_A_ROW):
            yield call, drawn(generator, may_be_wrong(call.operator))


@functools.cache
def _notes() -> int:
    return os.open(os.environ.get("OUTBOARD_FUZZ_NOTES", os.devnull), os.O_WRONLY | os.O_CREAT, 0o600)


def _note(text: str) -> None:
    """Record the running call, for the case that the process ends in it."""
    os.pwrite(_notes(), text.encode().ljust(400), 0)


if __name__ == "__main__":
    main()
