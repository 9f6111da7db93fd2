# SPDX-License-Identifier: BSD-3-Clause
"""The driver that a command attaches for the whole of its process."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

import click

from torch_outboard.cli.info import parse_options

__all__ = ["attach_for_plans", "driver_with_schedules", "set_variables"]


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


def set_variables(variables: Mapping[str, str], **defaults: str) -> None:
    """Set environment variables until the running command ends; a default does not replace the user's value."""
    unset = {name: value for name, value in defaults.items() if name not in os.environ}
    click.get_current_context().with_resource(_changed({**unset, **variables}))


@contextlib.contextmanager
def _changed(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def driver_with_schedules() -> str:
    """Return the installed driver that has schedules; raise click.UsageError if there is none, or several."""
    from torch_outboard._discovery import found_drivers
    from torch_outboard._errors import RegistrationError

    having = []
    for name, driver in found_drivers().items():
        try:
            options = driver.load().options
        except RegistrationError:  # a driver for other machines; `outboard info` shows the reason
            continue
        if "schedule" in options:
            having.append(name)
    if len(having) != 1:
        subject = "no installed driver has" if not having else f"several drivers ({', '.join(having)}) have"
        raise click.UsageError(f"{subject} schedules; choose a driver with --driver")
    return having[0]
