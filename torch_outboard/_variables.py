# SPDX-License-Identifier: BSD-3-Clause
"""Warnings for unknown environment variables that look like torch-outboard's."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping

from torch_outboard._discovery import found_drivers
from torch_outboard._options import Option, environment_name, nearest

__all__ = ["warn_of_unknown_variables"]

_PREFIX = "OUTBOARD_"
# The variables that the package itself reads.
VARIABLES = (
    "OUTBOARD_AS_CUDA",
    "OUTBOARD_BLOCKING",
    "OUTBOARD_BUILD_PROGRESS",
    "OUTBOARD_BUILD_SECONDS",
    "OUTBOARD_BUILD_THREADS",
    "OUTBOARD_DRIVER",
    "OUTBOARD_FALLBACK",
    "OUTBOARD_KERNEL_CACHE_DIR",
    "OUTBOARD_KERNEL_PACKS",
    "OUTBOARD_PROVIDERS",
    "OUTBOARD_SANITIZER",
    "OUTBOARD_VLLM",
)


def warn_of_unknown_variables(driver: str, declared: Mapping[str, Option]) -> None:
    """Warn about unknown variables that look like the package's or the attached driver's, because they have no effect.

    Variables of other drivers, OUTBOARD_<NAME>_<OPTION>, are not checked.
    """
    own = [environment_name(driver, name) for name in declared]
    for variable in sorted(os.environ):
        if not variable.startswith(_PREFIX) or variable in (*VARIABLES, *own):
            continue
        known = own if variable.startswith(environment_name(driver, "")) else _suggestions(variable, driver, own)
        if known:
            text = f"unknown environment variable {variable}.{nearest(variable, known)}"
            warnings.warn(text, UserWarning, stacklevel=2)


def _suggestions(variable: str, driver: str, own: list[str]) -> list[str]:
    """Return the known variables that an unknown one may be meant to be, or an empty list."""
    import difflib

    near = difflib.get_close_matches(variable, VARIABLES, n=1, cutoff=0.85)
    name = variable.removeprefix(_PREFIX)[: len(driver)].lower()
    is_misspelt = difflib.SequenceMatcher(None, name, driver).ratio() > 0.6
    if is_misspelt and not any(variable.startswith(environment_name(installed, "")) for installed in found_drivers()):
        near += difflib.get_close_matches(variable, own, n=1, cutoff=0.8)
    return near
