# SPDX-License-Identifier: BSD-3-Clause
"""The driver that a command attaches for the whole of its process."""

from __future__ import annotations

from typing import Any

import click

from torch_outboard.cli.info import parse_options

__all__ = ["attach_for_plans"]


def attach_for_plans(driver: str, options: tuple[str, ...]) -> Any:
    """Attach a driver whose device gets plans built, and return the device's module.

    Raises ClickException if the driver cannot be attached, or has no device.
    """
    from torch_outboard._attach import attach
    from torch_outboard._errors import RegistrationError

    given = parse_options(options)
    try:
        module: Any = attach(driver, **given)
    except (ImportError, RegistrationError) as error:
        raise click.ClickException(str(error)) from error
    if module.device_count() == 0:
        raise click.ClickException(f"the driver {driver!r} has no device here")
    return module
