# SPDX-License-Identifier: BSD-3-Clause
"""What `torch_outboard.as_cuda()` starts and ends: the attached driver, the patches, the function mode."""

from __future__ import annotations

import os
import warnings
from types import TracebackType
from typing import Any

import torch

from torch_outboard._attach import attach, attached_driver
from torch_outboard._errors import NotSupportedError, OutboardError, RegistrationError
from torch_outboard._patching import Patching
from torch_outboard.as_cuda.mode import CudaMode
from torch_outboard.as_cuda.names import Names
from torch_outboard.as_cuda.replaced import replace_all

__all__ = ["VARIABLE", "AsCuda", "patches", "start", "start_from_environment"]

# The compute capability of processes that are started afresh, as "9.0"; they attach
# OUTBOARD_DRIVER.
VARIABLE = "OUTBOARD_AS_CUDA"

_running: AsCuda | None = None


class AsCuda:
    """A process in which "cuda" is the attached driver's device. `close`, or the end of a `with`, undoes it."""

    def __init__(self, names: Names, capability: tuple[int, int]) -> None:
        self.device_name = names.name
        self._capability = capability
        self._mode = CudaMode(names)
        self._patching = Patching()
        try:
            replace_all(self._patching, names, capability, self._mode.around)
        except BaseException:  # raised again, with nothing half done
            self._patching.undo()
            raise
        self._mode.__enter__()  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Undo all patches. Close it on the thread that has started it, after modes that were entered later."""
        global _running
        if _running is not self:
            return
        _running = None
        self._mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self._patching.undo()

    def patches(self) -> dict[str, str]:
        """Return what is patched, and why, by its name in torch."""
        return dict(self._patching.reasons)

    def hand_down(self, driver: str) -> None:
        """Let the processes that this one starts afresh attach the driver of this name, and begin with as_cuda()."""
        values = {"OUTBOARD_DRIVER": driver, VARIABLE: ".".join(map(str, self._capability))}
        reason = "processes that are started afresh begin with as_cuda() too"
        self._patching.set_variables(values, "os.environ", reason)

    def __enter__(self) -> AsCuda:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def start(
    driver: str | None = None, *, capability: tuple[int, int] = (9, 0), beside_cuda: bool = False, **options: Any
) -> AsCuda:
    """Let programs that were written for CUDA run on a driver's devices, until the result is closed.

    `driver` is attached, with these options, if no driver is. `capability` is what torch.cuda.get_device_capability
    answers. Patches torch (`patches()` of the result); call it before the program's own modules are imported, since
    they may keep functions of torch.cuda.

    Raises RegistrationError if no driver is attached or named, or another than `driver` is attached, and
    NotSupportedError on a torch that has CUDA devices, unless `beside_cuda` is true, or if it was started before.
    """
    global _running
    if _running is not None:
        raise NotSupportedError("torch_outboard.as_cuda() has been started: close it before you start it again")
    if torch.version.cuda is not None and torch.cuda.is_available() and not beside_cuda:
        raise NotSupportedError(
            'this torch has CUDA devices, which "cuda" would no longer mean: as_cuda(beside_cuda=True) hides them'
        )
    if driver is not None:
        attach(driver, **options)  # which refuses another driver than the attached one, and other options
    attached = attached_driver()
    if attached is None:
        raise RegistrationError("no driver is attached: name one, as in torch_outboard.as_cuda(NAME)")
    if driver is None and options:
        raise RegistrationError(
            f"the driver {attached.name!r} is attached: options are for as_cuda() that attaches one"
        )
    _running = AsCuda(Names(attached.name), capability)
    return _running


def start_from_environment() -> None:
    """Start as OUTBOARD_AS_CUDA says. A failure warns, with the cause: an exception would break `import torch`."""
    value = os.environ[VARIABLE]
    try:
        major, minor = map(int, value.split("."))
        start(capability=(major, minor))
    except (ValueError, OutboardError) as error:
        warnings.warn(f"{VARIABLE}={value} has no effect: {error}", UserWarning, stacklevel=2)


def patches() -> dict[str, str]:
    """Return what is patched now, and why, by its name in torch; nothing, if as_cuda() is not started."""
    return {} if _running is None else _running.patches()
