# SPDX-License-Identifier: BSD-3-Clause
"""The attached driver's devices as one of vLLM's platforms. This module imports vLLM, and attaches the driver."""

from __future__ import annotations

import atexit
import functools
import os
import weakref
from types import ModuleType
from typing import Any

import torch
from vllm.logger import init_logger
from vllm.platforms.interface import Platform, PlatformEnum

from torch_outboard._errors import NotSupportedError
from torch_outboard.distributed import BACKEND
from torch_outboard.integrations._patched import ActiveIntegration
from torch_outboard.integrations.vllm import attach_for_platform

__all__ = ["OutboardPlatform"]

_HERE = "torch_outboard.integrations"
_logger = init_logger("vllm.platforms.outboard")  # a child of vLLM's logger, so that vLLM's handlers apply
_NAME = attach_for_platform()

# vLLM reads the devices' properties while it creates its configuration. A process forked afterwards
# could not use the devices.
os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
# The other model runner, V2, consists of Triton kernels.
os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")


class OutboardPlatform(Platform):  # type: ignore[misc]
    """One device, eager operators, and attention with scaled_dot_product_attention over vLLM's paged cache."""

    _enum = PlatformEnum.OOT
    device_name = _NAME
    device_type = _NAME
    dispatch_key = "PrivateUse1"
    dist_backend = BACKEND
    # For vLLM's small functions. "inductor" needs a driver with a code generator, and compiles
    # during a request.
    simple_compile_backend = "eager"

    @property
    def supported_dtypes(self) -> list[torch.dtype]:
        known = _properties().dtypes
        return [dtype for dtype in (torch.bfloat16, torch.float16, torch.float32) if dtype in known]

    @classmethod
    def check_if_supports_dtype(cls, dtype: torch.dtype) -> None:
        if dtype not in _properties().dtypes:
            raise NotSupportedError(f"{_NAME} does not support {dtype}: pass another dtype to vLLM, such as float32")

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        return str(torch.get_device_module(_NAME).get_device_name(device_id))

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        return int(torch.accelerator.get_memory_info(device_id)[1])

    @classmethod
    def get_current_memory_usage(cls, device: Any = None) -> float:
        return float(torch.accelerator.max_memory_allocated(device))

    @classmethod
    def set_device(cls, device: torch.device) -> None:
        torch.accelerator.set_device_index(device)

    @classmethod
    def manual_seed_all(cls, seed: int) -> None:
        torch.get_device_module(_NAME).manual_seed_all(seed)

    @classmethod
    def import_kernels(cls) -> None:
        """Do not load vLLM's own kernels, which are for other devices or for the CPU."""

    @classmethod
    def register_triton_kernel_overrides(cls) -> None:
        from vllm.triton_utils.dispatcher import register_kernels

        from torch_outboard.integrations._vllm_worker import compute_slot_mapping

        register_kernels({"vllm.v1.worker.block_table.ComputeSlotMappingKernel.kernel": compute_slot_mapping})

    @classmethod
    def get_attn_backend_cls(
        cls, selected_backend: Any, attn_selector_config: Any, num_heads: int | None = None
    ) -> str:
        from torch_outboard.integrations._vllm_attention import OutboardAttention

        settings = attn_selector_config._asdict()
        wrong = OutboardAttention.validate_configuration(device_capability=None, **settings)
        if wrong:
            raise NotSupportedError(f"attention on {_NAME} does not support this model: {', '.join(wrong)}")
        return f"{_HERE}._vllm_attention.OutboardAttention"

    @classmethod
    def verify_quantization(cls, quant: str) -> None:
        _refuse((True, f"weights quantized as {quant}"))

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        from vllm.config import CompilationMode, CUDAGraphMode

        parallel = vllm_config.parallel_config
        _refuse(
            (parallel.world_size > 1 or parallel.data_parallel_size > 1, "more than one device"),
            (vllm_config.speculative_config is not None, "speculative decoding"),
            (vllm_config.lora_config is not None, "LoRA"),
            (vllm_config.use_v2_model_runner, "model runner V2 (VLLM_USE_V2_MODEL_RUNNER=1)"),
        )
        if parallel.worker_cls == "auto":
            parallel.worker_cls = f"{_HERE}._vllm_worker.OutboardWorker"
        vllm_config.scheduler_config.async_scheduling = False  # asynchronous scheduling copies on streams of torch.cuda
        vllm_config.compilation_config.mode = CompilationMode.NONE
        vllm_config.compilation_config.cudagraph_mode = CUDAGraphMode.NONE
        vllm_config.compilation_config.cudagraph_capture_sizes = []
        _logger.info("%s runs one step at a time, by eager operators: no torch.compile, no graphs.", _NAME)


def _end_engines_first(module: ModuleType) -> None:
    """Stop this process's engine before the process closes its devices, because the engine frees memory as it stops."""
    client = module.InprocClient
    init = _patches.found(client, "__init__")

    @functools.wraps(init)
    def init_and_end(self: Any, *args: Any, **named: Any) -> None:
        init(self, *args, **named)
        end = weakref.WeakMethod(self.shutdown)
        atexit.register(lambda: (method := end()) and method())

    _patches.set(client, "__init__", init_and_end, "end an engine before the devices")


_patches = ActiveIntegration()  # open as long as the process, because vLLM keeps its platform
_patches.when_imported("vllm.v1.engine.core_client", _end_engines_first)


def _properties() -> Any:
    return torch.get_device_module(_NAME).get_device_properties()


def _refuse(*questions: tuple[bool, str]) -> None:
    unsupported = [feature for is_asked, feature in questions if is_asked]
    if unsupported:
        raise NotSupportedError(f"vLLM on {_NAME} does not support {', '.join(unsupported)}")
