# SPDX-License-Identifier: BSD-3-Clause
"""Streams and events of torch.<name>: torch's own torch.Stream and torch.Event.

Dynamo, `elapsed_time` and FSDP accept these types but not their subclasses. `Stream` and `Event` here therefore only
construct torch's objects; isinstance checks the type and the device.
"""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import Any

import torch

from torch_outboard import _C
from torch_outboard.device import _context
from torch_outboard.device._context import device_index

__all__ = [
    "Event",
    "ExternalStream",
    "Stream",
    "StreamContext",
    "current_stream",
    "default_stream",
    "get_stream_from_external",
    "set_stream",
    "stream",
]

_Device = torch.device | int | str | None

# The number of the device type PrivateUse1, as torch.Stream expects it.
_DEVICE_TYPE = 20


class _TorchClassMeta(type):
    """The metaclass of a class that stands for a torch class: isinstance checks the torch class and this device."""

    _stands_for: type

    def __instancecheck__(cls, instance: object) -> bool:
        return (
            isinstance(instance, cls._stands_for)
            and getattr(instance, "device", None) is not None
            and (
                instance.device.type == _context.name  # type: ignore[attr-defined]
            )
        )

    def __subclasscheck__(cls, subclass: type) -> bool:
        # Dynamo calls this for isinstance. In traced code, Dynamo also uses it to decide whether to
        # call __init__ on the result of __new__; CPython decides by the real type.
        if torch.compiler.is_dynamo_compiling():
            return False
        return issubclass(subclass, cls._stands_for) or type.__subclasscheck__(cls, subclass)


class Stream(metaclass=_TorchClassMeta):
    """A torch.Stream: the next of the 32 pooled streams of this device and priority; -1 is above 0.

    With `stream_id`, it is an existing stream, like `torch.Stream(stream_id, device_index, device_type)`.
    """

    _stands_for = torch.Stream

    def __new__(cls, device: _Device = None, priority: int = 0, **kwargs: Any) -> torch.Stream:  # type: ignore[misc]
        if "stream_id" in kwargs:
            return torch.Stream(**kwargs)
        if kwargs:
            raise TypeError(f"Stream() got an unexpected keyword argument {next(iter(kwargs))!r}")
        return torch.Stream(torch.device(_context.name, device_index(device)), priority=priority)


class ExternalStream(metaclass=_TorchClassMeta):
    """A torch.Stream for a driver's stream handle that the caller owns and keeps alive."""

    _stands_for = torch.Stream

    def __new__(cls, stream_ptr: int, device: _Device = None, **kwargs: Any) -> torch.Stream:  # type: ignore[misc]
        return get_stream_from_external(stream_ptr, device)


class Event(metaclass=_TorchClassMeta):
    """A torch.Event; it belongs to the device of its first record.

    `elapsed_time` needs `enable_timing` on both events. `external=True`, an event of another API, raises
    NotSupportedError.
    """

    _stands_for = torch.Event

    def __new__(  # type: ignore[misc]
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False
    ) -> torch.Event:
        if external:
            _context.not_supported("Event(external=True)", "graphs take no events of other APIs")
        return torch.Event(_context.name, enable_timing=enable_timing, blocking=blocking, interprocess=interprocess)


class StreamContext:
    """A scope with a current stream, on the stream's device; None changes nothing."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream
        self._previous: list[tuple[int, torch.Stream]] = []

    def __enter__(self) -> torch.Stream | None:
        if self.stream is not None:
            # Switch to the stream's device too, so that leaving the scope restores its stream and
            # the device that was current.
            before = torch.accelerator.current_device_index()
            self._previous.append((before, torch.accelerator.current_stream(self.stream.device)))
            torch.accelerator.set_stream(self.stream)
        return self.stream

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._previous:
            before, stream = self._previous.pop()
            torch.accelerator.set_stream(stream)
            torch.accelerator.set_device_index(before)


def stream(stream: torch.Stream | None) -> contextlib.AbstractContextManager[Any]:
    """Return a context manager in which the stream is current; None changes nothing."""
    # The stream itself is a context manager, and Dynamo can trace it.
    return contextlib.nullcontext() if stream is None else stream


def current_stream(device: _Device = None) -> torch.Stream:
    """Return this thread's current stream of a device."""
    return torch.accelerator.current_stream(device_index(device))


def default_stream(device: _Device = None) -> torch.Stream:
    """Return the device's default stream."""
    return torch.Stream(stream_id=0, device_index=_checked(device), device_type=_DEVICE_TYPE)


def set_stream(stream: torch.Stream | None) -> None:
    """Set this thread's current stream, and make its device current too; None changes nothing."""
    if stream is not None:
        torch.accelerator.set_stream(stream)


def get_stream_from_external(data_ptr: int, device: _Device = None) -> torch.Stream:
    """Return a torch.Stream for a driver's stream handle; the same handle returns an equal stream."""
    index = _checked(device)
    return torch.Stream(stream_id=_C.external_stream(index, data_ptr), device_index=index, device_type=_DEVICE_TYPE)


def _set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
    _C.set_stream(device_index, stream_id)


def _sleep(cycles: int) -> None:
    """Keep the current stream busy for a number of nanoseconds (cycles of a 1 GHz clock). For tests.

    Returns immediately, unless the driver cannot queue host work.
    """
    _C.queue_sleep(torch.accelerator.current_device_index(), cycles)


def _get_current_raw_stream(device: int) -> int:
    return _C.stream_handle(device, _C.current_stream(device))


def _checked(device: _Device) -> int:
    index = device_index(device)
    if not 0 <= index < _C.device_count():
        raise torch.AcceleratorError(
            f"device index {index} is out of range: there are {_C.device_count()} {_context.name} devices"
        )
    return index
