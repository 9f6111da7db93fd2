# SPDX-License-Identifier: BSD-3-Clause
"""Attach a driver for the backend "outboard", or during `import torch`, which an exception would break."""

from __future__ import annotations

import os
import sys
import warnings

__all__ = ["attach_for_backend", "autoload", "autoload_from_environment"]

VARIABLE = "OUTBOARD_DRIVER"

_warned: set[str] = set()


def autoload_from_environment() -> None:
    """Attach the driver named by OUTBOARD_DRIVER. On failure, warn once, with the cause."""
    name = os.environ.get(VARIABLE)
    if name:
        _attach_or_warn(name, f"{VARIABLE}={name}", f"by {VARIABLE}={name}")


def attach_for_backend() -> None:
    """Attach the driver named by OUTBOARD_DRIVER, because a group requests the backend "outboard".

    Raises RegistrationError if the variable is not set, and any error from attaching.
    """
    from torch_outboard._attach import attach_by
    from torch_outboard._errors import RegistrationError

    name = os.environ.get(VARIABLE)
    if not name:
        raise RegistrationError(
            'the backend "outboard" needs a device: call torch_outboard.attach(…) before init_process_group, or set '
            f"{VARIABLE}"
        )
    attach_by(name, {}, f'by {VARIABLE}={name}, for the backend "outboard"')


def autoload(name: str) -> None:
    """Attach a driver for its vendor's entry point of the group `torch.backends`.

    OUTBOARD_DRIVER takes precedence over every vendor; otherwise the first vendor's driver is attached. The other
    vendors warn once. Nothing is raised.
    """
    wanted = os.environ.get(VARIABLE)
    if wanted and wanted != name:
        _warn_once(name, f"torch-outboard does not load driver {name!r}, because {VARIABLE} names {wanted!r}")
        return
    # Not at the top of the module: most processes that import torch attach nothing.
    from torch_outboard._attach import attached_by, attached_driver, is_attached_as

    first = attached_driver()
    if first is not None and not is_attached_as(name):
        _warn_once(
            name,
            f"torch-outboard does not load driver {name!r}: {first.name!r} is attached, {attached_by()}, and a process "
            f"can use only one driver. To use {name!r}, set {VARIABLE}={name}.",
        )
        return
    module = sys._getframe(1).f_globals.get("__name__", "")
    _attach_or_warn(name, f"loading driver {name!r} automatically", _entry_point(module))


def _entry_point(module: str) -> str:
    """Return a description of the `torch.backends` entry point that is defined in `module`, with its package."""
    from importlib.metadata import entry_points

    for entry in entry_points(group="torch.backends"):
        if entry.module == module:
            package = "" if entry.dist is None else f" of package {entry.dist.name}"
            return f"by the entry point {entry.name!r}{package}"
    return f"by torch_outboard.autoload in {module}"


def _attach_or_warn(name: str, action: str, by: str) -> None:
    from torch_outboard._attach import attach_by, is_attached_as

    if is_attached_as(name):
        return  # already attached explicitly, maybe with options
    try:
        attach_by(name, {}, by)
    except Exception as error:  # noqa: BLE001 - warn with the cause, and let `import torch` continue
        _warn_once(name, f"{action} failed: {type(error).__name__}: {error}")


def _warn_once(name: str, message: str) -> None:
    if name in _warned:
        return
    _warned.add(name)
    try:
        warnings.warn(message, UserWarning, stacklevel=3)
    except UserWarning:  # warnings are errors in this process, and must not interrupt `import torch`
        print(f"Warning: {message}", file=sys.stderr)
