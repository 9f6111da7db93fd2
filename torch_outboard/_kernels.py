# SPDX-License-Identifier: BSD-3-Clause
"""Operator kernels written in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch_outboard._errors import RegistrationError

__all__ = ["register_kernel"]


def register_kernel(op: str, kernel: Callable[..., Any]) -> None:
    """Makes a function the device's kernel of an operator, before every other provider.

    It is called below autograd, on the operator's device, with all arguments of the operator's schema: keyword-only
    ones (`out` among them) as keywords, the others by position. It queues its work on the current stream.

    Parameters
    ----------
    op : str
        The operator with its overload: "aten::relu", "aten::add.out". Structured operators such as `add` arrive as
        their `.out` overload, with the output allocated.
    kernel : callable
        Gives the operator's result; None stands for the arguments that the operator writes to. NotImplemented hands
        the call to the next provider; arguments must be unchanged then.

    Raises
    ------
    RegistrationError
        No driver is attached.
    ValueError
        There is no such operator.
    """
    from torch_outboard import _C

    if not _C.is_attached():
        raise RegistrationError("attach a driver before registering kernels: torch_outboard.attach(name)")
    _C.register_native_kernel(op, kernel)
