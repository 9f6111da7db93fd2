# SPDX-License-Identifier: BSD-3-Clause
"""vLLM's GPU worker on the attached driver's device, and its only Triton kernel, written with torch's operators."""

from __future__ import annotations

import contextlib
import gc
from contextlib import AbstractContextManager
from typing import Any

import torch
from vllm.platforms import current_platform
from vllm.utils.mem_utils import MemorySnapshot
from vllm.utils.torch_utils import set_random_seed
from vllm.v1.sample.ops import topk_topp_sampler
from vllm.v1.worker.gpu_worker import Worker, init_worker_distributed_environment
from vllm.v1.worker.utils import request_memory
from vllm.v1.worker.worker_base import CompilationTimes

__all__ = ["OutboardWorker", "compute_slot_mapping"]


class OutboardWorker(Worker):  # type: ignore[misc]
    """The worker whose device is the platform's, not CUDA's."""

    def init_device(self) -> None:
        self.device = torch.device(current_platform.device_type, self.local_rank)
        torch.accelerator.set_device_index(self.device)
        current_platform.check_if_supports_dtype(self.model_config.dtype)
        init_worker_distributed_environment(
            self.vllm_config, self.rank, self.distributed_init_method, self.local_rank, current_platform.dist_backend
        )
        set_random_seed(self.model_config.seed)
        topk_topp_sampler.HAS_TRITON = False  # Triton may be installed, but for CUDA's devices
        gc.collect()
        torch.accelerator.empty_cache()
        self.init_snapshot = MemorySnapshot(device=self.device)
        self.requested_memory = request_memory(self.init_snapshot, self.cache_config)
        self._init_workspace_and_model_runner()

    def compile_or_warm_up_model(self) -> CompilationTimes:
        # vLLM would tune and capture CUDA's kernels here.
        set_random_seed(self.model_config.seed)
        return CompilationTimes(language_model=0.0, encoder=0.0)

    def _maybe_get_memory_pool_context(self, tag: str) -> AbstractContextManager[Any]:
        return contextlib.nullcontext()  # memory pools serve vLLM's sleep mode, which needs CUDA


def compute_slot_mapping(
    num_tokens: int,
    max_num_tokens: int,
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    block_table: torch.Tensor,
    block_table_stride: int,
    slot_mapping: torch.Tensor,
    block_size: int,
    world_size: int,
    rank: int,
    interleave_size: int,
    pad_id: int,
    triton_block_size: int,
) -> None:
    """Write the cache slot of each token, and `pad_id` after the last token."""
    tokens = torch.arange(num_tokens, device=positions.device)
    request = torch.searchsorted(query_start_loc[1:], tokens, right=True)
    block = block_table[request, positions // block_size]
    slot_mapping[:num_tokens] = block.long() * block_size + positions % block_size
    slot_mapping[num_tokens:max_num_tokens] = pad_id
