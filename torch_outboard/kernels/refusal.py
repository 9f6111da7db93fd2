# SPDX-License-Identifier: BSD-3-Clause
"""The exceptions that the builder raises if it builds no plan. Their types show which calls are affected."""

from __future__ import annotations

from torch_outboard.kernels.reasons import code_of

__all__ = ["CallRefusal", "ClassRefusal", "OperatorRefusal", "Refusal", "other_sizes"]


class Refusal(Exception):
    """A call has no plan. Raise a subclass, with a reason that ends with its code (`kernels/reasons.py`)."""

    def __init__(self, reason: str) -> None:
        if type(self) is Refusal:
            raise TypeError("raise OperatorRefusal, ClassRefusal or CallRefusal, not Refusal itself")
        if not code_of(reason):
            raise ValueError(f"the reason {reason!r} must end with a code of kernels/reasons.py, such as [plan]")
        super().__init__(reason)


class OperatorRefusal(Refusal):
    """No call of the operator has a plan, whatever its arguments."""


class ClassRefusal(Refusal):
    """No call of the class (the operator with types, ranks and numbers) has a plan. Stored on disk, as plans are.

    Do not raise it for a cause that other sizes, strides or values would avoid.
    """


class CallRefusal(Refusal):
    """This call has no plan; another call of its class may have one. If in doubt, raise this type."""


def other_sizes() -> Refusal:
    """Return the refusal of a call whose sizes do not match; plans for other sizes have guards."""
    return CallRefusal("a tensor's sizes don't match the other arguments [wrong-call]")
