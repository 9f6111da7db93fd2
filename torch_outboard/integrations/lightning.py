# SPDX-License-Identifier: BSD-3-Clause
"""Lightning's Trainer and Fabric on the attached driver's devices: accelerator="auto", or the device's name.

Works with the packages `lightning` and `pytorch_lightning`. docs/upstream describes the upstream changes that would
replace this module.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

import torch

from torch_outboard.integrations._patched import ActiveIntegration, attached_name, running

__all__ = ["use"]

# The packages of each distribution: Lightning's Trainer, and the parts that it shares with Fabric.
_PACKAGES = (("lightning.pytorch", "lightning.fabric"), ("pytorch_lightning", "lightning_fabric"))


def use() -> ActiveIntegration:
    """Register the attached driver's devices with Lightning, and let "auto" choose them; return an object to undo this.

    One device, DDP, FSDP and model-parallel strategies work, and "bf16-mixed" and "16-mixed" are autocast on the
    device. Raises RegistrationError if no driver is attached.
    """
    return running("lightning", _start)


def _start() -> ActiveIntegration:
    name = attached_name("lightning.use()")
    using = ActiveIntegration()
    try:
        for trainer, fabric in _PACKAGES:
            using.when_imported(fabric, functools.partial(_patch_fabric, using, name))
            using.when_imported(trainer, functools.partial(_patch_trainer, using, name, fabric))
    except BaseException:  # re-raised, after undoing everything
        using.close()
        raise
    return using


def _patch_fabric(using: ActiveIntegration, name: str, package: ModuleType) -> None:
    own = package.__name__
    accelerators = import_module(f"{own}.accelerators")
    kind = _accelerator_class(name, accelerators.Accelerator)
    _register(using, name, accelerators.ACCELERATOR_REGISTRY, kind)
    connector = import_module(f"{own}.connector")
    _patch_connector(using, name, connector._Connector, own)
    _without_device_ids(using, name, import_module(f"{own}.strategies").DDPStrategy, "_determine_ddp_device_ids")


def _patch_trainer(using: ActiveIntegration, name: str, fabric: str, package: ModuleType) -> None:
    own = package.__name__
    accelerators = import_module(f"{own}.accelerators")
    _register(using, name, accelerators.AcceleratorRegistry, _accelerator_class(name, accelerators.Accelerator))
    connector = import_module(f"{own}.trainer.connectors.accelerator_connector")._AcceleratorConnector
    _patch_connector(using, name, connector, own)
    check = using.found(connector, "_check_strategy_and_fallback")

    @functools.wraps(check)
    def check_strategy(self: Any) -> None:
        # FSDP checks this flag to find out whether the accelerator is CUDA.
        flag = self._accelerator_flag
        self._accelerator_flag = "cuda" if _is_own(self, name) else flag
        try:
            check(self)
        finally:
            self._accelerator_flag = flag

    using.set(connector, "_check_strategy_and_fallback", check_strategy, "let FSDP run on the device")
    _without_device_ids(using, name, import_module(f"{own}.strategies").DDPStrategy, "determine_ddp_device_ids")


def _register(using: ActiveIntegration, name: str, registry: Any, kind: type) -> None:
    registry.register(name, kind, description=f"{name}, by torch-outboard")
    using.record(
        f"{type(registry).__name__}[{name!r}]", f'let accelerator="{name}" exist', lambda: registry.remove(name)
    )


def _patch_connector(using: ActiveIntegration, name: str, connector: type, package: str) -> None:
    """Make a connector choose our devices automatically, and use a single device and mixed precision on them."""
    strategies = import_module(f"{package}.strategies")
    precision = import_module(f"{package}.plugins.precision")
    choose: Callable[[Any], Any] = using.found(connector, "_choose_strategy")
    check: Callable[[Any], Any] = using.found(connector, "_check_and_init_precision")

    @functools.wraps(choose)
    def choose_strategy(self: Any) -> Any:
        chosen = choose(self)
        if _is_own(self, name) and isinstance(chosen, strategies.SingleDeviceStrategy):
            return strategies.SingleDeviceStrategy(device=self._parallel_devices[0])
        return chosen

    @functools.wraps(check)
    def init_precision(self: Any) -> Any:
        chosen = check(self)
        if _is_own(self, name) and type(chosen) is precision.MixedPrecision:
            return precision.MixedPrecision(chosen.precision, name)
        return chosen

    auto = staticmethod(lambda: name)
    using.set(connector, "_choose_auto_accelerator", auto, 'let accelerator="auto" choose the device')
    using.set(connector, "_choose_strategy", choose_strategy, "run a single device on this device, not the CPU")
    using.set(connector, "_check_and_init_precision", init_precision, "let mixed precision be autocast on the device")


def _is_own(connector: Any, name: str) -> bool:
    return bool(connector.accelerator.__class__.name() == name)


def _without_device_ids(using: ActiveIntegration, name: str, strategy: type, method: str) -> None:
    """Pass no device ids to DDP, because Lightning would create a CUDA stream for them.

    DDP then uses the module's device.
    """
    before = using.found(strategy, method)

    @functools.wraps(before)
    def device_ids(self: Any) -> Any:
        return None if self.root_device.type == name else before(self)

    using.set(strategy, method, device_ids, "create no CUDA stream for DDP")


def _accelerator_class(name: str, base: type) -> type:
    """Return Lightning's accelerator class for the attached driver's devices; `base` is Trainer's or Fabric's class."""

    class OutboardAccelerator(base):  # type: ignore[misc]
        """The attached driver's devices."""

        def setup_device(self, device: torch.device) -> None:
            if device.type != name:
                raise ValueError(f"expected a {name} device, got {device}")
            torch.accelerator.set_device_index(device)

        def teardown(self) -> None:
            torch.accelerator.empty_cache()

        def get_device_stats(self, device: Any) -> dict[str, Any]:
            return dict(torch.accelerator.memory_stats(device))

        @staticmethod
        def parse_devices(devices: Any) -> list[int]:
            return _indices(name, devices)

        @staticmethod
        def get_parallel_devices(devices: list[int]) -> list[torch.device]:
            return [torch.device(name, index) for index in devices]

        @staticmethod
        def auto_device_count() -> int:
            return int(torch.accelerator.device_count())

        @staticmethod
        def is_available() -> bool:
            return torch.accelerator.device_count() > 0

        @staticmethod
        def name() -> str:
            return name

    return OutboardAccelerator


def _indices(name: str, devices: Any) -> list[int]:
    """Return the indices for Lightning's `devices`: a number of devices, -1, a list, or text of these."""
    count = torch.accelerator.device_count()
    if isinstance(devices, str):
        devices = [int(index) for index in devices.split(",") if index.strip()] if "," in devices else int(devices)
    if isinstance(devices, int):
        devices = list(range(count if devices == -1 else devices))
    wrong = [index for index in devices if not 0 <= index < count]
    if wrong:
        raise ValueError(f"the device {name}:{wrong[0]} does not exist: there are {count} devices")
    return list(devices)
