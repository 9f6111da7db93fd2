# SPDX-License-Identifier: BSD-3-Clause
"""How work is divided: parts of a reduction with few results, and columns per item on a CPU."""

from __future__ import annotations

__all__ = ["COLUMNS_OF_GROUP", "MANY_ROWS", "columns_of_item", "parts_for_groups", "parts_of_reduction"]

# A part has at least _MIN_ELEMENTS_OF_PART elements. There are only as many parts as keep a large
# device busy.
_MIN_ELEMENTS_OF_PART = 4096
_MAX_ITEMS = 1024
# Neighbouring columns per group of items: the device reads 128 bytes of floats at once.
COLUMNS_OF_GROUP = 32
# The same limits for groups. A group has one row, or COLUMNS_OF_GROUP columns.
_MAX_GROUPS = 1024
_MIN_ROW_OF_GROUP = 8192
_MIN_COLUMN_OF_GROUP = 128
# This many rows already keep a large device's memory busy. Parts would add a launch, and tests for
# the end of a row if sizes are symbols.
MANY_ROWS = 256


def parts_of_reduction(row: int, rows: int) -> int:
    """Return the number of parts into which each of `rows` rows is split. A second reduction combines the parts."""
    return _even(row, min(row // _MIN_ELEMENTS_OF_PART, _MAX_ITEMS // max(rows, 1)))


def parts_for_groups(row: int, rows: int, is_inner: bool) -> int:
    """Return the number of parts for rows that groups of items reduce, along memory (`is_inner`) or across it."""
    if is_inner:
        wanted = min(row // _MIN_ROW_OF_GROUP, _MAX_GROUPS // max(rows, 1))
        return 1 if rows > MANY_ROWS else _even(row, wanted)
    groups = -(-rows // COLUMNS_OF_GROUP)
    return _even(row, min(row // _MIN_COLUMN_OF_GROUP, _MAX_GROUPS // max(groups, 1)))


def _even(row: int, wanted: int) -> int:
    if wanted < 2:
        return 1
    # Parts of equal size need no masks.
    even = (parts for parts in range(wanted, wanted // 2, -1) if row % parts == 0)
    return next(even, wanted)


def columns_of_item(columns: int) -> int:
    """Return the number of neighbouring columns per item on a CPU: several cache lines, or one for few columns."""
    return 64 if columns >= 1024 else 16
