# SPDX-License-Identifier: BSD-3-Clause
"""DeepSpeed on the attached driver's devices, through DeepSpeed's own accelerator interface.

DeepSpeed chooses its accelerator while it is imported, from a list of vendors, and uses the CPU if it finds none.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from torch_outboard._errors import RegistrationError
from torch_outboard.integrations._patched import ActiveIntegration, attached_name, running

__all__ = ["accelerator", "use"]

_VARIABLE = "DS_ACCELERATOR"
_MODULE = "deepspeed.accelerator.real_accelerator"


def use() -> ActiveIntegration:
    """Make DeepSpeed use the attached driver's devices, and the backend "outboard"; return an object that undoes this.

    Call it before `import deepspeed`. Raises RegistrationError if no driver is attached, if DeepSpeed is missing or has
    already chosen its accelerator, if DS_ACCELERATOR names another, or if the installed DeepSpeed requires methods that
    this accelerator lacks.
    """
    return running("deepspeed", _start)


def accelerator() -> Any:
    """Return the attached driver's accelerator, which DeepSpeed uses from now on; raises the same errors as `use`."""
    use()
    from deepspeed.accelerator import get_accelerator

    return get_accelerator()


def _start() -> ActiveIntegration:
    name = attached_name("deepspeed.use()")
    if find_spec("deepspeed") is None:
        raise RegistrationError("DeepSpeed is not installed: pip install deepspeed")
    chosen = os.environ.get(_VARIABLE, name)
    if chosen != name:
        raise RegistrationError(f"{_VARIABLE} selects {chosen!r}, but use() selects {name!r}. Unset {_VARIABLE}.")
    using = ActiveIntegration()
    try:
        using.when_imported(_MODULE, lambda module: _choose(using, module, name))
    except BaseException:  # re-raised, after undoing everything
        using.close()
        raise
    return using


def _choose(using: ActiveIntegration, module: ModuleType, name: str) -> None:
    before = using.found(module, "ds_accelerator")
    if before is not None:
        raise RegistrationError(
            f"DeepSpeed has chosen {before.device_name()!r} already: call use() before `import deepspeed`"
        )
    # Not at the top of the module: the base class is DeepSpeed's.
    from torch_outboard.integrations._deepspeed_accelerator import make_accelerator

    using.set(module, "ds_accelerator", make_accelerator(name), "use the device, not a listed vendor or the CPU")
