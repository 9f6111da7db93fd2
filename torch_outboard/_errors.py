# SPDX-License-Identifier: BSD-3-Clause
"""The exceptions of torch-outboard.

    RuntimeError
    └── OutboardError
        ├── DriverError(code)        an entry of the driver failed
        ├── NotSupportedError        the driver lacks the entry, or torch-outboard the function;
        │                            also a NotImplementedError
        ├── CaptureError             a graph cannot be captured, or a call cannot be captured in one
        └── RegistrationError        a driver description cannot be attached

Other exceptions: `torch.OutOfMemoryError` if a device has no more memory, `torch.AcceleratorError` for a lost device
and for an invalid device index, `ValueError` for any other invalid argument.
"""

from __future__ import annotations

import enum

__all__ = ["CaptureError", "DriverError", "NotSupportedError", "OutboardError", "RegistrationError", "Status"]


class Status(enum.IntEnum):
    """The status codes of driver.h."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    OUT_OF_MEMORY = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16
    NOT_READY = 32
    DEVICE_LOST = 33
    PROGRAM_REFUSED = 34


class OutboardError(RuntimeError):
    """The base of torch-outboard's own exceptions."""


class DriverError(OutboardError):
    """An entry of the driver failed.

    A driver written in Python raises this exception to choose the status. Any other exception becomes
    `Status.INTERNAL`, MemoryError `Status.OUT_OF_MEMORY` and NotImplementedError `Status.UNIMPLEMENTED`.

    Attributes
    ----------
    code : Status or int
        The driver's status; an int if driver.h does not name the status.
    entry : str or None
        The failed entry, if known.
    device : int or None
        The device on which the entry failed, if known.
    """

    def __init__(
        self,
        message: str,
        code: int = Status.INTERNAL,
        *,
        entry: str | None = None,
        device: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code: int = _status(code)
        self.entry = entry
        self.device = device

    def __reduce__(self) -> tuple[object, ...]:
        return (_remake, (str(self), int(self.code), self.entry, self.device))


class NotSupportedError(OutboardError, NotImplementedError):
    """Neither the driver nor a default implements the requested function."""


class CaptureError(OutboardError):
    """A graph cannot be captured or replayed in this way, or a call cannot be captured; the message names the call."""


class RegistrationError(OutboardError):
    """A driver description cannot be attached; the message says what to fix."""


def _remake(message: str, code: int, entry: str | None, device: int | None) -> DriverError:
    return DriverError(message, code, entry=entry, device=device)


def _status(code: int) -> int:
    try:
        return Status(code)
    except ValueError:
        return code


def from_core(kind: int, code: int, message: str, entry: str | None = None, device: int | None = None) -> OutboardError:
    """Return the exception for an error from the C++ core; `kind` is outboard::ErrorKind."""
    if kind == 1:
        return NotSupportedError(message)
    if kind == 2:
        return RegistrationError(message)
    if kind == 7:
        return CaptureError(message)
    return DriverError(message, code, entry=entry, device=device)
