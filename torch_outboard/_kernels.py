# SPDX-License-Identifier: BSD-3-Clause
"""Operator kernels written in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch_outboard._errors import RegistrationError
from torch_outboard.driver import Driver

__all__ = ["register_kernel", "register_kernels"]


def register_kernel(op: str, kernel: Callable[..., Any]) -> None:
    """Register a function as the device's kernel of an operator, before every other provider.

    The kernel is called below autograd, on the operator's device, with all arguments of the operator's schema.
    Keyword-only arguments, including an `out` of the result's size, are passed as keywords, the others by position. The
    kernel queues its work on the current stream with torch's operators or `torch_outboard.launch`. A graph records
    both. In a capture, a kernel that queues nothing, or requests the driver's handle of the stream, raises
    CaptureError.

    A kernel of one form serves the others: a kernel for `aten::add.Tensor`, `aten::add.out` or `aten::add_.Tensor` is
    called for `x + y`, `torch.add(x, y, out=z)` and `x.add_(y)`. If several are registered, the called form's own
    kernel comes first, then the kernel of the out= form, which needs no copy. For a call in place, its `out` is `self`.
    Calls with sparse, quantized or nested tensors skip the kernel.

    Parameters
    ----------
    op : str
        The operator with its overload: "aten::relu", "aten::add.out".
    kernel : callable
        Returns the operator's result; None stands for the arguments that the operator writes to. NotImplemented passes
        the call to the next provider; the kernel must not have changed the arguments.

    Raises
    ------
    RegistrationError
        No driver is attached.
    ValueError
        There is no such operator; the message lists the existing overloads.
    """
    from torch_outboard import _C

    if not _C.is_attached():
        raise RegistrationError("attach a driver before registering kernels: torch_outboard.attach(name)")
    _C.register_native_kernel(op, kernel)


def register_kernels(driver: Driver) -> None:
    """Register the kernels named by a driver's class."""
    if hidden := sorted(set(type(driver).kernels) - set(driver.kernels)):
        raise RegistrationError(
            f"driver {driver.name!r} assigns `self.kernels`, which hides the kernels that its class names for "
            f"{', '.join(hidden)}. Rename the instance's attribute"
        )
    for op, kernel in driver.kernels.items():
        register_kernel(op, kernel)
