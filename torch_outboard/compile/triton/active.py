# SPDX-License-Identifier: BSD-3-Clause
"""Triton's driver for our devices. It runs `kernel[grid](...)` outside of torch.compile, for the attached driver.

The device of a launch's tensors determines the driver (_compat/triton.py), so other devices keep their own driver.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from triton.backends.compiler import GPUTarget

from torch_outboard import _C
from torch_outboard._errors import NotSupportedError
from torch_outboard._triton import TritonTarget
from torch_outboard.compile.triton.binary import TYPES, binary_of, load_backend
from torch_outboard.compile.triton.launch import launcher_of
from torch_outboard.compile.triton.measure import times_of
from torch_outboard.device.devices import get_device_properties
from torch_outboard.driver import Driver

__all__ = ["DeviceDriver", "choose"]

_log = logging.getLogger(__name__)

# Targets for which Triton has a back end.
_known: set[TritonTarget] = set()


class DeviceDriver:
    """Triton's driver interface for one of our devices, or for the current device."""

    def __init__(self, driver: Driver, device: int | None = None) -> None:
        self._driver = driver
        self._device = device
        self.utils = _Utils()

    @property
    def _target(self) -> TritonTarget:
        return self._driver.triton_target(self.get_current_device().index)

    def get_current_target(self) -> GPUTarget:
        target = self._target
        return GPUTarget(target.backend, target.arch, target.warp_size)

    def get_current_device(self) -> torch.device:
        """Return the key under which Triton stores kernels. Not a number, because other drivers use numbers."""
        return torch.device(self._driver.name, _C.current_device() if self._device is None else self._device)

    def get_active_torch_device(self) -> torch.device:
        return self.get_current_device()

    def get_current_stream(self, device: torch.device) -> int:
        """Return the stream number for Triton's hooks. Launches take the current stream themselves."""
        return torch.accelerator.current_stream(device).stream_id

    def get_device_interface(self) -> Any:
        return torch.get_device_module(self._driver.name)

    def get_benchmarker(self) -> Callable[..., list[float]]:
        return self._measure

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        device = self.get_current_device()
        size = 2 * get_device_properties(device.index).l2_cache_size
        return torch.empty(size, dtype=torch.uint8, device=device)

    def clear_cache(self, cache: torch.Tensor) -> None:
        cache.zero_()

    def launcher_cls(self, source: Any, metadata: Any) -> _Launcher:
        return _Launcher(source, metadata, self._target)

    def _measure(self, call: Callable[[], object], quantiles: Sequence[float], **settings: Any) -> list[float]:
        from triton.runtime.errors import OutOfResources

        try:
            times = times_of(call, lambda: None, self.get_current_device())
        except (OutOfResources, NotSupportedError):
            raise
        except (
            RuntimeError,
            ValueError,
        ) as error:  # the driver's error if the chip's resources are exceeded: another configuration may work
            _log.info("a configuration can't run: %s", error)
            return [float("inf")] * len(quantiles)
        return torch.tensor(times).quantile(torch.tensor(quantiles)).tolist()


class _Utils:
    """Triton's queries about a kernel before its first launch."""

    def get_device_properties(self, device: torch.device) -> dict[str, int]:
        # No property has the limit of dynamic shared memory: the driver refuses launches that
        # exceed it.
        return {"max_shared_mem": sys.maxsize}

    def load_binary(self, name: str, code: Any, shared: int, device: torch.device) -> tuple[Any, ...]:
        """Return module, function, registers, spills and the thread limit. A launch needs only the code."""
        most = get_device_properties(device.index).max_threads_per_block
        return None, (code, device.index), 0, 0, most or sys.maxsize


class _Launcher:
    """A launcher for a kernel that Triton compiled. It queues launches like every other launcher."""

    def __init__(self, source: Any, metadata: Any, target: TritonTarget) -> None:
        self._name = source.fn.__name__
        self._kinds = tuple(source.signature.values())
        self._metadata = metadata._asdict()
        self._target = target
        self._launch: Callable[..., None] | None = None

    def __call__(
        self,
        x: int,
        y: int,
        z: int,
        stream: int,
        function: tuple[bytes | str, int],
        packed: object,
        metadata: object,
        enter: Callable[[object], object] | None,
        leave: Callable[[object], object] | None,
        *arguments: Any,
    ) -> None:
        passed = list(_passed(self._kinds, arguments))
        if self._launch is None:
            self._launch = self._make(*function, [kind for kind, _ in passed])
        if enter is not None:
            enter(metadata)
        self._launch(*(_value(kind, value) for kind, value in passed), x, y, z)
        if leave is not None:
            leave(metadata)

    def _make(self, code: bytes | str, device: int, kinds: list[str]) -> Callable[..., None]:
        types = [*(_type(self._name, kind) for kind in kinds), "kept", "kept", "kept"]
        x, y, z = (f"a{len(kinds) + place}" for place in range(3))
        binary = binary_of(self._name, "", self._metadata, code, (x, y, z), self._target)
        return launcher_of(self._name, types, binary, self._target, device)


def _passed(kinds: Sequence[Any], values: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the arguments that a kernel takes, with Triton's type names. Tuples are flattened."""
    for kind, value in zip(kinds, values, strict=True):
        if isinstance(kind, tuple):
            yield from _passed(kind, value)
        elif kind != "constexpr":
            yield kind, value


def _type(name: str, kind: str) -> str:
    if kind.startswith("*"):
        return "void*"  # Triton does not report which pointers the kernel writes
    if kind in TYPES:
        return TYPES[kind]
    raise NotSupportedError(f"the kernel {name} has an argument of type {kind}, which launches don't support")


def _value(kind: str, value: Any) -> Any:
    if kind.startswith("*"):
        return _tensor(value)
    if kind in ("u8", "u16", "u32", "u64") and value >= 1 << (int(kind[1:]) - 1):
        return value - (1 << int(kind[1:]))  # same bits
    return value


def _tensor(value: Any) -> Any:
    """Return a tensor itself, or the tensor inside a triton.reinterpret object."""
    return value if isinstance(value, torch.Tensor) else getattr(value, "base", value)


def choose(driver: Driver, arguments: Iterable[Any]) -> tuple[DeviceDriver, dict[str, object]] | None:
    """Return the driver for a launch with these arguments, and its options for Triton's back end.

    Return None if no tensor among the arguments is on one of our devices.

    Raises
    ------
    NotSupportedError
        If Triton does not support the device.
    """
    index = _device_of(arguments, driver.name)
    if index is None:
        return None
    target = driver.triton_target(index)
    if target not in _known:
        load_backend(target)
        _known.add(target)
    return DeviceDriver(driver, index), dict(target.options)


def _device_of(arguments: Iterable[Any], name: str) -> int | None:
    for tensor in map(_tensor, arguments):
        if isinstance(tensor, tuple):
            index = _device_of(tensor, name)
            if index is not None:
                return index
        elif isinstance(tensor, torch.Tensor) and tensor.device.type == name:
            return tensor.device.index
    return None
