# SPDX-License-Identifier: BSD-3-Clause
"""A share of the databases: `make test` runs an eighth of them, and eight commits in a row run them all.

A database asks the same questions of many operators, types or models. Its cases are dealt to shares by a hash of their
names. So shares are disjoint and together complete, and a case keeps its share when others come and go.
OUTBOARD_TEST_SHARE names the share, as "3/8"; without it everything runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import pytest

from torch_outboard.testing.share import Share

__all__ = ["DATABASES", "VARIABLE", "current_share", "is_of_database", "left_out"]

# Folders of tests/ whose tests are cases of databases. Others are marked with pytest.mark.database.
DATABASES = ("ecosystem", "kernels", "models", "operators")
VARIABLE = "OUTBOARD_TEST_SHARE"


def current_share() -> Share:
    """Return the share that the environment names, or the only share of one."""
    try:
        return Share.parse(os.environ.get(VARIABLE) or "1/1")
    except ValueError as error:
        raise pytest.UsageError(f"{VARIABLE}: {error}") from error


def is_of_database(item: pytest.Item, folder: str) -> bool:
    """Return whether a test in this folder of tests/ is a case of a database."""
    return folder in DATABASES or item.get_closest_marker("database") is not None


def left_out(items: Iterable[pytest.Item], share: Share) -> list[pytest.Item]:
    """Return the cases of databases that this share leaves out.

    A file takes part in every share: if all its cases belong to others, its first one runs.
    """
    files: dict[object, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    rest: list[pytest.Item] = []
    for cases in files.values():
        others = [item for item in cases if not share.has(item.nodeid)]
        rest += others[1:] if len(others) == len(cases) else others
    return rest
