# SPDX-License-Identifier: BSD-3-Clause
"""How work is shared: into how many parts a reduction with few results goes, how many columns an item of a CPU has."""

from __future__ import annotations

__all__ = ["COLUMNS_OF_GROUP", "columns_of_item", "parts_for_groups", "parts_of_reduction"]

# An item reduces no fewer elements than these of a part, and no more parts are made than keep a large device busy.
_LEAST_PART = 4096
_MOST_ITEMS = 1024
# Neighbouring columns of a group of items: 128 bytes of floats are read at once.
COLUMNS_OF_GROUP = 32
# The same as of items of groups, of which one has a row, or such columns.
_MOST_GROUPS = 1024
_LEAST_ROW_OF_GROUP = 8192
_LEAST_COLUMN_OF_GROUP = 128


def parts_of_reduction(row: int, rows: int) -> int:
    """Gives into how many parts each of `rows` rows of `row` elements is split; the parts' results are reduced then."""
    return _even(row, min(row // _LEAST_PART, _MOST_ITEMS // max(rows, 1)))


def parts_for_groups(row: int, rows: int, is_inner: bool) -> int:
    """The same where groups of items reduce rows, which lie along memory (`is_inner`) or across."""
    if is_inner:
        return _even(row, min(row // _LEAST_ROW_OF_GROUP, _MOST_GROUPS // max(rows, 1)))
    groups = -(-rows // COLUMNS_OF_GROUP)
    return _even(row, min(row // _LEAST_COLUMN_OF_GROUP, _MOST_GROUPS // max(groups, 1)))


def _even(row: int, wanted: int) -> int:
    if wanted < 2:
        return 1
    # Parts of the same size need no masks.
    even = (parts for parts in range(wanted, wanted // 2, -1) if row % parts == 0)
    return next(even, wanted)


def columns_of_item(columns: int) -> int:
    """Gives how many neighbouring columns an item of a CPU has: some lines of memory wide, one if items get few."""
    return 64 if columns >= 1024 else 16
