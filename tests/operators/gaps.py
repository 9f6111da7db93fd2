# SPDX-License-Identifier: BSD-3-Clause
"""The description of an entry that does not pass, in lists."""

from __future__ import annotations

from typing import NamedTuple


class Gap(NamedTuple):
    """An entry that does not pass."""

    reason: str
    dtypes: frozenset[str] | None = None  # None: all that are tried
    later: bool = False  # the first samples pass; it shows where all are tried
    crashes: bool = False  # it would take the process along, so it is not tried
