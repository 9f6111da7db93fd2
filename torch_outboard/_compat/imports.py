# SPDX-License-Identifier: BSD-3-Clause
"""All supported versions of torch: torch does not notify a device when Dynamo or Inductor is imported.

Both imports happen late or never, and take seconds. A device must be registered before their first use:
https://github.com/pytorch/pytorch/issues/189138. A finder on sys.meta_path therefore waits for these modules. From
torch 2.15 on, Inductor calls `_inductor_backend_init` of a device's module to register its back end. Dynamo's device
interface, and everything without a hook, still need the finder.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

import torch

from torch_outboard._compat.rules import cache_rules
from torch_outboard._compat.sympy_caches import enlarge_caches

__all__ = ["asks_for_backend", "import_inductor", "when_imported"]


def asks_for_backend() -> bool:
    """Return True if Inductor calls `torch.<name>._inductor_backend_init()` before it compiles for an unknown device.

    Decided by the version, because looking for the call would import Inductor.
    """
    return tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 15)


def import_inductor() -> None:
    """Import Inductor, which registers the device with it. Takes seconds, once per process."""
    importlib.import_module("torch._inductor.compile_fx")  # triggers the finder
    from torch._inductor.codegen import common

    enlarge_caches()
    cache_rules()
    common.init_backend_registration()


def when_imported(name: str, action: Callable[[ModuleType], None]) -> None:
    """Call `action` with the named module: now if it is already imported, else right after its first import.

    In the second case, an exception in `action` propagates from the import. After a failed import, the finder waits for
    the next attempt.
    """
    module = sys.modules.get(name)
    if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
        action(module)
        return
    sys.meta_path.insert(0, _Finder(name, action))


class _Finder(importlib.abc.MetaPathFinder):
    """A finder for one module. It delegates to the finders after it, and removes itself once the module is imported."""

    def __init__(self, name: str, action: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._action = action

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        for finder in sys.meta_path:
            if finder is self:
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, self)
                return spec
        return None

    def finish(self, module: ModuleType) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            self._action(module)


class _Loader(importlib.abc.Loader):
    """The module's own loader, plus a call to the finder at the end."""

    def __init__(self, loader: importlib.abc.Loader, finder: _Finder) -> None:
        self._loader = loader
        self._finder = finder

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # The module keeps its own loader, from which inspect and pickle read its source.
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._finder.finish(module)
