# SPDX-License-Identifier: BSD-3-Clause
"""The allocator's statistics in CUDA's table format, for people and scripts that know it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["summary_table"]

_WIDTH = 75
_COLUMNS = (("Cur Usage", "current"), ("Peak Usage", "peak"), ("Tot Alloc", "allocated"), ("Tot Freed", "freed"))
_POOLS = (("large_pool", "      from large pool"), ("small_pool", "      from small pool"))
# Statistic, title, whether it counts bytes.
_ROWS = (
    ("allocated_bytes", "Allocated memory", True),
    ("active_bytes", "Active memory", True),
    ("requested_bytes", "Requested memory", True),
    ("reserved_bytes", "Reserved memory", True),
    ("inactive_split_bytes", "Non-releasable memory", True),
    ("allocation", "Allocations", False),
    ("active", "Active allocs", False),
    ("segment", "Reserved segments", False),
    ("inactive_split", "Non-releasable allocs", False),
)
_OVERSIZE = (("oversize_allocations", "Oversize allocations"), ("oversize_segments", "Oversize segments"))


def summary_table(device: str, stats: Mapping[str, Any], *, abbreviated: bool) -> str:
    """Return the table; an abbreviated table does not distinguish the small and the large pool."""
    head = " | ".join(f"{title:^10}" for title, _ in _COLUMNS)
    ooms, retries = stats.get("num_ooms", 0), stats.get("num_alloc_retries", 0)
    groups = [
        [f"{f'PyTorch memory summary, {device}':^{_WIDTH}}"],
        [f"{f'OOMs: {ooms}':^37}|{f'allocation retries: {retries}':^37}"],
        [f" {'Metric':^21} | {head} "],
    ]
    for key, title, is_bytes in _ROWS:
        entries = [("all", title), *(() if abbreviated else _POOLS)]
        # Use the unit of the total for the whole column, so that parts and total can be compared.
        scales = [_scale(stats.get(f"{key}.all.{kind}", 0), is_bytes) for _, kind in _COLUMNS]
        groups.append([_row(title, f"{key}.{pool}", stats, scales) for pool, title in entries])
    for key, title in _OVERSIZE:
        scales = [_scale(stats.get(f"{key}.{kind}", 0), False) for _, kind in _COLUMNS]
        groups.append([_row(title, key, stats, scales)])
    lines = [f"|{'=' * _WIDTH}|"]
    for number, group in enumerate(groups):
        if number:
            lines.append(f"|{('=' if number == 2 else '-') * _WIDTH}|")
        lines += [f"|{line}|" for line in group]
    lines.append(lines[0])
    return "\n".join(lines) + "\n"


def _row(title: str, prefix: str, stats: Mapping[str, Any], scales: list[tuple[int, str]]) -> str:
    cells = []
    for (_, kind), (divisor, unit) in zip(_COLUMNS, scales, strict=True):
        cells.append(f"{stats.get(f'{prefix}.{kind}', 0) // divisor:{9 - len(unit)}d} {unit}")
    return f" {title:<21} | " + " | ".join(cells) + " "


def _scale(value: int, is_bytes: bool) -> tuple[int, str]:
    """Return a divisor and a unit that reduce the number to at most six digits."""
    base, units = (1024, ("B  ", "KiB", "MiB", "GiB", "TiB", "PiB")) if is_bytes else (1000, ("  ", "K ", "M ", "G "))
    divisor = 1
    for unit in units[:-1]:
        if value // divisor < 750 * base:
            return divisor, unit
        divisor *= base
    return divisor, units[-1]
