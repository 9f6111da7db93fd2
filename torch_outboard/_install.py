# SPDX-License-Identifier: BSD-3-Clause
"""Installing a driver's table in the core."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from torch_outboard._direct_calls import refuse_in_captures
from torch_outboard._options import OptionValue, to_text
from torch_outboard._properties import to_table
from torch_outboard.driver import Driver, driver_entries

__all__ = ["entries_of", "install"]

_PROBE_OPENS = 1  # OB_DRIVER_PROBE_OPENS


def entries_of(driver: Driver) -> dict[str, Callable[..., Any] | int]:
    """Return the functions and numbers of a driver's table that are defined in Python."""
    entries = driver_entries(driver)
    properties = entries.get("device_properties")
    if properties is not None and not isinstance(properties, int):
        entries["device_properties"] = lambda device: to_table(properties(device))
    return entries


def install(driver: Driver, entries: dict[str, Callable[..., Any] | int]) -> None:
    """Install the table, or replace one whose devices are unused."""
    from torch_outboard import _C

    if driver.library is not None:
        _C.attach_library(os.fspath(driver.library), driver.name, _texts(driver.option_values), entries)
    else:
        flags = _PROBE_OPENS if driver.probe_opens else 0
        _C.attach_entries(driver.name, entries, driver.self_address, *driver.abi, flags)
    refuse_in_captures(driver, entries)


def _texts(options: dict[str, OptionValue | None]) -> dict[str, str]:
    return {name: to_text(value) for name, value in options.items() if value is not None}
