# SPDX-License-Identifier: BSD-3-Clause
"""What `outboard doctor` found in one place: a statement, how bad it is, and what to do."""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["Check", "State"]

# "right" works. "unused" is missing, and matters only to programs that want it.
# "wrong" makes programs fail, or run elsewhere than on the device; `outboard
# doctor` then ends with status 1.
State = Literal["right", "unused", "wrong"]


class Check(NamedTuple):
    """One line of `outboard doctor`.

    Attributes
    ----------
    subject : str
        What was looked at, in one to three words.
    state : "right", "unused" or "wrong"
        Whether programs work with it.
    found : str
        What is the case, and why: a sentence.
    remedy : str
        What to do about it: a command or a line of code. "" if nothing needs to be done.
    """

    subject: str
    state: State
    found: str
    remedy: str = ""
