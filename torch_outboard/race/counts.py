# SPDX-License-Identifier: BSD-3-Clause
"""The driver calls that a file counts, and the rules that make one call fail."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["QUEUED", "STATUSES", "read_counts", "rules_of", "select_rules"]

# An entry's name, its calls and its failed calls, as the driver's option `fault_counts` writes
# them.
_RECORD = struct.Struct("=24sQQ")

STATUSES = ("OUT_OF_MEMORY", "DEVICE_LOST")
QUEUED = "DATA_LOSS"  # for queued work; the call itself succeeds
_QUEUES = ("copy_async", "copy_nd_async", "fill_async", "host_callback")


def read_counts(path: Path) -> tuple[dict[str, int], int]:
    """Return the number of calls of each entry that was called, and the number of failures."""
    calls, failures = {}, 0
    for name, count, failed in _RECORD.iter_unpack(path.read_bytes()):
        if count:
            calls[name.rstrip(b"\0").decode()] = count
        failures += failed
    return calls, failures


def rules_of(calls: Mapping[str, int], statuses: Sequence[str] = STATUSES) -> list[list[str]]:
    """Return the rules that make each call fail: one list per entry and status, in call order."""
    groups = [
        [f"{entry}:{call}:{status}" for call in range(1, count + 1)]
        for entry, count in calls.items()
        for status in statuses
    ]
    groups += [
        [f"queued:{entry}:{call}:{QUEUED}" for call in range(1, calls[entry] + 1)]
        for entry in _QUEUES
        if entry in calls
    ]
    return groups


def select_rules(groups: Sequence[Sequence[str]], most: int) -> list[str]:
    """Return at most `most` rules, about equally many from each group, evenly spread over it."""
    nonempty = sorted((group for group in groups if group), key=len)
    shares: list[Sequence[str]] = []
    for place, group in enumerate(nonempty):
        share = min(len(group), most // (len(nonempty) - place))
        most -= share
        shares.append([group[at * (len(group) - 1) // max(share - 1, 1)] for at in range(share)])
    # Alternate between the groups, so that an interrupted sweep has covered every entry.
    rounds = itertools.zip_longest(*shares)
    return [rule for texts in rounds for rule in texts if rule is not None]
