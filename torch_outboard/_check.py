# SPDX-License-Identifier: BSD-3-Clause
"""One finding of `outboard doctor`: a statement, its severity, and a remedy."""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["Check", "State"]

# "right": it works. "unused": it is missing, which matters only to programs that want it. "wrong":
# programs fail, or do not run on the device; `outboard doctor` then exits with status 1.
State = Literal["right", "unused", "wrong"]


class Check(NamedTuple):
    """One line of `outboard doctor`.

    Attributes
    ----------
    subject : str
        The thing that was checked, in one to three words.
    state : "right", "unused" or "wrong"
        Whether programs work with it.
    found : str
        The finding and its cause: a sentence.
    remedy : str
        What to do about it: a command or a line of code. "" if nothing needs to be done.
    """

    subject: str
    state: State
    found: str
    remedy: str = ""
