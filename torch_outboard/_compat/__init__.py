# SPDX-License-Identifier: BSD-3-Clause
"""Workarounds for torch. Only this package patches torch; workarounds for one minor version have their own file."""

from __future__ import annotations

import torch

__all__ = ["apply"]


def apply(device: str) -> None:
    """Apply the workarounds that the running torch needs for the attached device. Call it once."""
    # Not at the top of the module: the device's modules need an attached driver.
    from torch_outboard import _C
    from torch_outboard._compat import distributed, dynamo, every_torch, printing, sharing, torchvision, vector_math
    from torch_outboard.device.sharing import reduce_storage

    vector_math.initialize_vector_math()
    sharing.share_storages(device, reduce_storage)
    every_torch.name_dlpack_device(device)
    every_torch.hint_cpu(device, _C.infers_shapes)
    every_torch.wait_before_setting_change(_C.drain_all_devices)
    printing.print_from_cpu(device)
    dynamo.defer_dynamo()
    torchvision.cast_operators()
    distributed.choose_backend(device)
    minor = tuple(map(int, torch.__version__.split(".")[:2]))
    if minor < (2, 13):
        from torch_outboard._compat import torch_2_11

        torch_2_11.register_autocast(device)
        torch_2_11.register_attention_backward()
