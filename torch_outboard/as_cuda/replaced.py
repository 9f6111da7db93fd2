# SPDX-License-Identifier: BSD-3-Clause
"""Replacements in torch while a program for CUDA runs, by area."""

from __future__ import annotations

import contextlib
import functools
import threading
import warnings
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any

import torch

from torch_outboard._errors import NotSupportedError
from torch_outboard._patching import Patching
from torch_outboard.as_cuda.compiler import asked_by_compiler, replace_for_compiler
from torch_outboard.as_cuda.cudart import Cudart
from torch_outboard.as_cuda.names import CUDA, Names
from torch_outboard.as_cuda.objects import (
    as_cuda_stream,
    make_graph_class,
    make_properties,
    make_snapshots,
    make_stream_class,
)
from torch_outboard.device.parity import ABSENT
from torch_outboard.distributed import BACKEND

__all__ = ["replace_all"]

_DTYPES = {
    "BFloat16": torch.bfloat16,
    "Bool": torch.bool,
    "Byte": torch.uint8,
    "Char": torch.int8,
    "Double": torch.float64,
    "Float": torch.float32,
    "Half": torch.float16,
    "Int": torch.int32,
    "Long": torch.int64,
    "Short": torch.int16,
}


# Functions with a leading underscore that programs and torch's documentation use.
_PRIVATE = ("_dump_snapshot", "_record_memory_history", "_sleep", "_snapshot")

# Functions of torch.cuda that call torch.cuda._cudart.
_OF_CUDART = ("check_error", "cudart")

_Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


def replace_all(patching: Patching, names: Names, capability: tuple[int, int], wrap: _Wrap) -> None:
    """Replace the functions that the function mode does not see. `wrap` wraps a function in the mode."""
    _functions_of_cuda(patching, names, capability)
    _types_of_tensors(patching, names)
    _ranges(patching)
    _autocast(patching, names)
    _accelerator(patching, names)
    _files(patching, names)
    _distributed(patching, names)
    _threads(patching, wrap)
    replace_for_compiler(patching, names)


def _functions_of_cuda(patching: Patching, names: Names, capability: tuple[int, int]) -> None:
    ours, theirs = torch.get_device_module(names.name), torch.cuda
    _constructors(patching, names)
    reason = f"torch.cuda's functions and classes are those of torch.{names.name}"
    stream_class = make_stream_class(torch.Stream, ours.Stream)
    names.stream_to_cuda = functools.partial(as_cuda_stream, stream_class)
    own: dict[str, Any] = {
        "CUDAGraph": make_graph_class(ours.Graph),
        "ExternalStream": make_stream_class(stream_class, ours.ExternalStream),
        "Stream": stream_class,
        "_cudart": Cudart(ours),
        "_lazy_init": lambda: None,
        "default_generators": ours.default_generators,
        "get_allocator_backend": lambda: "native",
        "get_arch_list": lambda: [f"sm_{capability[0]}{capability[1]}"],
        "get_device_capability": lambda device=None: capability,
        "get_device_properties": names.wrap(make_properties(ours, capability)),
        "is_available": lambda: not asked_by_compiler(),
    }
    snapshots = {function.__name__: function for function in make_snapshots(ours.memory)}
    rooms = [(ours, theirs)]
    rooms += [(getattr(ours, room), getattr(theirs, room)) for room in ("memory", "random", "streams", "graphs")]
    for our_room, their_room in rooms:
        for name in sorted({*dir(our_room)} & {*dir(their_room)}):
            value = getattr(our_room, name)
            is_ours = (getattr(value, "__module__", None) or "").startswith("torch_outboard")
            if is_ours and (not name.startswith("_") or name in _PRIVATE):
                replacement = own.get(name) or snapshots.get(name) or _for_cuda(names, value)
                patching.set(their_room, name, replacement, reason)
    for name, value in own.items():
        patching.set(theirs, name, value, reason)
    patching.set(theirs.graphs, "CUDAGraph", own["CUDAGraph"], reason)
    for name, value in _internals(names, ours).items():
        patching.set(torch._C, name, value, "torch's own tests and libraries call it instead of torch.cuda's")
    for name, why in ABSENT.items():
        if name not in (*own, *_OF_CUDART) and isinstance(getattr(theirs, name, None), FunctionType):
            patching.set(theirs, name, _missing(name, why), "what the driver contract lacks raises NotSupportedError")
    is_built = "programs ask it before they use the device"
    patching.set(torch.backends.cuda, "is_built", lambda: not asked_by_compiler(), is_built)


def _constructors(patching: Patching, names: Names) -> None:
    """Make the constructors of torch's own classes accept "cuda"."""
    for name in ("Generator", "Stream", "Event"):
        # Methods of streams and events accept only torch's own events, not objects of a derived
        # class.
        is_event = name == "Event"
        stand_in = names.make_stand_in(getattr(torch, name), () if is_event else ("device",), equals=is_event)
        patching.set(torch, name, stand_in, "constructors take a device")
    make_storage = torch.UntypedStorage.__new__

    def make_storage_for_cuda(cls: type, *arguments: Any, **named: Any) -> Any:
        return make_storage(cls, *names.to_driver(arguments), **names.to_driver(named))

    patching.set(torch.UntypedStorage, "__new__", staticmethod(make_storage_for_cuda), "constructors take a device")


def _internals(names: Names, ours: ModuleType) -> dict[str, Callable[..., Any]]:
    """Return replacements for the torch._C functions beneath torch.cuda's, by name."""

    def raw_alloc(size: int, stream: int) -> int:
        is_current = stream == ours._get_current_raw_stream(ours.current_device())
        address: int = ours.caching_allocator_alloc(
            size, stream=None if is_current else ours.get_stream_from_external(stream)
        )
        return address

    internals: dict[str, Callable[..., Any]] = {
        "_cuda_attach_out_of_memory_observer": ours.memory.attach_out_of_memory_observer,
        "_cuda_clearCublasWorkspaces": lambda: None,  # there are no library workspaces
        "_cuda_cudaCachingAllocator_raw_alloc": raw_alloc,
        "_cuda_cudaCachingAllocator_raw_delete": ours.caching_allocator_delete,
        "_cuda_emptyCache": ours.empty_cache,
        "_cuda_getCurrentRawStream": ours._get_current_raw_stream,
        "_cuda_getDevice": ours.current_device,
        "_cuda_getDeviceCount": ours.device_count,
        "_cuda_memoryStats": ours.memory_stats_as_nested_dict,
        "_cuda_resetAccumulatedMemoryStats": ours.reset_accumulated_memory_stats,
        "_cuda_resetPeakMemoryStats": ours.reset_peak_memory_stats,
        "_cuda_setDevice": ours.set_device,
        "_cuda_setStream": ours._set_stream_by_id,
        "_cuda_synchronize": ours.synchronize,
    }
    if hasattr(torch._C, "_accelerator_emptyHostCache"):  # since torch 2.13
        internals["_host_emptyCache"] = torch._C._accelerator_emptyHostCache
    return {name: names.wrap(function) for name, function in internals.items()}


def _for_cuda(names: Names, value: Any) -> Any:
    if isinstance(value, type):
        return names.make_stand_in(value, ("device",) if hasattr(value, "device") else ())
    return names.wrap(value) if callable(value) else value


def _missing(name: str, why: str) -> Callable[..., None]:
    def function(*_: object, **__: object) -> None:
        raise NotSupportedError(f"torch.cuda.{name} is not supported under as_cuda(): {why}")

    return function


def _types_of_tensors(patching: Patching, names: Names) -> None:
    for prefix, dtype in _DTYPES.items():
        name = f"{prefix}Tensor"
        tensor_type = _tensor_type(names, name, dtype)
        patching.set(torch.cuda, name, tensor_type, "isinstance and constructors of torch's legacy types")
    meta = torch.storage._LegacyStorageMeta
    is_instance: Callable[..., Any] = meta.__instancecheck__

    def is_storage_of(cls: Any, instance: object) -> bool:
        if type(instance) is torch.TypedStorage and instance.device.type == names.name:
            return bool(cls.__module__ == "torch.cuda" and cls.dtype == instance.dtype)
        return bool(is_instance(cls, instance))

    patching.set(meta, "__instancecheck__", is_storage_of, "isinstance with torch.cuda.FloatStorage and the others")


def _tensor_type(names: Names, name: str, dtype: torch.dtype) -> type:
    class Meta(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, torch.Tensor) and instance.is_cuda and instance.dtype == dtype

        def __call__(cls, *arguments: Any) -> torch.Tensor:
            if len(arguments) == 1 and not isinstance(arguments[0], (int, torch.Size)):
                return torch.tensor(arguments[0], dtype=dtype, device=names.name)
            sizes = arguments[0] if arguments and isinstance(arguments[0], torch.Size) else arguments
            return torch.empty(sizes or (0,), dtype=dtype, device=names.name)

    return Meta(name, (), {"__module__": "torch.cuda", "dtype": dtype, "is_cuda": True})


def _ranges(patching: Patching) -> None:
    """Make NVTX's functions do nothing, and warn once."""

    @functools.cache
    def warn_once() -> None:
        warnings.warn("torch.cuda.nvtx does nothing under as_cuda(): use torch.profiler for ranges", stacklevel=4)

    def nothing(*_: object, **__: object) -> int:
        warn_once()
        return 0

    @contextlib.contextmanager
    def empty_range(*_: object, **__: object) -> Iterator[None]:
        warn_once()
        yield

    for name in ("range_push", "range_pop", "range_start", "range_end", "mark"):
        patching.set(torch.cuda.nvtx, name, nothing, "NVTX is CUDA's own: its ranges do nothing, with one warning")
    patching.set(torch.cuda.nvtx, "range", empty_range, "NVTX is CUDA's own: its ranges do nothing, with one warning")


def _autocast(patching: Patching, names: Names) -> None:
    reason = "autocast takes the name of a device's type, outside of what function modes see"
    patching.set(torch.autocast, "__init__", names.wrap(torch.autocast.__init__), reason)
    for name in ("get_autocast_dtype", "set_autocast_dtype"):
        patching.set(torch, name, names.wrap(getattr(torch, name)), reason)
    is_enabled, set_enabled = torch.is_autocast_enabled, torch.set_autocast_enabled
    # Without a device name, both functions refer to CUDA.
    patching.set(
        torch, "is_autocast_enabled", lambda *device: is_enabled(*(names.to_driver(device) or (names.name,))), reason
    )
    patching.set(
        torch,
        "set_autocast_enabled",
        lambda *args: set_enabled(*(names.to_driver(args) if len(args) > 1 else (names.name, *args))),
        reason,
    )
    available = names.wrap(torch.amp.is_autocast_available)
    for owner in (torch.amp, torch.amp.autocast_mode):
        patching.set(owner, "is_autocast_available", available, reason)
    patching.set(torch, "get_autocast_gpu_dtype", lambda: torch.get_autocast_dtype(names.name), reason)
    patching.set(torch, "set_autocast_gpu_dtype", lambda dtype: torch.set_autocast_dtype(names.name, dtype), reason)


def _accelerator(patching: Patching, names: Names) -> None:
    reason = "torch.accelerator's devices are called cuda"
    patching.set(torch.accelerator, "current_accelerator", names.wrap(torch.accelerator.current_accelerator), reason)

    def takes_both(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def index_of(device: Any, *arguments: Any, **named: Any) -> Any:
            return function(names.to_cuda(device), *arguments, **named)

        return index_of

    for room in (torch.accelerator, torch.accelerator.memory):
        patching.set(room, "_get_device_index", takes_both(vars(room)["_get_device_index"]), reason)


def _files(patching: Patching, names: Names) -> None:
    """Name devices "cuda" in saved files, and load files with devices named "cuda"."""
    load = torch.load

    @functools.wraps(load)
    def load_for_cuda(f: Any, map_location: Any = None, *arguments: Any, **named: Any) -> Any:
        return load(f, names.to_driver(map_location), *arguments, **named)

    patching.set(torch, "load", load_for_cuda, "map_location is read outside of what function modes see")

    def tag(storage: Any) -> str | None:
        device = storage.device
        return f"{CUDA}:{device.index}" if device.type == names.name else None

    def restore(storage: Any, location: str) -> Any:
        if location != CUDA and not location.startswith(f"{CUDA}:"):
            return None
        return torch.serialization.default_restore_location(  # type: ignore[no-untyped-call]
            storage, names.to_driver(location)
        )

    registry = torch.serialization._package_registry
    before = list(registry)
    torch.serialization.register_package(19, tag, restore)  # before torch's own restorer for CUDA, at 20
    target = "torch.serialization.register_package"
    patching.record(target, "files name their devices cuda", lambda: registry.__setitem__(slice(None), before))


def _distributed(patching: Patching, names: Names) -> None:
    if not torch.distributed.is_available():
        return
    reason = 'the backend "nccl" is the device\'s own'

    def backend_to_driver(backend: Any) -> Any:
        if not isinstance(backend, str):
            return backend
        parts = [part.replace(f"{CUDA}:", f"{names.name}:") for part in backend.lower().split(",")]
        return ",".join(BACKEND.join(part.rsplit("nccl", 1)) if part.endswith("nccl") else part for part in parts)

    def with_backend(function: Callable[..., Any], place: int) -> Callable[..., Any]:
        @functools.wraps(function)
        def for_cuda(*arguments: Any, **named: Any) -> Any:
            values = list(names.to_driver(arguments))
            if len(values) > place:
                values[place] = backend_to_driver(values[place])
            elif "backend" in named:
                named["backend"] = backend_to_driver(named["backend"])
            return function(*values, **names.to_driver(named))

        return for_cuda

    get_backend = torch.distributed.get_backend

    @functools.wraps(get_backend)
    def backend_to_cuda(*arguments: Any, **named: Any) -> str:
        backend = get_backend(*arguments, **named)
        return "nccl" if backend == BACKEND else backend

    own: dict[str, Any] = {
        "init_process_group": with_backend(torch.distributed.init_process_group, 0),
        "new_group": with_backend(torch.distributed.new_group, 2),
        "get_backend": backend_to_cuda,
        "is_nccl_available": lambda: True,
    }
    rooms: tuple[ModuleType, ...] = (torch.distributed, torch.distributed.distributed_c10d)
    for room in rooms:
        for name, value in own.items():
            patching.set(room, name, value, reason)


def _threads(patching: Patching, wrap: _Wrap) -> None:
    """Apply the mode on threads that the program starts, and in gradient hooks, which run on autograd's threads."""
    start = threading.Thread.start

    @functools.wraps(start)
    def start_with_mode(thread: threading.Thread) -> None:
        thread.run = wrap(thread.run)  # type: ignore[method-assign]
        start(thread)

    patching.set(threading.Thread, "start", start_with_mode, "a function mode is a thread's own")
    run_backward = wrap(torch.autograd.graph._engine_run_backward)
    for room in (torch.autograd, torch.autograd.graph):
        reason = "autograd's threads have the modes that are on when it begins; a call that a mode sees has none"
        patching.set(room, "_engine_run_backward", run_backward, reason)
    hooks = torch.autograd.graph.saved_tensors_hooks
    make = hooks.__init__

    @functools.wraps(make)
    def make_with_mode(self: Any, pack_hook: Callable[..., Any], unpack_hook: Callable[..., Any]) -> None:
        make(self, wrap(pack_hook), wrap(unpack_hook))

    patching.set(hooks, "__init__", make_with_mode, "torch calls these hooks inside of calls that a mode sees")
