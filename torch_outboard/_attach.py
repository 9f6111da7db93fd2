# SPDX-License-Identifier: BSD-3-Clause
"""Attaching a driver: from its description to `torch.<name>`.

All checks come before any change, because neither torch nor the core can undo the changes: the installed table, the
name of PrivateUse1, the registrations, `torch.<name>` and the generated methods. If one of these steps fails, attaching
the same driver with the same options again continues at that step.
"""

from __future__ import annotations

import atexit
import keyword
import os
import re
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.utils.backend_registration import generate_methods_for_privateuse1_backend, rename_privateuse1_backend

from torch_outboard import _compat
from torch_outboard._build import check_torch_version
from torch_outboard._direct_calls import refuse_in_captures
from torch_outboard._discovery import find_driver
from torch_outboard._errors import RegistrationError
from torch_outboard._options import OptionValue, nearest, to_text
from torch_outboard._properties import to_table
from torch_outboard.amp import check_description, register
from torch_outboard.driver import Driver, driver_entries

__all__ = ["attach", "attach_by", "attached_by", "attached_driver", "is_attached_as", "providers_of"]

_PROBE_OPENS = 1  # OB_DRIVER_PROBE_OPENS
FALLBACK_MODES = ("warn", "error", "silent")
SANITIZER_MODES = ("0", "1", "raise")
PROVIDERS = ("native", "generated", "host")


@dataclass
class _Attachment:
    """The driver of this process and the progress of its attachment."""

    driver: Driver
    asked_as: str  # the name or the target that attach was given
    by: str  # who attached it: "at FILE:LINE", "by the entry point …"
    policies: dict[str, str]  # of autocast, where they depart from torch's lists
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
    """Do what `attach` does, and record `by` as the caller for the error message of a second attach."""
    from torch_outboard._variables import warn_of_unknown_variables
    from torch_outboard.compile.generators import check_generator

    global _attachment
    with _lock:
        described = _describe(driver, options)
        if _attachment is not None:
            if not _attachment.is_same(described):
                _take_options(_attachment, described, by)
            return _finish(_attachment)
        fallback = _fallback_mode()
        sanitizer = _sanitizer_mode()
        is_blocking = _is_set("OUTBOARD_BLOCKING", False)
        build_threads, shows_builds = _build_threads(), _is_set("OUTBOARD_BUILD_PROGRESS", True)
        providers = providers_of(described)
        _check_name(described.name)
        entries = _entries(described)
        check_torch_version()
        policies = check_description(described)
        check_generator(described)
        warn_of_unknown_variables(described.name, type(described).options)
        _install(described, entries)
        asked_as = driver if isinstance(driver, str) else described.name
        _attachment = _Attachment(described, asked_as, by, policies)
        _run(_attachment, "fallback", lambda: _set_fallback(fallback))
        _run(_attachment, "providers", lambda: _set_providers(described, providers))
        _run(_attachment, "blocking", lambda: _set_blocking(is_blocking))
        _run(_attachment, "builds", lambda: _set_builds(described.name, build_threads, shows_builds))
        _run(_attachment, "sanitizer", lambda: _set_sanitizer(sanitizer))
        return _finish(_attachment)


def attached_driver() -> Driver | None:
    """Return the attached driver, or None if no driver is attached."""
    return _attachment.driver if _attachment is not None and _attachment.is_complete else None


def attached_by() -> str:
    """Return who attached the driver, as "at FILE:LINE"; "" if no driver is attached."""
    return _attachment.by if _attachment is not None else ""


def is_attached_as(name: str) -> bool:
    """Return whether `name` names the attached driver, as attach(name) does."""
    return (
        attached_driver() is not None
        and _attachment is not None
        and name
        in (
            _attachment.asked_as,
            _attachment.driver.name,
        )
    )


def _describe(driver: str | type[Driver] | Driver, options: dict[str, object]) -> Driver:
    if isinstance(driver, Driver):
        if options:
            raise RegistrationError(
                f"driver {driver.name!r} cannot be attached: options are given to the class, "
                f"attach({type(driver).__name__}(…)), not beside an instance"
            )
        if not hasattr(driver, "option_values"):
            raise RegistrationError(
                f"driver {driver.name!r} cannot be attached: {type(driver).__name__}.__init__ must call "
                "super().__init__(**options)"
            )
        return driver
    found = find_driver(driver) if isinstance(driver, str) else driver
    if not (isinstance(found, type) and issubclass(found, Driver)):
        raise TypeError(f"a driver is a name or a subclass of torch_outboard.Driver, not {found!r}")
    return found(**options)


def _caller() -> str:
    """Return the calling line outside this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "torch_outboard":
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _take_options(attachment: _Attachment, second: Driver, by: str) -> None:
    """Give the attached driver other options; raise RegistrationError for another driver or if a device is in use."""
    from torch_outboard import _C

    first = attachment.driver
    if not attachment.is_same_kind(second):
        raise RegistrationError(
            f"driver {first.name!r} is already attached, {attachment.by}, and PyTorch has one such device "
            f"type per process. Start another process for {second.name!r}"
        )
    if _C.is_any_device_touched():
        raise RegistrationError(
            f"driver {first.name!r} is already attached, {attachment.by}, with the options {first.option_values}, and "
            f"its devices have been used since: {second.option_values} need another process, or an attach before that"
        )
    _install(second, _entries(second))
    attachment.driver, attachment.by = second, by
    # These steps ask the driver itself.
    attachment.done -= {"register", "kernels", "compile"}
    attachment.is_complete = False


def _fallback_mode() -> str:
    mode = os.environ.get("OUTBOARD_FALLBACK") or "warn"
    if mode not in FALLBACK_MODES:
        raise ValueError(f"OUTBOARD_FALLBACK is {', '.join(FALLBACK_MODES[:-1])} or {FALLBACK_MODES[-1]}, not {mode!r}")
    return mode


def _sanitizer_mode() -> str:
    mode = os.environ.get("OUTBOARD_SANITIZER") or "0"
    if mode not in SANITIZER_MODES:
        choice = f"{', '.join(SANITIZER_MODES[:-1])} or {SANITIZER_MODES[-1]}"
        raise ValueError(f"OUTBOARD_SANITIZER is {choice}, not {mode!r}")
    return mode


def _is_set(variable: str, default: bool) -> bool:
    value = os.environ.get(variable) or str(int(default))
    if value not in ("0", "1"):
        raise ValueError(f"{variable} is 0 or 1, not {value!r}")
    return value == "1"


def _build_threads() -> int:
    """Return how many threads build programs; 0 if each caller waits for its program."""
    text = os.environ.get("OUTBOARD_BUILD_THREADS") or "0"
    if not text.isdecimal():
        raise ValueError(f"OUTBOARD_BUILD_THREADS is a number of threads, 0 or more, not {text!r}")
    return int(text)


def providers_of(driver: Driver) -> tuple[str, ...] | None:
    """Return the chain that OUTBOARD_PROVIDERS or the driver names, or None if neither names one.

    An unknown name, another order, or "generated" without a kernel generator raises ValueError.
    """
    text = os.environ.get("OUTBOARD_PROVIDERS")
    if not text and driver.providers is None:
        return None
    what = "OUTBOARD_PROVIDERS" if text else f"`providers` of the driver {driver.name!r}"
    names = tuple(name.strip() for name in text.split(",")) if text else tuple(driver.providers or ())
    for name in names:
        if name not in PROVIDERS:
            raise ValueError(f"{what} names {', '.join(PROVIDERS)}, not {name!r}.{nearest(name, list(PROVIDERS))}")
    if list(names) != [name for name in PROVIDERS if name in names]:
        raise ValueError(f"{what} names each once, in the order {', '.join(PROVIDERS)}, not {', '.join(names)}")
    if "generated" in names and driver.kernel_generator is None:
        raise ValueError(
            f"{what} names 'generated', and the driver {driver.name!r} has no generator of kernels: set "
            "`kernel_generator` in its Driver class, or leave 'generated' out"
        )
    return names


def chain_of(driver: Driver, index: int) -> tuple[str, ...]:
    """Return the providers that the operators of an attached driver's device ask, in this order."""
    from torch_outboard import _C

    named = providers_of(driver)
    if named is not None:
        return named
    is_reached = _C.reaches_memory(index)
    generates = driver.kernel_generator is not None and not is_reached
    return ("native", *(["generated"] if generates else []), *(["host"] if is_reached else []))


def _check_name(name: str) -> None:
    taken = torch._C._get_privateuse1_backend_name()
    if taken != "privateuseone":
        if taken == _earlier_driver():
            raise RegistrationError(
                f"driver {name!r} cannot be attached: torch_outboard has attached {taken!r} in this process already, "
                "and its modules were removed from sys.modules and imported again since. Keep the first import, or "
                "start another process"
            )
        raise RegistrationError(
            f"driver {name!r} cannot be attached: another package has taken PyTorch's only free device type, as "
            f"{taken!r}. Uninstall it, or keep it from loading itself with TORCH_DEVICE_BACKEND_AUTOLOAD=0 and attach "
            "by torch_outboard.attach."
        )
    check_name(name)


def _earlier_driver() -> str:
    """Return the driver that an earlier import of this package has attached, or "" if there is none."""
    try:
        from torch_outboard import _C
    except ImportError:  # it isn't built: that is told later
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


def _entries(driver: Driver) -> dict[str, Callable[..., Any] | int]:
    entries = driver_entries(driver)
    properties = entries.get("device_properties")
    if properties is not None and not isinstance(properties, int):
        entries["device_properties"] = lambda device: to_table(properties(device))
    return entries


def _install(driver: Driver, entries: dict[str, Callable[..., Any] | int]) -> None:
    from torch_outboard import _C

    if driver.library is not None:
        _C.attach_library(os.fspath(driver.library), driver.name, _texts(driver.option_values), entries)
    else:
        flags = _PROBE_OPENS if driver.probe_opens else 0
        _C.attach_entries(driver.name, entries, driver.self_address, *driver.abi, flags)
    refuse_in_captures(driver, entries)


def _texts(options: dict[str, OptionValue | None]) -> dict[str, str]:
    return {name: to_text(value) for name, value in options.items() if value is not None}


def _set_fallback(mode: str) -> None:
    from torch_outboard import _C

    _C.set_fallback_mode(mode)


def _set_providers(driver: Driver, names: tuple[str, ...] | None) -> None:
    from torch_outboard import _C

    if names is None:
        where_unreachable = 2
        _C.set_providers(1, where_unreachable if driver.kernel_generator is not None else 0, 1)
    else:
        _C.set_providers(*(int(name in names) for name in PROVIDERS))


def _set_blocking(waits: bool) -> None:
    from torch_outboard import _C

    _C.set_waits_for_calls(waits)


def _set_builds(name: str, threads: int, shows: bool) -> None:
    from torch_outboard import _C
    from torch_outboard._sealed import printable_path

    _C.set_build_threads(threads)
    folder = _C.kernel_cache_folder()
    kept = f"kept for the next run in {printable_path(Path(folder))}" if folder else "kept nowhere"
    _C.show_builds(f"building kernels for {name}" if shows else "", kept)


def _set_sanitizer(mode: str) -> None:
    if mode != "0":
        from torch_outboard import sanitizer

        sanitizer.enable(is_raising=mode == "raise")


def _run(attachment: _Attachment, step: str, action: Callable[[], object]) -> None:
    if step not in attachment.done:
        action()
        attachment.done.add(step)


def _prepare_exit(driver: Driver) -> None:
    if driver.kernel_generator is not None:
        # The builder of plans needs this module, and a function that atexit
        # calls cannot import it any more.
        import concurrent.futures.process  # noqa: F401
    atexit.register(_shut_down)


def _shut_down() -> None:
    """Stop the builder of plans, if any plan was built, and then end the use of the devices."""
    from torch_outboard import _C

    if (builder := sys.modules.get("torch_outboard.kernels.builder")) is not None:
        builder.end()
    _C.shut_down()


def _finish(attachment: _Attachment) -> ModuleType:
    """Run the remaining steps, in the order that torch needs."""
    from torch_outboard import _C
    from torch_outboard.compile.register import register as register_compiler
    from torch_outboard.device import build_module
    from torch_outboard.distributed import register as register_backend

    driver = attachment.driver
    name = driver.name
    _run(attachment, "exit", lambda: _prepare_exit(driver))
    _run(attachment, "rename", lambda: rename_privateuse1_backend(name))
    _run(attachment, "register", _C.register_with_torch)
    _run(attachment, "autograd", _begin_autograd)
    module = attachment.module or build_module(driver)
    attachment.module = module
    _run(attachment, "module", lambda: torch._register_device_module(name, module))  # type: ignore[no-untyped-call]
    _run(attachment, "methods", lambda: _generate_methods(driver))
    _run(attachment, "kernels", lambda: _register_kernels(driver))
    _run(attachment, "autocast", lambda: register(driver, attachment.policies))
    _run(attachment, "compat", lambda: _compat.apply(name))
    _run(attachment, "distributed", lambda: register_backend(name))
    _run(attachment, "compile", lambda: register_compiler(driver))
    attachment.is_complete = True
    return module


def _begin_autograd() -> None:
    """Start the devices' autograd threads if a backward pass has run before: torch counts devices only in the first."""
    from torch_outboard import _C

    if _C.has_autograd_begun():
        _C.begin_autograd_threads(_C.device_count())


def _generate_methods(driver: Driver) -> None:
    # Storage methods refuse nothing by dtype: moving bytes needs no kernel.
    generate_methods_for_privateuse1_backend(
        for_tensor=True, for_module=True, for_packed_sequence=True, for_storage=True, unsupported_dtype=[]
    )


def _register_kernels(driver: Driver) -> None:
    from torch_outboard._kernels import register_kernel

    if hidden := sorted(set(type(driver).kernels) - set(driver.kernels)):
        raise RegistrationError(
            f"driver {driver.name!r} replaces the attribute `kernels` of its class, which names kernels for "
            f"{', '.join(hidden)}. Give the instance's attribute another name"
        )
    for op, kernel in driver.kernels.items():
        register_kernel(op, kernel)
