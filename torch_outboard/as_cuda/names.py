# SPDX-License-Identifier: BSD-3-Clause
"""Translates the device's name: "cuda" in a program's arguments, the driver's name inside."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["CUDA", "Names"]

CUDA = "cuda"


class Names:
    """Both names of the device. `name` is the attached driver's."""

    def __init__(self, name: str) -> None:
        self.name = name
        # Converts one of torch's own streams to a torch.cuda stream.
        self.stream_to_cuda: Callable[[Any], Any] = lambda stream: stream

    def to_driver(self, value: Any) -> Any:
        """Return a value with "cuda" replaced in devices and strings, also inside tuples, lists and dicts."""
        kind = type(value)
        if kind is str:
            if value == CUDA or value.startswith("cuda:"):
                return self.name + value[len(CUDA) :]
        elif kind is torch.device:
            if value.type == CUDA:
                return torch.device(self.name) if value.index is None else torch.device(self.name, value.index)
        elif kind is tuple or kind is list:
            changed = [self.to_driver(item) for item in value]
            # Return the same object if nothing changes: functions may fill a given list.
            if any(new is not old for new, old in zip(changed, value, strict=True)):
                return kind(changed)
        elif kind is dict:
            changed_values = {key: self.to_driver(item) for key, item in value.items()}
            if any(changed_values[key] is not item for key, item in value.items()):
                return changed_values
        return value

    def to_cuda(self, value: Any) -> Any:
        """Return a device under the program's name for it, or a stream as a torch.cuda stream."""
        if isinstance(value, torch.device):
            if value.type != self.name:
                return value
            return torch.device(CUDA) if value.index is None else torch.device(CUDA, value.index)
        return self.stream_to_cuda(value) if isinstance(value, torch._C.Stream) else value

    def reword_memory_error(self, text: str) -> str:
        """Reword the message of a memory error as CUDA does."""
        text = text.replace(f"{self.name} out of memory", "CUDA out of memory", 1)
        return re.sub(rf" on {self.name}:(\d+), which has a total capacity", r". GPU \1 has a total capacity", text)

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function to accept and return devices named "cuda"."""

        @functools.wraps(function)
        def for_cuda(*arguments: Any, **named: Any) -> Any:
            return self.to_cuda(function(*self.to_driver(arguments), **self.to_driver(named)))

        return for_cuda

    def make_stand_in(self, original: type, device_attributes: tuple[str, ...] = (), equals: bool = False) -> type:
        """Return a class like `original` whose constructor accepts "cuda"; the original's objects are its instances.

        On the class's own objects, the attributes in `device_attributes` return devices under the program's name. If
        there are none, the constructor creates the original's objects; with `equals`, their type compares equal to the
        class.
        """
        names = self

        class Meta(type(original)):  # type: ignore[misc]
            def __call__(cls, *arguments: Any, **named: Any) -> Any:
                make = super().__call__ if device_attributes or "_stands" not in vars(cls) else original
                return make(*names.to_driver(arguments), **names.to_driver(named))

            def __instancecheck__(cls, instance: object) -> bool:
                return issubclass(type(instance), cls)

            def __eq__(cls, other: object) -> bool:
                return cls is other or (equals and "_stands" in vars(cls) and other is original)

            def __hash__(cls) -> int:
                return hash(original) if equals and "_stands" in vars(cls) else super().__hash__()

            def __subclasscheck__(cls, other: type) -> bool:
                stands = original if "_stands" in vars(cls) else None
                return super().__subclasscheck__(other) or (stands is not None and issubclass(other, stands))

        def shown(attribute: str) -> property:
            return property(lambda self: names.to_cuda(getattr(super(stand_in, self), attribute)))

        stand_in: Any = Meta(
            original.__name__,
            (original,),
            {
                "__doc__": original.__doc__,
                "__module__": original.__module__,
                "_stands": True,
                **{attribute: shown(attribute) for attribute in device_attributes},
            },
        )
        return stand_in  # type: ignore[no-any-return]
