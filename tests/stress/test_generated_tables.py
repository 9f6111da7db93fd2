# SPDX-License-Identifier: BSD-3-Clause
"""The table of overlaps equals what its script would write today. The script calls all of the operator database."""

from __future__ import annotations

from unit.test_generated_tables import check_table


def test_the_table_of_overlaps() -> None:
    check_table("overlap_table")
