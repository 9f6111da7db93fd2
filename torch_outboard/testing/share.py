# SPDX-License-Identifier: BSD-3-Clause
"""A share of many cases: by a hash of their names, so that shares are disjoint and together complete."""

from __future__ import annotations

import re
import zlib
from typing import NamedTuple

__all__ = ["Share"]


class Share(NamedTuple):
    """Share `number`, from 1, of `of_all` shares."""

    number: int
    of_all: int

    @classmethod
    def parse(cls, text: str) -> Share:
        """Read a share that is written as "3/8". Raises ValueError if it is none."""
        match = re.fullmatch(r"(\d+)/(\d+)", text)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise ValueError(f"{text!r} is not a share: write K/N with 1 <= K <= N, such as 3/8")
        return cls(int(match[1]), int(match[2]))

    def has(self, case: str) -> bool:
        """Return whether the case of this name belongs to this share."""
        return zlib.crc32(case.encode()) % self.of_all == self.number - 1

    def __str__(self) -> str:
        return f"{self.number}/{self.of_all}"
