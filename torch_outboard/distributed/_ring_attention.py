# SPDX-License-Identifier: BSD-3-Clause
"""Context parallel with the attention operators of this package's devices.

Torch's context parallel passes keys and values around a ring for three attention operators of CUDA. Any other attention
operator would silently run on gathered sequences, and return whole sequences where each rank expects its part. This
module adds the operator that the host's kernels implement to torch's ring, and makes the others raise an error.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from torch_outboard._compat.imports import when_imported
from torch_outboard._errors import NotSupportedError

__all__ = ["register_ring_attention_when_imported"]

SEQUENCE = 2  # the sequence dimension of queries, keys and values
_MODULE = "torch.distributed.tensor.experimental._context_parallel._attention"
_ATEN = torch.ops.aten
_FLASH = _ATEN._scaled_dot_product_flash_attention_for_cpu.default
_FLASH_BACKWARD = _ATEN._scaled_dot_product_flash_attention_for_cpu_backward.default


def register_ring_attention_when_imported() -> None:
    """Add the attention operators to context parallel as soon as it is imported."""
    when_imported(_MODULE, _register)


def _register(module: ModuleType) -> None:
    # context_parallel() reads this table when it is entered.
    module.custom_ops.update(
        {
            _FLASH: _flash,
            _FLASH_BACKWARD: _flash_backward,
            _ATEN._scaled_dot_product_fused_attention_overrideable.default: _refuse,
            _ATEN._scaled_dot_product_fused_attention_overrideable_backward.default: _refuse,
        }
    )


def _refuse(op: Any, args: Any, kwargs: Any) -> Any:
    raise NotSupportedError(
        f"context parallel does not support {op}, the attention of the driver's own kernels: remove `native` from "
        "OUTBOARD_PROVIDERS, or shard batches or heads instead"
    )


def _bind(op: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """Return the arguments by name."""
    names = [argument.name for argument in op._schema.arguments]
    defaults = {argument.name: argument.default_value for argument in op._schema.arguments}
    return {**defaults, **dict(zip(names, args, strict=False)), **kwargs}


def _local(op: Any, arguments: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the mesh, and the arguments with each rank's part of the sequences."""
    from torch.distributed.tensor import DTensor, Shard

    if arguments.pop("attn_mask") is not None:
        raise NotSupportedError(f"context parallel supports no attention mask except is_causal ({op})")
    mesh = arguments["query"].device_mesh
    for name, value in arguments.items():
        if isinstance(value, DTensor):
            if value.device_mesh != mesh or mesh.ndim != 1 or tuple(value.placements) != (Shard(SEQUENCE),):
                raise NotSupportedError(
                    f"context parallel needs sequences that are sharded along a one-dimensional mesh, but {name} of "
                    f"{op} is {value.placements} on {value.device_mesh}"
                )
            arguments[name] = value.to_local()
    return mesh, arguments


def _shared(mesh: Any, tensors: tuple[torch.Tensor, ...]) -> tuple[Any, ...]:
    from torch.distributed.tensor import DTensor, Shard

    return tuple(DTensor.from_local(tensor, mesh, (Shard(SEQUENCE),), run_check=False) for tensor in tensors)


def _flash(op: Any, args: Any, kwargs: Any) -> Any:
    from torch.distributed.tensor.experimental._context_parallel import _attention

    mesh, arguments = _local(op, _bind(op, args, kwargs))
    return _shared(mesh, _attention._templated_ring_attention(mesh.get_group(), SEQUENCE, op, **arguments))


def _flash_backward(op: Any, args: Any, kwargs: Any) -> Any:
    from torch.distributed.tensor.experimental._context_parallel import _attention

    mesh, arguments = _local(op, _bind(op, args, kwargs))
    ring = _attention._templated_ring_attention_backward
    return _shared(mesh, ring(mesh.get_group(), SEQUENCE, op, grad_out_name="grad_out", **arguments))
