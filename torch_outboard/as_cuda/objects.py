# SPDX-License-Identifier: BSD-3-Clause
"""Classes of torch.cuda whose objects extend torch's own: streams, graphs, device properties."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
import uuid
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from torch_outboard import _C
from torch_outboard._errors import NotSupportedError

__all__ = ["as_cuda_stream", "make_graph_class", "make_properties", "make_snapshots", "make_stream_class"]

_OWN_FOLDER = os.path.dirname(__file__)


def make_stream_class(base: Any, ours: type) -> Any:
    """Return torch.cuda's class with the name of `ours`: streams derived from `base` with CUDA's handle."""

    class CudaStream(base):  # type: ignore[misc]
        def __new__(cls, *arguments: Any, **named: Any) -> Any:
            known = named if "stream_id" in named else _ids_of(ours(*arguments, **named))
            return torch.Stream.__new__(cls, **known)

        @property
        def cuda_stream(self) -> int:
            """The driver's handle of the stream; 0 for the default stream, as in CUDA."""
            return 0 if self.stream_id == 0 else _C.stream_handle(self.device_index, self.stream_id)

        def __repr__(self) -> str:
            return f"<torch.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"

    return _rename_as_torch_class(CudaStream, ours.__name__, ours)


def as_cuda_stream(stream_class: Any, stream: Any) -> Any:
    """Convert one of torch's own streams to the class that `make_stream_class` returned."""
    return stream if type(stream) is stream_class else stream_class(**_ids_of(stream))


def _ids_of(stream: Any) -> dict[str, int]:
    return {"stream_id": stream.stream_id, "device_index": stream.device_index, "device_type": stream.device_type}


def _rename_as_torch_class(kind: Any, name: str, ours: type) -> Any:
    kind.__name__ = kind.__qualname__ = name
    kind.__module__ = "torch.cuda"
    kind.__doc__ = ours.__doc__
    return kind


def make_graph_class(ours: type) -> Any:
    """Return torch.cuda.CUDAGraph, which warns about a capture without work."""

    class CUDAGraph(ours):  # type: ignore[misc]
        def capture_end(self) -> None:
            super().capture_end()
            with contextlib.suppress(NotSupportedError):  # a driver's own graph hides its contents
                if "label" not in _C.graph_describe(self._graph):
                    warnings.warn(
                        "The CUDA Graph is empty. This usually means that the graph was attempted to be captured on "
                        "wrong device or stream.",
                        stacklevel=2,
                    )

    return _rename_as_torch_class(CUDAGraph, "CUDAGraph", ours)


def make_properties(ours: ModuleType, capability: tuple[int, int]) -> Any:
    """Return torch.cuda's get_device_properties: with the chosen capability, and a UUID object instead of bytes."""

    def get_device_properties(device: Any = None) -> Any:
        properties = ours.get_device_properties(device)
        # torch's own type also has `bytes`.
        as_uuid: Any = uuid.UUID(bytes=properties.uuid)
        return dataclasses.replace(properties, major=capability[0], minor=capability[1], uuid=as_uuid)

    return get_device_properties


def make_snapshots(ours: ModuleType) -> tuple[Callable[..., Any], Callable[..., None]]:
    """Return torch.cuda.memory's _snapshot and _dump_snapshot; their stacks omit this package's frames."""

    def _snapshot(device: Any = None, **named: Any) -> Any:
        return _without_own_frames(ours._snapshot(device, **named))

    def _dump_snapshot(filename: str | os.PathLike[str] = "dump_snapshot.pickle", **named: Any) -> None:
        with open(filename, "wb") as file:
            pickle.dump(_snapshot(**named), file)

    return _snapshot, _dump_snapshot


def _without_own_frames(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: [frame for frame in item if not frame["filename"].startswith(_OWN_FOLDER)]
            if key == "frames"
            else _without_own_frames(item)
            for key, item in value.items()
        }
    return [_without_own_frames(item) for item in value] if isinstance(value, list) else value
