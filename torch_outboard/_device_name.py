# SPDX-License-Identifier: BSD-3-Clause
"""Checks that torch leaves a device type's name free."""

from __future__ import annotations

import keyword
import re

import torch

from torch_outboard._errors import RegistrationError

__all__ = ["check_free", "check_name"]


def check_free(name: str) -> None:
    """Raise RegistrationError unless torch's only spare device type is unused and can take the name."""
    owner = torch._C._get_privateuse1_backend_name()
    if owner != "privateuseone":
        if owner == _earlier_driver():
            raise RegistrationError(
                f"driver {name!r} cannot be attached: torch_outboard has attached {owner!r} in this process already, "
                "and its modules were removed from sys.modules and imported again since. Keep the first import, or "
                "start another process"
            )
        raise RegistrationError(
            f"driver {name!r} cannot be attached: another package has taken PyTorch's only free device type, as "
            f"{owner!r}. Uninstall it, or set TORCH_DEVICE_BACKEND_AUTOLOAD=0 so that it does not load, then call "
            "torch_outboard.attach()."
        )
    check_name(name)


def _earlier_driver() -> str:
    """Return the driver that an earlier import of this package attached, or "" if there is none."""
    try:
        from torch_outboard import _C
    except ImportError:  # the extension is not built, which is reported later
        return ""
    return _C.driver_name()


def check_name(name: str) -> None:
    """Raise RegistrationError unless torch leaves `name` free for a device."""

    def refuse(why: str) -> RegistrationError:
        return RegistrationError(f"a driver cannot be called {name!r}: {why}. Set another `name`.")

    if not re.fullmatch(r"[a-z]+(_[a-z]+)*", name):
        raise refuse("torch only parses device names of lower-case letters joined by single underscores")
    if keyword.iskeyword(name):
        raise refuse("it is a Python keyword, so torch.<name> could not be written")
    if _is_torch_device(name):
        raise refuse("torch reserves the name for its own device")
    if hasattr(torch, name):
        raise refuse(f"it would hide torch.{name}")
    for owner in (torch.Tensor, torch.nn.Module, torch.UntypedStorage, torch.TypedStorage):
        for attribute in (name, f"is_{name}"):
            if hasattr(owner, attribute):
                raise refuse(f"it would hide {owner.__name__}.{attribute}")


def _is_torch_device(name: str) -> bool:
    try:
        torch.device(name)
    except RuntimeError:
        return False
    return True
