# SPDX-License-Identifier: BSD-3-Clause
"""Registration of the device with Dynamo and Inductor, each no earlier than its own import."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import torch

from torch_outboard._compat import estimates, nested, streams
from torch_outboard._compat.flex_attention import MODULE, accept_device
from torch_outboard._compat.imports import asks_for_backend, when_imported
from torch_outboard._properties import DeviceProperties
from torch_outboard.compile.generators import generators, set_driver, torch_has_changed
from torch_outboard.driver import Driver

__all__ = ["register"]

_failure: Exception | None = None  # the failure of an action that runs after a torch module is imported


def register(driver: Driver) -> None:
    """Register the device with imported torch modules now, and with others when they are imported."""
    global _failure
    _failure = None
    set_driver(driver, _properties_of_devices)
    if _is_compile_worker():
        from torch_outboard import _C  # not at the top: `outboard info` works without the extension

        _C.forbid_opening("this is a worker of torch's compiler, which compiles for devices but does not use them")
    when_imported("torch._decomp.decompositions", _store_error(_register_sequences))
    when_imported("torch._dynamo.device_interface", _store_error(_register_interface))
    when_imported("torch._dynamo.variables.ctx_manager", _store_error(_register_context))
    if asks_for_backend():
        _add_backend_init(driver.name)
    else:
        when_imported("torch._inductor.compile_fx", _store_error(_register_backend))
    when_imported(estimates.MODULE, _store_error(estimates.estimate_speeds))
    when_imported(streams.MODULE, _store_error(streams.order_streams))
    when_imported(streams.VARIABLES, _store_error(streams.trace_current_stream))
    when_imported("torch._inductor.runtime.benchmarking", _store_error(_register_benchmarker))
    when_imported(nested.MODULE, _store_error(lambda module: nested.attend_jagged(module, driver.name)))
    when_imported(MODULE, _store_error(lambda module: accept_device(module, driver.name, _has_templates)))
    if generators().has_gpus:
        when_imported("torch.utils._triton", _store_error(_register_triton))
    if generators().has_target:
        when_imported("triton.runtime", _store_error(_register_launches))


def _properties_of_devices() -> list[DeviceProperties]:
    # Not at the top: `outboard info` works without the extension.
    from torch_outboard.device.devices import device_count, get_device_properties

    return [get_device_properties(index) for index in range(device_count())]


def _has_templates(device: int) -> bool:
    """Return whether compiled code for a device may use Triton's templates."""
    return generators().of(device).is_gpu


def _store_error(action: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
    """Wrap an action to store its exception, which later compilations for the device raise.

    An exception that escaped from an import of torch would break torch.compile for all devices, including the CPU.
    """

    @functools.wraps(action)
    def guarded(module: ModuleType) -> None:
        global _failure
        try:
            action(module)
        except Exception as error:  # noqa: BLE001 - whatever has changed in torch: see above
            _failure = _failure or error
            if "torch._inductor.compile_fx" in sys.modules:
                _register_broken_backend()

    return guarded


class _RaiseOnUse(type):
    """A metaclass for classes that raise when an instance is created or an attribute is read."""

    def __call__(cls, *arguments: Any) -> Any:
        cls._refuse()

    def __getattr__(cls, name: str) -> Any:
        cls._refuse()

    @staticmethod
    def _refuse() -> NoReturn:
        raise torch_has_changed(_failure) from _failure


class _BrokenBackend(metaclass=_RaiseOnUse):
    """A placeholder for all parts of a back end. A class, because torch 2.15 checks the scheduling's base class."""


def _register_broken_backend() -> None:
    from torch._inductor.codegen import common

    name = generators().driver.name
    try:
        common.register_backend_for_device(name, _BrokenBackend, _BrokenBackend, _BrokenBackend, _BrokenBackend)  # type: ignore[arg-type]
    except TypeError:  # this torch's function takes other arguments
        # Inductor then reports that it does not know the device.
        logging.getLogger("torch_outboard").warning("torch.compile cannot use the device", exc_info=_failure)


def _is_compile_worker() -> bool:
    mains = (sys.modules.get(name) for name in ("__main__", "__mp_main__"))
    paths = (Path(getattr(main, "__file__", None) or "") for main in mains)
    return any(path.parts[-4:] == ("torch", "_inductor", "compile_worker", "__main__.py") for path in paths)


def _register_sequences(module: ModuleType) -> None:
    from torch_outboard.compile.device.sequences import decompose_sequences

    decompose_sequences()


def _register_interface(module: ModuleType) -> None:
    from torch_outboard.compile.device.interface import register_interface

    register_interface()


def _register_context(module: ModuleType) -> None:
    # Torch 2.11 traces only torch.cuda.device; another device's context manager causes a graph
    # break there.
    if hasattr(module, "register_device_context_manager"):
        from torch_outboard.compile.device.context import register_context

        register_context()


def _add_backend_init(name: str) -> None:
    """Add the function that torch 2.15 calls before it compiles, to the device's module."""
    backend_init = functools.partial(_store_error(_register_backend), sys.modules[__name__])
    torch.get_device_module(name)._inductor_backend_init = backend_init
    common = sys.modules.get("torch._inductor.codegen.common")
    if common is not None and common.get_scheduling_for_device(name) is not None:
        backend_init()  # attached again, with other options: torch does not call it again


def _register_backend(_: ModuleType) -> None:
    # Not when the registry itself, torch._inductor.codegen.common, is imported: the scheduling must
    # be a class whose base class cannot be imported yet.
    from torch._inductor.codegen import common

    from torch_outboard._compat.inductor import (
        capture_graphs,
        combine_in_triton,
        convolve_as_on_cpu,
        fuse_as_on_cpu,
        lay_out_as_on_cpu,
        name_model_header,
    )
    from torch_outboard._compat.pools import fix_avg_pool_gradients, fix_fractional_max_pool
    from torch_outboard._compat.triton import list_as_gpu
    from torch_outboard.compile.capture.install import capture_obstacle, install
    from torch_outboard.compile.device import choice
    from torch_outboard.compile.device.graph_pass import PrepareGraph
    from torch_outboard.compile.device.overrides import OutboardOpOverrides

    if _failure is not None:
        _register_broken_backend()
        return
    name = generators().driver.name
    if generators().has_gpus:
        list_as_gpu(name)
    common.register_backend_for_device(
        name,
        choice.scheduling(),
        choice.WrapperChoice("wrapper"),  # type: ignore[arg-type]
        choice.WrapperChoice("cpp_wrapper"),  # type: ignore[arg-type]
        choice.WrapperChoice("fx_wrapper"),  # type: ignore[arg-type]
        device_custom_pass=PrepareGraph(name),
    )
    # This fills the table of overrides with torch's own. Torch 2.11 fills it only while it is
    # empty.
    common.get_device_op_overrides("cpu")
    common.register_device_op_overrides(name, OutboardOpOverrides())
    if generators().is_by_device or generators().of(0).fuses_as_cpu:
        fuse_as_on_cpu(choice.fuses_as_cpu)
        convolve_as_on_cpu(choice.fuses_as_cpu)
    # For every generator, compiled convolutions call the same operators as eager code.
    lay_out_as_on_cpu(lambda device: device.type == name)
    combine_in_triton(name, _has_templates)
    fix_fractional_max_pool(name)
    fix_avg_pool_gradients(name)
    capture_graphs(name, capture_obstacle, install)
    name_model_header(name, choice.model_header)


def _register_benchmarker(module: ModuleType) -> None:
    if hasattr(module, "register_benchmarker"):
        from torch_outboard.compile.device.benchmarker import benchmark

        module.register_benchmarker(generators().driver.name, benchmark, override=True)


def _register_triton(module: ModuleType) -> None:
    from torch_outboard._compat.triton import count_as_triton

    count_as_triton()


def _register_launches(module: ModuleType) -> None:
    from torch_outboard._compat.triton import choose_driver

    # Import our driver for Triton at the first launch, because programs that launch nothing also
    # import Triton.
    choose_driver(
        lambda arguments: _triton_driver().choose(generators().driver, arguments),
        lambda: _triton_driver().DeviceDriver(generators().driver),
    )


@functools.cache
def _triton_driver() -> Any:
    from torch_outboard.compile.triton import active

    return active
