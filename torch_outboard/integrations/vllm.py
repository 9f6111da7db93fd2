# SPDX-License-Identifier: BSD-3-Clause
"""vLLM on the attached driver's devices, through vLLM's own platform interface.

vLLM chooses its platform when it is first needed, asks the entry points of the group `vllm.platform_plugins`, and
prefers any plug-in to its own platforms. This package's plug-in therefore stays inactive unless the variable
OUTBOARD_VLLM names a driver; `use()` sets it for this process.
"""

from __future__ import annotations

import os
from importlib.metadata import version
from importlib.util import find_spec
from types import ModuleType

from torch_outboard._attach import attach_by, attached_driver, is_attached_as
from torch_outboard._errors import RegistrationError
from torch_outboard.integrations._patched import ActiveIntegration, attached_name, running

__all__ = ["use"]

VARIABLE = "OUTBOARD_VLLM"
_PLUGIN = "outboard"  # the name of the entry point
# The earliest version that was tested. It needs functions that replace Triton kernels, which older
# versions lack.
_OLDEST = (0, 32)


def use() -> ActiveIntegration:
    """Make vLLM use the attached driver's devices, in this process; return an object that undoes this.

    Call it before `import vllm`. Raises RegistrationError if no driver is attached, if vLLM is missing, or if an
    environment variable names another driver or platform. If vLLM is older than 0.32, or has already chosen its
    platform, `use` or `import vllm` raises it too.
    """
    return running("vllm", _start)


def _start() -> ActiveIntegration:
    name = attached_name("vllm.use()")
    if find_spec("vllm") is None:
        raise RegistrationError("vLLM is not installed: docs/integrations.md says how to install it")
    _check_variables(name)
    using = ActiveIntegration()
    try:
        using.when_imported("vllm.platforms", _check)
        if VARIABLE not in os.environ:
            using.set_variable(VARIABLE, name, "the plug-in offers its platform only if the variable is set")
        if "VLLM_ENABLE_V1_MULTIPROCESSING" not in os.environ:
            using.set_variable("VLLM_ENABLE_V1_MULTIPROCESSING", "0", "run the engine in the process with the driver")
    except BaseException:  # re-raised, after undoing everything
        using.close()
        raise
    return using


def _check_variables(name: str) -> None:
    """Raise RegistrationError if a variable names another driver, or prevents vLLM from loading the plug-in."""
    driver, plugins = os.environ.get(VARIABLE), os.environ.get("VLLM_PLUGINS")
    wrong = {
        VARIABLE: driver is not None and not is_attached_as(driver),
        "VLLM_TARGET_DEVICE": os.environ.get("VLLM_TARGET_DEVICE") == "cpu",
        "VLLM_PLUGINS": plugins is not None and _PLUGIN not in plugins.split(","),
    }
    for variable in (key for key, is_wrong in wrong.items() if is_wrong):
        raise RegistrationError(
            f"{variable} selects {os.environ[variable]!r}, but use() selects {name!r}. Unset {variable}."
        )


def _check(platforms: ModuleType) -> None:
    check_version()
    chosen = vars(platforms).get("_current_platform")
    if chosen is not None and type(chosen).__name__ != "OutboardPlatform":
        raise RegistrationError(
            f"vLLM has chosen {type(chosen).__name__} already: call use() before `import vllm`, in a new process"
        )


def check_version() -> None:
    """Raise RegistrationError if the installed vLLM is too old."""
    installed = version("vllm")
    numbers = tuple(int(part) for part in installed.partition("+")[0].split(".")[:2])
    if numbers < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        raise RegistrationError(f"vLLM {installed} is too old: torch-outboard's platform needs {oldest} or later")


def attach_for_platform() -> str:
    """Attach the driver that OUTBOARD_VLLM names, unless it is attached, and return the name of its devices.

    Processes that vLLM starts know the driver only from the variable. Raises RegistrationError if another driver is
    attached, and any error from attaching.
    """
    check_version()
    named = os.environ[VARIABLE]
    if not is_attached_as(named):
        attach_by(named, {}, f"by {VARIABLE}={named}")
    driver = attached_driver()
    assert driver is not None
    return driver.name
