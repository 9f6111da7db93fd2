# SPDX-License-Identifier: BSD-3-Clause
"""A share of many cases, chosen by a hash of their names: the shares are disjoint and together complete."""

from __future__ import annotations

import re
import zlib
from typing import NamedTuple

__all__ = ["Share"]


class Share(NamedTuple):
    """Share `number`, counted from 1, of `of_all` shares."""

    number: int
    of_all: int

    @classmethod
    def parse(cls, text: str) -> Share:
        """Parse a share such as "3/8". Raises ValueError for anything else."""
        match = re.fullmatch(r"(\d+)/(\d+)", text)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise ValueError(f"{text!r} is not a share: write K/N with 1 <= K <= N, such as 3/8")
        return cls(int(match[1]), int(match[2]))

    def has(self, case: str) -> bool:
        """Return whether a case belongs to this share."""
        return zlib.crc32(case.encode()) % self.of_all == self.number - 1

    def __str__(self) -> str:
        return f"{self.number}/{self.of_all}"
