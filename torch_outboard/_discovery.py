# SPDX-License-Identifier: BSD-3-Clause
"""Discovery of drivers: entry points of the group `torch_outboard.drivers`, or "package.module:Class"."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

from torch_outboard._errors import RegistrationError
from torch_outboard._options import nearest
from torch_outboard.driver import Driver

__all__ = ["GROUP", "FoundDriver", "attaches_itself", "driver_instance", "find_driver", "found_drivers"]

GROUP = "torch_outboard.drivers"
# torch's group of entry points, which `import torch` calls, and the module of this package's entry
# point.
AUTOLOAD_GROUP = "torch.backends"
AUTOLOAD_MODULE = "torch_outboard_autoload"


@dataclass(frozen=True)
class FoundDriver:
    """A driver in an installed distribution; loading the driver imports the distribution's module."""

    name: str
    target: str  # "package.module:Class"
    distribution: str

    def load(self) -> type[Driver]:
        """Import the class. Raise RegistrationError with the cause if the import fails."""
        return _load(self.name, self.target)


def found_drivers() -> dict[str, FoundDriver]:
    """Return the drivers of installed distributions by name, without importing them."""
    from importlib.metadata import entry_points

    drivers: dict[str, FoundDriver] = {}
    for entry in sorted(entry_points(group=GROUP)):
        distribution = entry.dist.name if entry.dist is not None else "unknown"
        drivers.setdefault(entry.name, FoundDriver(entry.name, entry.value, distribution))
    return drivers


def attaches_itself() -> bool:
    """Return whether OUTBOARD_DRIVER or an entry point may attach a driver during `import torch`."""
    from importlib.metadata import entry_points

    return bool(os.environ.get("OUTBOARD_DRIVER")) or any(
        entry.module != AUTOLOAD_MODULE for entry in entry_points(group=AUTOLOAD_GROUP)
    )


def find_driver(name: str) -> type[Driver]:
    """Return a driver's class by its name, its devices' name, or "package.module:Class".

    An unknown name raises RegistrationError.
    """
    if ":" in name:
        return _load(name, name)
    drivers = found_drivers()
    if name in drivers:
        return drivers[name].load()
    if (of_device := _by_device(name, drivers.values())) is not None:
        return of_device
    if (distribution := _distribution_of(name)) is not None:
        raise RegistrationError(f"driver {name!r} is not installed: pip install {distribution}")
    raise RegistrationError(
        f"no driver is called {name!r}.{nearest(name, list(drivers))} Drivers are found through the entry-point "
        f"group {GROUP!r}; `outboard info` lists them."
    )


def driver_instance(driver: str | type[Driver] | Driver, options: dict[str, object]) -> Driver:
    """Return the instance passed to `attach`, or create one from a class or a name with these options."""
    if isinstance(driver, Driver):
        if options:
            raise RegistrationError(
                f"driver {driver.name!r} cannot be attached: pass the options to "
                f"{type(driver).__name__}(…), because attach() takes none with an instance"
            )
        if not hasattr(driver, "option_values"):
            raise RegistrationError(
                f"driver {driver.name!r} cannot be attached: {type(driver).__name__}.__init__ must call "
                "super().__init__(**options)"
            )
        return driver
    driver_class = find_driver(driver) if isinstance(driver, str) else driver
    if not (isinstance(driver_class, type) and issubclass(driver_class, Driver)):
        raise TypeError(f"a driver must be a name or a subclass of torch_outboard.Driver, not {driver_class!r}")
    return driver_class(**options)


def _by_device(name: str, drivers: Iterable[FoundDriver]) -> type[Driver] | None:
    """Return the driver whose devices have this name, or None; skip drivers that cannot be loaded."""
    for candidate in drivers:
        with contextlib.suppress(RegistrationError):
            driver = candidate.load()
            if driver.name == name:
                return driver
    return None


def _distribution_of(name: str) -> str | None:
    """Return the distribution of this project that an extra with the driver's name installs, or None."""
    from importlib.metadata import PackageNotFoundError, requires

    with contextlib.suppress(PackageNotFoundError):  # an unbuilt checkout
        for requirement in requires("torch-outboard") or ():
            pattern = rf"""(torch-outboard-[\w-]+)\s*;\s*extra == (['"]){re.escape(name)}\2"""
            if (match := re.fullmatch(pattern, requirement)) is not None:
                return match[1]
    return None


def _load(name: str, target: str) -> type[Driver]:
    module_name, _, attribute = target.partition(":")
    try:
        driver = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise RegistrationError(f"driver {name!r} cannot be loaded from {target!r}: {error}") from error
    if not (isinstance(driver, type) and issubclass(driver, Driver)):
        raise RegistrationError(f"driver {name!r}: {target!r} is not a subclass of torch_outboard.Driver")
    return driver
