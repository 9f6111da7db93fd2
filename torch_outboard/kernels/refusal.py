# SPDX-License-Identifier: BSD-3-Clause
"""The exception that the builder raises if it builds no plan."""

from __future__ import annotations

__all__ = ["Refusal", "other_sizes"]


class Refusal(Exception):
    """There is no plan for a call.

    Attributes
    ----------
    is_of_class : bool
        Whether no call of the class (the operator with dtypes, ranks and numbers) has a plan, whatever its sizes.
    """

    def __init__(self, reason: str, is_of_class: bool = True) -> None:
        super().__init__(reason)
        self.is_of_class = is_of_class


def other_sizes() -> Refusal:
    """Return the refusal of a call whose sizes do not fit one another; plans of other sizes have guards for them."""
    return Refusal("a tensor has other sizes than the operator takes beside the others", is_of_class=False)
