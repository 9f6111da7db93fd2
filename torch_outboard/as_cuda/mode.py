# SPDX-License-Identifier: BSD-3-Clause
"""The function mode that sees each torch call: it turns "cuda" into the driver's name, and back in devices."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from torch_outboard.as_cuda.names import CUDA, Names

__all__ = ["CudaMode"]


class CudaMode(TorchFunctionMode):
    """Translates a thread's torch calls for a program that uses "cuda", also on autograd threads that work for it."""

    def __init__(self, names: Names) -> None:
        super().__init__()
        self._names = names
        # Keyed by equality: each access to a getter creates a new object.
        self._own: dict[Any, Callable[..., Any]] = {
            torch.device: self._make_device,
            torch.Tensor.device.__get__: self._device,
            torch.Tensor.is_cuda.__get__: self._is_cuda,  # type: ignore[attr-defined]
            torch.Tensor.cuda: self._cuda,
            torch.Tensor.type: self._type,
            torch.Tensor.__repr__: self._repr,
        }

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function called outside the mode: on another thread, or by code that function modes do not see."""

        @functools.wraps(function)
        def with_mode(*arguments: Any, **named: Any) -> Any:
            with self:
                return function(*arguments, **named)

        return with_mode

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        own = self._own.get(func)
        try:
            if own is not None:
                return own(*args, **(kwargs or {}))
            return func(*self._names.to_driver(args), **self._names.to_driver(kwargs or {}))
        except torch.OutOfMemoryError as error:
            # Programs look for CUDA's wording before they retry with a smaller batch.
            error.args = (self._names.reword_memory_error(str(error)),)
            raise

    def _make_device(self, *arguments: Any, **named: Any) -> Any:
        # A bare index means a device of the accelerator.
        is_index = isinstance(arguments[0] if arguments else named.get("device"), int)
        device = torch.device(*arguments, **named)
        return self._names.to_cuda(device) if is_index else device

    def _device(self, tensor: torch.Tensor, *_: object) -> Any:
        return self._names.to_cuda(tensor.device)

    def _is_cuda(self, tensor: torch.Tensor, *_: object) -> bool:
        return tensor.device.type in (self._names.name, CUDA)

    def _cuda(
        self,
        tensor: torch.Tensor,
        device: Any = None,
        non_blocking: bool = False,
        memory_format: torch.memory_format = torch.preserve_format,
    ) -> torch.Tensor:
        if device is None:
            device = torch.accelerator.current_device_index()
        name = self._names.name
        to = torch.device(name, device) if isinstance(device, int) else torch.device(self._names.to_driver(device))
        if to.type != name:
            raise RuntimeError(f"Invalid device, must be cuda device, got {device}")
        return tensor.to(to, non_blocking=non_blocking, memory_format=memory_format)

    def _type(self, tensor: torch.Tensor, dtype: Any = None, *rest: Any, **named: Any) -> Any:
        ours, theirs = f"torch.{self._names.name}.", f"torch.{CUDA}."
        if dtype is None:
            return str(tensor.type()).replace(ours, theirs)
        if isinstance(dtype, str) and dtype.startswith(theirs):
            dtype = ours + dtype[len(theirs) :]
        return tensor.type(dtype, *rest, **named)

    def _repr(self, tensor: torch.Tensor, *arguments: Any, **named: Any) -> str:
        text: str = torch.Tensor.__repr__(tensor, *arguments, **named)  # type: ignore[no-untyped-call]
        return text.replace(f"device='{self._names.name}", f"device='{CUDA}")
