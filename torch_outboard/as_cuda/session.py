# SPDX-License-Identifier: BSD-3-Clause
"""The session that `torch_outboard.as_cuda()` starts and ends: the attached driver, the patches, the function mode."""

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

# The compute capability for processes that are spawned, such as "9.0"; they attach OUTBOARD_DRIVER.
VARIABLE = "OUTBOARD_AS_CUDA"

_running: AsCuda | None = None


class AsCuda:
    """Makes "cuda" the attached driver's device in this process, until `close` or the end of a `with` block."""

    def __init__(self, names: Names, capability: tuple[int, int]) -> None:
        self.device_name = names.name
        self._capability = capability
        self._mode = CudaMode(names)
        self._patching = Patching()
        try:
            replace_all(self._patching, names, capability, self._mode.wrap)
        except BaseException:  # re-raised, with everything undone
            self._patching.undo()
            raise
        self._mode.__enter__()  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Undo all patches. Call it on the thread that started the session, after later modes have exited."""
        global _running
        if _running is not self:
            return
        _running = None
        self._mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self._patching.undo()

    def patches(self) -> dict[str, str]:
        """Return the patched names in torch, each with the reason."""
        return dict(self._patching.reasons)

    def attach_in_children(self, driver: str) -> None:
        """Make spawned child processes attach the driver with this name, and start with as_cuda()."""
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
    """Run programs written for CUDA on a driver's devices, until the result is closed.

    If no driver is attached, `driver` is attached with these options. `capability` is the result of
    torch.cuda.get_device_capability. Patches torch (see `patches()` of the result); call it before the program's own
    modules are imported, because they may keep references to functions of torch.cuda.

    Raises RegistrationError if no driver is attached or named, or a driver other than `driver` is attached. Raises
    NotSupportedError if it was already started, or if torch has CUDA devices and `beside_cuda` is false.
    """
    global _running
    if _running is not None:
        raise NotSupportedError("torch_outboard.as_cuda() is already active: close it before you call it again")
    if torch.version.cuda is not None and torch.cuda.is_available() and not beside_cuda:
        raise NotSupportedError(
            "this torch has CUDA devices, and as_cuda() would hide them: pass beside_cuda=True to accept this"
        )
    if driver is not None:
        attach(driver, **options)  # refuses another driver than the attached one, and other options
    attached = attached_driver()
    if attached is None:
        raise RegistrationError("no driver is attached: name one, as in torch_outboard.as_cuda(NAME)")
    if driver is None and options:
        raise RegistrationError(
            f"the driver {attached.name!r} is already attached, so as_cuda() takes no options: pass them to attach()"
        )
    _running = AsCuda(Names(attached.name), capability)
    return _running


def start_from_environment() -> None:
    """Start as OUTBOARD_AS_CUDA requests. On failure, warn with the cause: an exception would break `import torch`."""
    value = os.environ[VARIABLE]
    try:
        major, minor = map(int, value.split("."))
        start(capability=(major, minor))
    except (ValueError, OutboardError) as error:
        warnings.warn(f"{VARIABLE}={value} has no effect: {error}", UserWarning, stacklevel=2)


def patches() -> dict[str, str]:
    """Return the names in torch that are now patched, each with the reason; empty if as_cuda() is not started."""
    return {} if _running is None else _running.patches()
