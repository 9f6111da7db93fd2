# SPDX-License-Identifier: BSD-3-Clause
"""Loading safetensors files to the attached driver's devices, which are not on safetensors' list of device names."""

from __future__ import annotations

import functools
import os
from types import ModuleType
from typing import Any

import torch

from torch_outboard.integrations._patched import ActiveIntegration, attached_name, running

__all__ = ["load_file", "use"]


def use() -> ActiveIntegration:
    """Make `safetensors.torch.load_file` accept the attached driver's devices by name; return an object to undo this.

    Raises RegistrationError if no driver is attached.
    """
    return running("safetensors", _start)


def _start() -> ActiveIntegration:
    name = attached_name("safetensors.use()")
    using = ActiveIntegration()
    using.when_imported("safetensors.torch", lambda module: _patch(using, module, name))
    return using


def _patch(using: ActiveIntegration, module: ModuleType, name: str) -> None:
    before = using.found(module, "load_file")

    @functools.wraps(before)
    def load(filename: Any, device: Any = "cpu", **options: Any) -> Any:
        is_own = not isinstance(device, int) and torch.device(device).type == name
        return load_file(filename, device) if is_own else before(filename, device=device, **options)

    using.replace(module, "load_file", load, "load to the device by its name")


def load_file(path: str | os.PathLike[str], device: str | int | torch.device | None = None) -> dict[str, torch.Tensor]:
    """Return the tensors of a file on a device, by default the attached driver's current one.

    Each tensor is copied from the mapped file separately, so that the host never holds two copies of a model.
    """
    from safetensors import safe_open

    name = attached_name("safetensors.load_file")
    target = torch.device(name, torch.accelerator.current_device_index()) if device is None else torch.device(device)
    file: Any
    with safe_open(os.fspath(path), framework="pt", device="cpu") as file:
        keys = list(file.keys())
        return {key: file.get_tensor(key).to(target) for key in keys}
