# SPDX-License-Identifier: BSD-3-Clause
"""The attached driver's devices as one of DeepSpeed's accelerators. This module imports DeepSpeed."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
from deepspeed.accelerator.abstract_accelerator import DeepSpeedAccelerator

from torch_outboard._errors import NotSupportedError, RegistrationError
from torch_outboard.distributed import BACKEND

__all__ = ["make_accelerator"]

# DeepSpeed's C++ extensions that access only host memory. All others would access the device's
# memory.
_ON_HOST = frozenset({"AsyncIOBuilder", "CPUAdagradBuilder", "CPUAdamBuilder", "CPULionBuilder", "PinMemoryBuilder"})
_BUILDERS = "deepspeed.ops.op_builder.cpu"


def make_accelerator(name: str) -> DeepSpeedAccelerator:
    """Return the accelerator; raise RegistrationError if it lacks methods that DeepSpeed requires."""
    missing = sorted(getattr(_Accelerator, "__abstractmethods__", ()))
    if missing:
        raise RegistrationError(
            f"the installed deepspeed needs accelerator methods that torch-outboard lacks ({', '.join(missing)}): "
            "install the version that docs/integrations.md names"
        )
    return _Accelerator(name)


def _same(name: str) -> Callable[..., Any]:
    """Return a method that calls the function of the same name in torch.<device>."""

    def method(self: _Accelerator, *args: Any, **named: Any) -> Any:
        return getattr(self._module, name)(*args, **named)

    return method


def _maker(dtype: torch.dtype) -> property:
    """Return a property like torch.cuda.FloatTensor: it creates tensors of a type on the device."""
    return property(lambda self: functools.partial(torch.tensor, dtype=dtype, device=self._name))


class _Accelerator(DeepSpeedAccelerator):  # type: ignore[misc, no-any-unimported, unused-ignore]
    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self._module: Any = torch.get_device_module(name)
        self._communication_backend_name = BACKEND
        self._compile_backend = "inductor"
        self._ranges = threading.local()

    def is_synchronized_device(self) -> bool:
        return False

    def use_host_timers(self) -> bool:
        return True  # some drivers' events record no times

    def resolves_data_dependency(self) -> bool:
        return False

    def handles_memory_backpressure(self) -> bool:
        return False

    # Devices.

    def device_name(self, device_index: int | None = None) -> str:
        return self._name if device_index is None else f"{self._name}:{device_index}"

    def device(self, device_index: int | None = None) -> Any:
        return self._module.device(self.current_device() if device_index is None else device_index)

    def current_device_name(self) -> str:
        return self.device_name(self.current_device())

    set_device = _same("set_device")
    current_device = _same("current_device")
    device_count = _same("device_count")
    is_available = _same("is_available")
    synchronize = _same("synchronize")

    # Random numbers.

    def random(self) -> Any:
        return torch.random

    def set_rng_state(self, new_state: torch.Tensor, device_index: int | None = None) -> None:
        self._module.set_rng_state(new_state, self.current_device() if device_index is None else device_index)

    def get_rng_state(self, device_index: int | None = None) -> Any:
        return self._module.get_rng_state(self.current_device() if device_index is None else device_index)

    def default_generator(self, device_index: int) -> Any:
        return self._module.default_generators[device_index]

    manual_seed = _same("manual_seed")
    manual_seed_all = _same("manual_seed_all")
    initial_seed = _same("initial_seed")

    # Streams and graphs.

    @property
    def Stream(self) -> Any:  # noqa: N802 - DeepSpeed's names
        return self._module.Stream

    @property
    def Event(self) -> Any:  # noqa: N802
        return self._module.Event

    stream = _same("stream")
    current_stream = _same("current_stream")
    default_stream = _same("default_stream")

    def create_graph(self) -> Any:
        return self._module.Graph()

    def capture_to_graph(self, graph: Any, pool: Any = None, stream: Any = None) -> Any:
        return self._module.graph(graph, pool, stream)

    def replay_graph(self, graph: Any) -> None:
        graph.replay()

    # Memory.

    empty_cache = _same("empty_cache")
    memory_allocated = _same("memory_allocated")
    max_memory_allocated = _same("max_memory_allocated")
    reset_max_memory_allocated = _same("reset_max_memory_allocated")
    memory_cached = _same("memory_reserved")
    max_memory_cached = _same("max_memory_reserved")
    reset_max_memory_cached = _same("reset_peak_memory_stats")
    memory_stats = _same("memory_stats")
    reset_peak_memory_stats = _same("reset_peak_memory_stats")
    memory_reserved = _same("memory_reserved")
    max_memory_reserved = _same("max_memory_reserved")

    def total_memory(self, device_index: int | None = None) -> Any:
        return self._module.mem_get_info(device_index)[1]

    def available_memory(self, device_index: int | None = None) -> Any:
        return self._module.mem_get_info(device_index)[0]

    # Data types.

    def is_bf16_supported(self) -> bool:
        return torch.bfloat16 in self.supported_dtypes()

    def is_fp16_supported(self) -> bool:
        return torch.float16 in self.supported_dtypes()

    def supported_dtypes(self) -> list[torch.dtype]:
        known = self._module.get_device_properties(self.current_device()).dtypes
        return [dtype for dtype in (torch.float32, torch.float16, torch.bfloat16) if dtype in known]

    BFloat16Tensor = _maker(torch.bfloat16)
    ByteTensor = _maker(torch.uint8)
    DoubleTensor = _maker(torch.float64)
    FloatTensor = _maker(torch.float32)
    HalfTensor = _maker(torch.float16)
    IntTensor = _maker(torch.int32)
    LongTensor = _maker(torch.int64)

    def on_accelerator(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == self._name

    # Profiler ranges.

    def range_push(self, msg: str, domain: str | None = None, category: str | None = None) -> None:
        entered = torch.profiler.record_function(msg)
        entered.__enter__()  # type: ignore[no-untyped-call]
        self._open_ranges().append(entered)

    def range_pop(self, domain: str | None = None) -> None:
        self._open_ranges().pop().__exit__(None, None, None)

    def _open_ranges(self) -> list[Any]:
        if not hasattr(self._ranges, "open"):
            self._ranges.open = []
        return self._ranges.open  # type: ignore[no-any-return]

    # Process groups.

    def communication_backend_name(self) -> str:
        return BACKEND

    def export_envs(self) -> list[str]:
        return ["OUTBOARD"]  # prefixes of the variables that a launcher passes on

    def visible_devices_envs(self) -> list[str]:
        return []

    def set_visible_devices_envs(self, current_env: dict[str, str], local_accelerator_ids: list[int]) -> None:
        """Do nothing: each rank uses the device of its LOCAL_RANK."""

    # Extensions and compilation.

    def lazy_call(self, callback: Callable[[], Any]) -> Any:
        return callback()

    def is_triton_supported(self) -> bool:
        return False

    def op_builder_dir(self) -> str:
        return _BUILDERS

    def create_op_builder(self, class_name: str) -> Any:
        return self.get_op_builder(class_name)()

    def get_op_builder(self, class_name: str) -> Any:
        from deepspeed.ops.op_builder import cpu

        if class_name in _ON_HOST:
            return getattr(cpu, class_name)
        return _refusing(cpu.NotImplementedBuilder, class_name, self._name)

    def build_extension(self) -> Any:
        from torch.utils.cpp_extension import BuildExtension

        return BuildExtension

    def get_compile_backend(self) -> str | None:
        return self._compile_backend

    def set_compile_backend(self, backend: str) -> None:
        known = torch._dynamo.list_backends(exclude_tags=())
        if backend not in known:
            raise ValueError(f"{backend!r} is not a backend of torch.compile; choose from {', '.join(known)}")
        self._compile_backend = backend


@functools.cache
def _refusing(base: Any, class_name: str, device: str) -> Any:
    """Return a builder whose extension cannot be loaded. DeepSpeed checks `is_compatible` before choosing a builder."""

    class Refusing(base):  # type: ignore[misc]
        def load(self, verbose: bool = True) -> None:
            operator = class_name.removesuffix("Builder")
            remedy = ' Set "torch_adam": true in the optimizer\'s parameters.' if operator == "FusedAdam" else ""
            raise NotSupportedError(f"DeepSpeed's extension {operator} has no kernels for {device!r}.{remedy}")

        def is_compatible(self, verbose: bool = False) -> bool:
            return False

    return Refusing
