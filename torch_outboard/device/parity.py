# SPDX-License-Identifier: BSD-3-Clause
"""The names in which torch.<name> differs from torch.cuda and torch.xpu; the source of docs/api.md."""

from __future__ import annotations

from types import ModuleType

import torch

__all__ = ["ABSENT", "OURS", "differences", "unexplained"]

_LEGACY = "a type of torch's legacy tensors; torch.Tensor and torch.UntypedStorage have the device as any other"
_CUDA = "CUDA's own; the driver contract has no counterpart"
_CUDA_GRAPHS = "reads CUDA's own graphs; in torch.cuda from torch 2.15 on"

# Names of torch.cuda or torch.xpu that torch.<name> lacks, and why.
ABSENT: dict[str, str] = {
    **{
        f"{dtype}{kind}": _LEGACY
        for kind in ("Storage", "Tensor")
        for dtype in ("BFloat16", "Bool", "Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short")
    },
    "ComplexDoubleStorage": _LEGACY,
    "ComplexFloatStorage": _LEGACY,
    "CUDAGraph": "torch.<name>.Graph",
    "XPUGraph": "torch.<name>.Graph",
    "CUDAPluggableAllocator": "torch.<name>.memory.PluggableAllocator",
    "XPUPluggableAllocator": "torch.<name>.memory.PluggableAllocator",
    "CudaError": "torch_outboard.DriverError, and torch.AcceleratorError for a lost device",
    "DeferredCudaCallError": "seeding and selecting a device open nothing, so nothing is deferred",
    "GreenContext": _CUDA,
    "check_error": _CUDA,
    "cudaStatus": "torch_outboard.Status",
    "cudart": _CUDA,
    "current_blas_handle": _CUDA,
    "current_solver_handle": _CUDA,
    "get_allocator_backend": "there is one allocator; torch.<name>.memory.change_current_allocator replaces it",
    "has_half": "deprecated; call is_bf16_supported, or read get_device_properties().dtypes",
    "has_magma": _CUDA,
    "jiterator": _CUDA,
    "nccl": _CUDA,
    "nvtx": _CUDA,
    "profiler": _CUDA,
    "sparse": "a module of torch.cuda without names of its own",
    "export_dot": _CUDA_GRAPHS,
    "export_graph_data": _CUDA_GRAPHS,
    "graph_annotations": _CUDA_GRAPHS,
    "tunable": _CUDA,
}

# Names of torch.<name> only.
OURS: dict[str, str] = {
    "Graph": "torch.cuda.CUDAGraph and torch.xpu.XPUGraph have the device in their names",
    "attach_out_of_memory_observer": "a private function of torch.cuda, here a public one",
    "caching_allocator_disabled": "torch.cuda has it from torch 2.13 on",
    "from_blob": "a tensor over memory that another library made; in-tree devices have it in C++ only",
    "get_amp_supported_dtype": "torch.autocast asks for it",
    "host_register": "torch.cuda.cudart().cudaHostRegister",
    "host_unregister": "torch.cuda.cudart().cudaHostUnregister",
}


def _in_tree() -> list[ModuleType]:
    return [torch.cuda, torch.xpu]


def differences(module: ModuleType) -> tuple[set[str], set[str]]:
    """Return the names that torch.cuda or torch.xpu have but the module lacks, and vice versa."""
    theirs = {name for other_module in _in_tree() for name in other_module.__all__}
    ours = set(module.__all__)
    return theirs - ours, ours - theirs


def unexplained(module: ModuleType) -> list[str]:
    """Return, as sentences, unexplained differences, and explanations without a difference."""
    absent, ours = differences(module)
    sentences = [f"torch.cuda or torch.xpu has {name}, which is not in ABSENT" for name in absent if name not in ABSENT]
    sentences += [f"only torch.<name> has {name}, which is not in OURS" for name in ours if name not in OURS]
    sentences += [f"{name} is in ABSENT, but torch.<name> has it" for name in ABSENT if name in module.__all__]
    sentences += [f"{name} is in OURS, but torch.<name> lacks it" for name in OURS if name not in module.__all__]
    return sorted(sentences)
