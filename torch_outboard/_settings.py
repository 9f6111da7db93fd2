# SPDX-License-Identifier: BSD-3-Clause
"""The settings of a process with a driver: OUTBOARD_ variables of any driver, and the chain of providers.

All settings are read and checked before anything is changed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from torch_outboard._options import nearest
from torch_outboard.driver import Driver

__all__ = ["PROVIDERS", "Settings", "chain_of", "generates_kernels", "providers_of"]

FALLBACK_MODES = ("warn", "error", "silent")
SANITIZER_MODES = ("0", "1", "raise")
PROVIDERS = ("native", "generated", "host")

_BUILD_SECONDS = 300
_WHERE_UNREACHABLE = 2  # GeneratedMode in csrc/ops/providers.h


@dataclass(frozen=True)
class Settings:
    """Settings from the variables and the driver.

    `providers` is None if neither a variable nor the driver names a chain.
    """

    fallback: str
    sanitizer: str
    is_blocking: bool
    build_threads: int | None
    build_seconds: int
    shows_builds: bool
    providers: tuple[str, ...] | None

    @classmethod
    def of(cls, driver: Driver) -> Settings:
        """Read the settings. Raise ValueError for a variable with an unknown value."""
        return cls(
            fallback=_mode("OUTBOARD_FALLBACK", FALLBACK_MODES),
            sanitizer=_mode("OUTBOARD_SANITIZER", SANITIZER_MODES),
            is_blocking=_is_set("OUTBOARD_BLOCKING", False),
            build_threads=_number("OUTBOARD_BUILD_THREADS", "of threads, 0 or more", 0),
            build_seconds=_number("OUTBOARD_BUILD_SECONDS", "of seconds, 1 or more", 1) or _BUILD_SECONDS,
            shows_builds=_is_set("OUTBOARD_BUILD_PROGRESS", True),
            providers=providers_of(driver),
        )

    def apply(self, driver: Driver) -> None:
        """Pass the settings to the core, which must have the driver's table."""
        # These modules need the core, and torch's version was not yet checked when this module was
        # imported.
        from torch_outboard import _C
        from torch_outboard._private_files import printable_path

        _C.set_fallback_mode(self.fallback)
        if self.providers is None:
            _C.set_providers(1, _WHERE_UNREACHABLE if driver.kernel_generator is not None else 0, 1)
        else:
            _C.set_providers(*(int(name in self.providers) for name in PROVIDERS))
        _C.set_waits_for_calls(self.is_blocking)
        if self.build_threads is not None:
            _C.set_build_threads(self.build_threads)
        _C.set_build_limit(self.build_seconds * 1000)
        folder = _C.kernel_cache_folder()
        kept = f"kept for the next run in {printable_path(Path(folder))}" if folder else "not stored"
        _C.show_builds(f"building kernels for {driver.name}" if self.shows_builds else "", kept)
        if self.sanitizer != "0":
            from torch_outboard import sanitizer  # imported here: few programs need it

            sanitizer.enable(is_raising=self.sanitizer == "raise")


def _mode(variable: str, modes: tuple[str, ...]) -> str:
    """Return a variable's value, or the first mode if it is not set."""
    mode = os.environ.get(variable) or modes[0]
    if mode not in modes:
        raise ValueError(f"{variable} must be {', '.join(modes[:-1])} or {modes[-1]}, not {mode!r}")
    return mode


def _is_set(variable: str, default: bool) -> bool:
    value = os.environ.get(variable) or str(int(default))
    if value not in ("0", "1"):
        raise ValueError(f"{variable} must be 0 or 1, not {value!r}")
    return value == "1"


def _number(variable: str, description: str, least: int) -> int | None:
    """Return a variable's number, or None if it is not set."""
    text = os.environ.get(variable)
    if not text:
        return None
    if not text.isdecimal() or int(text) < least:
        raise ValueError(f"{variable} must be a number {description}, not {text!r}")
    return int(text)


def providers_of(driver: Driver) -> tuple[str, ...] | None:
    """Return the chain named by OUTBOARD_PROVIDERS or the driver, or None if neither names one.

    An unknown name, another order, or "generated" without a kernel generator raises ValueError.
    """
    text = os.environ.get("OUTBOARD_PROVIDERS")
    if not text and driver.providers is None:
        return None
    source = "OUTBOARD_PROVIDERS" if text else f"`providers` of the driver {driver.name!r}"
    names = tuple(name.strip() for name in text.split(",")) if text else tuple(driver.providers or ())
    for name in names:
        if name not in PROVIDERS:
            raise ValueError(
                f"{source} must name only {', '.join(PROVIDERS)}, not {name!r}.{nearest(name, list(PROVIDERS))}"
            )
    if list(names) != [name for name in PROVIDERS if name in names]:
        raise ValueError(
            f"{source} must name each provider at most once, in the order {', '.join(PROVIDERS)}, not "
            f"{', '.join(names)}"
        )
    if "generated" in names and driver.kernel_generator is None:
        raise ValueError(
            f"{source} names 'generated', but the driver {driver.name!r} has no kernel generator: set "
            "`kernel_generator` in its Driver class, or omit 'generated'"
        )
    return names


def chain_of(driver: Driver, index: int) -> tuple[str, ...]:
    """Return the providers that operators on an attached driver's device try, in this order."""
    from torch_outboard import _C

    named = providers_of(driver)
    if named is not None:
        return named
    is_reached = _C.reaches_memory(index)
    generates = driver.kernel_generator is not None and not is_reached
    return ("native", *(["generated"] if generates else []), *(["host"] if is_reached else []))


def generates_kernels(driver: Driver, index: int) -> bool:
    """Return True if eager operators try generated kernels first on an attached driver's device."""
    return "generated" in chain_of(driver, index)
