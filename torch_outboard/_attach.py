# SPDX-License-Identifier: BSD-3-Clause
"""Attaching a driver: from its description to `torch.<name>`.

All checks come before any change, because neither torch nor the core can undo the changes: the installed table, the
name of PrivateUse1, the registrations, `torch.<name>` and the generated methods. If one of these steps fails, attaching
the same driver with the same options again continues at that step.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType

import torch
from torch.utils.backend_registration import generate_methods_for_privateuse1_backend, rename_privateuse1_backend

from torch_outboard import _compat
from torch_outboard._build import check_torch_version
from torch_outboard._device_name import check_free
from torch_outboard._discovery import driver_instance
from torch_outboard._errors import RegistrationError
from torch_outboard._exit import prepare_exit
from torch_outboard._install import entries_of, install
from torch_outboard._kernels import register_kernels
from torch_outboard._settings import Settings
from torch_outboard._variables import warn_of_unknown_variables
from torch_outboard.amp import check_description, register
from torch_outboard.driver import Driver

__all__ = ["attach", "attach_by", "attached_by", "attached_driver", "is_attached_as"]


@dataclass
class _Attachment:
    """The driver of this process and the progress of its attachment."""

    driver: Driver
    asked_as: str  # the name or target passed to attach
    by: str  # the caller: "at FILE:LINE", "by the entry point …"
    settings: Settings
    policies: dict[str, str]  # autocast policies that differ from torch's lists
    done: set[str] = field(default_factory=set)
    module: ModuleType | None = None
    is_complete: bool = False

    def is_same(self, driver: Driver) -> bool:
        return self.is_same_kind(driver) and self.driver.option_values == driver.option_values

    def is_same_kind(self, driver: Driver) -> bool:
        return type(self.driver) is type(driver) and self.driver.name == driver.name


_lock = threading.RLock()
_attachment: _Attachment | None = None


def attach(driver: str | type[Driver] | Driver, /, **options: object) -> ModuleType:
    """Make a driver's devices PyTorch devices, and return `torch.<name>`.

    Attaching opens no device. A process has one driver. Attaching the same driver with the same options again does
    nothing. Other options replace the first ones as long as no device is in use. Attaching another driver raises.

    Parameters
    ----------
    driver : str, type or Driver
        An installed driver's name, "package.module:Class", a subclass of `Driver`, or an instance of a subclass.
    **options
        The driver's options; see `outboard info`. An option not passed here is read from OUTBOARD_<NAME>_<OPTION>.

    Raises
    ------
    RegistrationError
        The description cannot be attached; nothing was changed unless the message says so.
    ValueError
        OUTBOARD_BLOCKING, OUTBOARD_FALLBACK, OUTBOARD_PROVIDERS or OUTBOARD_SANITIZER has an unknown value, or the
        driver's `autocast` or `providers` is invalid.
    ImportError
        The extension is not built, or was built for another torch.
    """
    return attach_by(driver, options, f"at {_caller()}")


def attach_by(driver: str | type[Driver] | Driver, options: dict[str, object], by: str) -> ModuleType:
    """Do what `attach` does, and record `by` as the caller, for the error message of a second attach."""
    global _attachment
    with _lock:
        instance = driver_instance(driver, options)
        if _attachment is None:
            _attachment = _begin(instance, driver if isinstance(driver, str) else instance.name, by)
        elif not _attachment.is_same(instance):
            _change_options(_attachment, instance, by)
        return _finish(_attachment)


def _begin(driver: Driver, asked_as: str, by: str) -> _Attachment:
    """Check everything, in the order in which errors are raised, and install the driver's table."""
    # Imported here, because generators do not exist before a driver does.
    from torch_outboard.compile.generators import check_generator

    settings = Settings.of(driver)
    check_free(driver.name)
    entries = entries_of(driver)
    check_torch_version()
    policies = check_description(driver)
    check_generator(driver)
    warn_of_unknown_variables(driver.name, type(driver).options)
    install(driver, entries)
    return _Attachment(driver, asked_as, by, settings, policies)


def _steps(attachment: _Attachment) -> tuple[tuple[str, Callable[[], object]], ...]:
    """Return the changes that follow the installation of the table, in the order that torch needs."""
    # Imported only now: these modules need the core, whose torch had not been checked before.
    from torch_outboard import _C
    from torch_outboard.compile.register import register as register_compiler
    from torch_outboard.distributed import register as register_backend

    driver = attachment.driver
    name = driver.name
    return (
        ("settings", lambda: attachment.settings.apply(driver)),
        ("exit", lambda: prepare_exit(driver)),
        ("rename", lambda: rename_privateuse1_backend(name)),
        ("register", _C.register_with_torch),
        ("autograd", _begin_autograd),
        ("module", lambda: _add_module(attachment)),
        ("methods", _generate_methods),
        ("kernels", lambda: register_kernels(driver)),
        ("autocast", lambda: register(driver, attachment.policies)),
        ("compat", lambda: _compat.apply(name)),
        ("distributed", lambda: register_backend(name)),
        ("compile", lambda: register_compiler(driver)),
    )


# These steps query the driver, so they are repeated after a change of options.
_STEPS_OF_OPTIONS = {"register", "kernels", "compile"}


def _finish(attachment: _Attachment) -> ModuleType:
    """Run the steps that are not done yet."""
    for step, action in _steps(attachment):
        if step not in attachment.done:
            action()
            attachment.done.add(step)
    attachment.is_complete = True
    assert attachment.module is not None
    return attachment.module


def _add_module(attachment: _Attachment) -> None:
    from torch_outboard.device import build_module  # as in `_steps`

    attachment.module = build_module(attachment.driver)
    torch._register_device_module(attachment.driver.name, attachment.module)  # type: ignore[no-untyped-call]


def _begin_autograd() -> None:
    """Start the devices' autograd threads if a backward pass has run: torch counts devices only in its first pass."""
    from torch_outboard import _C

    if _C.has_autograd_begun():
        _C.begin_autograd_threads(_C.device_count())


def _generate_methods() -> None:
    # Storage methods refuse no dtype: they move bytes, which needs no kernel.
    generate_methods_for_privateuse1_backend(
        for_tensor=True, for_module=True, for_packed_sequence=True, for_storage=True, unsupported_dtype=[]
    )


def _change_options(attachment: _Attachment, second: Driver, by: str) -> None:
    """Change the attached driver's options. Raise RegistrationError for another driver or if a device is in use."""
    from torch_outboard import _C

    first = attachment.driver
    if not attachment.is_same_kind(second):
        raise RegistrationError(
            f"driver {first.name!r} is already attached, {attachment.by}, and PyTorch supports only one "
            f"such device type per process. Start another process for {second.name!r}"
        )
    if _C.is_any_device_touched():
        raise RegistrationError(
            f"driver {first.name!r} is already attached, {attachment.by}, with the options {first.option_values}. "
            f"They cannot change to {second.option_values} after a device has been used: attach with the new options "
            "earlier, or in another process"
        )
    install(second, entries_of(second))
    attachment.driver, attachment.by = second, by
    attachment.done -= _STEPS_OF_OPTIONS
    attachment.is_complete = False


def attached_driver() -> Driver | None:
    """Return the attached driver, or None if no driver is attached."""
    return _attachment.driver if _attachment is not None and _attachment.is_complete else None


def attached_by() -> str:
    """Return the place where the driver was attached, such as "at FILE:LINE", or "" if no driver is attached."""
    return _attachment.by if _attachment is not None else ""


def is_attached_as(name: str) -> bool:
    """Return whether attach(name) would select the attached driver."""
    return (
        attached_driver() is not None
        and _attachment is not None
        and name
        in (
            _attachment.asked_as,
            _attachment.driver.name,
        )
    )


def _caller() -> str:
    """Return the calling line outside this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "torch_outboard":
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
