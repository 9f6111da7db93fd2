# SPDX-License-Identifier: BSD-3-Clause
"""The driver that a command attaches for the whole of its process."""

from __future__ import annotations

from typing import Any

import click

from torch_outboard.cli.info import parse_options

__all__ = ["attach_for_plans", "driver_with_schedules"]


def attach_for_plans(driver: str, options: tuple[str, ...]) -> Any:
    """Attach a driver whose device gets plans built, and return the device's module.

    Raises ClickException if the driver cannot be attached, or has no device.
    """
    from torch_outboard._attach import attach
    from torch_outboard._errors import RegistrationError

    settings = parse_options(options)
    try:
        module: Any = attach(driver, **settings)
    except (ImportError, RegistrationError) as error:
        raise click.ClickException(str(error)) from error
    if module.device_count() == 0:
        raise click.ClickException(f"the driver {driver!r} has no device here")
    return module


def driver_with_schedules() -> str:
    """Return the installed driver that has schedules; raise click.UsageError if there is none, or several."""
    from torch_outboard._discovery import found_drivers
    from torch_outboard._errors import RegistrationError

    having = []
    for name, found in found_drivers().items():
        try:
            options = found.load().options
        except RegistrationError:  # it is not for this machine, and `outboard info` says why
            continue
        if "schedule" in options:
            having.append(name)
    if len(having) != 1:
        what = "no installed driver has" if not having else f"several drivers have ({', '.join(having)})"
        raise click.UsageError(f"{what} schedules; choose one by --driver")
    return having[0]
