# SPDX-License-Identifier: BSD-3-Clause
"""Answers Inductor's queries about a device type for the actual device of a graph.

Inductor has one back end per type. For a driver whose devices have different generators, the scheduling and wrappers
first determine the device.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch._inductor.virtualized import V

from torch_outboard import _C
from torch_outboard._errors import NotSupportedError, OutboardError
from torch_outboard.compile.generator import CodeGenerator
from torch_outboard.compile.generators import generators, torch_has_changed

__all__ = ["WrapperChoice", "fuses_as_cpu", "lowering_with", "model_header", "scheduling"]

_lowering = threading.local()


@contextlib.contextmanager
def lowering_with(generator: CodeGenerator) -> Iterator[None]:
    """Within a `with` block, lower this thread's graphs with `generator` instead of the device's generator."""
    _lowering.generator = generator
    try:
        yield
    finally:
        del _lowering.generator


def scheduling() -> type[Any]:
    """Return the class that Inductor constructs for each device of the type."""
    known = generators()
    return SchedulingChoice if known.is_by_device or known.has_eager else known.of(0).scheduling()


def fuses_as_cpu(device: torch.device) -> bool:
    """Return True if Inductor treats a device like the CPU because the device uses CPU kernels."""
    return device.type == _C.driver_name() and _of(device).fuses_as_cpu


def model_header() -> str | None:
    """Return the path of the header that AOTInductor's models include first.

    Raises
    ------
    NotSupportedError
        If the graph's devices have generators with different headers.
    """
    return _same([generator.model_header() for generator in _of_graph()], "headers of models")  # type: ignore[no-any-return]


class SchedulingChoice:
    """A placeholder for a device's scheduling, resolved at the first attribute access.

    Inductor constructs a scheduling without naming the device, stores it under the device, and uses it later.
    """

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._choice: Any = None

    def get_backend_features(self, device: torch.device) -> Any:
        if self._scheduler is None:
            return _scheduling_of(device)(None).get_backend_features(device)
        return self._chosen().get_backend_features(device)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._chosen(), name)

    def _chosen(self) -> Any:
        if self._choice is None:
            backends = self._scheduler.backends
            device = next(device for device, backend in backends.items() if backend is self)
            self._choice = backends[device] = _scheduling_of(device)(self._scheduler)
        return self._choice


class WrapperChoice:
    """A placeholder for a wrapper class, of which Inductor uses `create` and class attributes."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __getattr__(self, name: str) -> Any:
        values = [getattr(wrapper, name) for wrapper in self._wrappers()]
        if all(isinstance(value, bool) for value in values):
            return all(values)
        return _same(values, f"wrappers ({self._kind})")

    def _wrappers(self) -> list[type[Any]]:
        wrappers: list[type[Any]] = []
        lack: NotSupportedError | None = None
        for generator in _of_graph():
            try:
                wrappers.append(getattr(generator, self._kind)())
            except NotSupportedError as error:
                lack = error
        # Before a graph exists, Inductor reads only common attributes, so a generator may still
        # lack this wrapper.
        if lack is not None and (not wrappers or _devices_of_graph()):
            raise lack
        return wrappers


def _of(device: torch.device) -> CodeGenerator:
    if hasattr(_lowering, "generator"):
        return _lowering.generator  # type: ignore[no-any-return]
    return generators().of(_C.current_device() if device.index is None else device.index)


def _scheduling_of(device: torch.device) -> type[Any]:
    try:
        return _of(device).scheduling()
    except OutboardError:
        raise
    except Exception as error:  # whatever has changed in torch
        raise torch_has_changed(error) from error


def _of_graph() -> list[CodeGenerator]:
    """Return the generators of the graph that is being lowered, or of all devices outside of a graph."""
    if hasattr(_lowering, "generator"):
        return [_lowering.generator]
    return generators().of_all(_devices_of_graph() or range(_C.device_count()))


def _devices_of_graph() -> list[int]:
    # All indices belong to the driver's devices: besides the CPU, which has no index, a graph uses
    # one device type.
    return sorted(getattr(V.graph, "device_idxs", ()))


def _same(values: Any, aspect: str) -> Any:
    first, *others = values
    if any(value != first for value in others):
        raise NotSupportedError(
            f"a graph uses devices of {_C.driver_name()!r} whose code generators have different {aspect}: compile the "
            "part for each device separately"
        )
    return first
