# SPDX-License-Identifier: BSD-3-Clause
"""The code generator of a device: a built-in one, named after its language, or a vendor's own.

For torch.compile, a driver names one generator for all of its devices or returns one per device: a machine may have a
CPU with a C++ generator next to a GPU. Eager kernels have one generator for all devices, which may depend on the kinds
of devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch

from torch_outboard._errors import NotSupportedError, OutboardError, RegistrationError
from torch_outboard._options import nearest
from torch_outboard._properties import DeviceProperties
from torch_outboard.compile.generator import CodeGenerator
from torch_outboard.driver import Driver

__all__ = ["Generators", "check_generator", "generators", "set_driver", "torch_has_changed"]


class _Missing(CodeGenerator):
    """The generator of a device without one. It raises on compilation; eager code still works."""

    name = "none"

    def scheduling(self) -> type[Any]:
        message = (
            f"the driver {self.driver.name!r} has no code generator, so torch.compile cannot make kernels for it: set "
            "`code_generator` in its Driver class ('cpp' if the host can reach the device's memory), or compile with "
            "backend='aot_eager'"
        )

        class NoScheduling:
            def __init__(self, scheduler: object) -> None:
                raise NotSupportedError(message)

        return NoScheduling

    def wrapper(self) -> type[Any]:
        from torch._inductor.codegen.wrapper import PythonWrapperCodegen

        return PythonWrapperCodegen  # never used: the scheduling raises first


def _cpp() -> type[CodeGenerator]:
    from torch_outboard.compile.cpp.generator import CppGenerator

    return CppGenerator


def _triton() -> type[CodeGenerator]:
    from torch_outboard.compile.triton.generator import TritonGenerator

    return TritonGenerator


def _of_items(kind: str) -> type[CodeGenerator]:
    from torch_outboard.compile.simt import generator

    generator_class: type[CodeGenerator] = getattr(generator, kind)
    return generator_class


def _slang(name: str, units: str = "") -> type[CodeGenerator]:
    from torch_outboard.compile.simt.generator import slang_generator

    return slang_generator(name, units)


# Generators whose names may be followed by the devices' subgroups or matrix units: "slang:
# subgroups of 8", "slang: 32 lanes, float16 16x16x16".
_SLANGS = ("slang", "slang_floats", "slang_bytes", "slang_floats_bytes")


_LANGUAGES: Mapping[str, Callable[[], type[CodeGenerator]]] = {
    "cpp": _cpp,
    "opencl_c": partial(_of_items, "OpenCLGenerator"),
    "ptx_opencl_c": partial(_of_items, "OpenCLUnitsGenerator"),
    "cuda_cpp": partial(_of_items, "CudaGenerator"),
    "ptx_cuda_cpp": partial(_of_items, "CudaUnitsGenerator"),
    **{name: partial(_slang, name) for name in _SLANGS},
    "host_cpp": partial(_of_items, "HostGenerator"),
    "triton": _triton,
}


class Generators:
    """The code generators of a driver's devices. Generators of the same class share one instance.

    Attributes
    ----------
    driver : Driver
        The driver of the devices.
    is_by_device : bool
        True if the driver chooses a generator per device, once, at the first compilation.
    has_target : bool
        True if the driver defines a target for Triton.
    has_gpus : bool
        True if Inductor treats the device type like its own GPUs. This may hold for a driver that chooses a generator
        per device and defines a Triton target.
    has_eager : bool
        True if kernels can be generated for eager operators; `eager` returns their generator.
    """

    def __init__(self, driver: Driver, devices: Callable[[], list[DeviceProperties]] = list) -> None:
        """`devices` returns the properties of the driver's devices, once it is attached."""
        self.driver = driver
        self._devices = devices
        self._eager: CodeGenerator | None = None
        self.has_eager = driver.kernel_generator is not None
        named = driver.code_generator
        self.is_by_device = _is_method(named)
        self._instances: dict[type[CodeGenerator], CodeGenerator] = {}
        self._by_device: dict[int, CodeGenerator] = {}
        if not self.is_by_device:
            refusal = f"driver {driver.name!r} cannot be attached"
            self._of_all = self._make(_find(named, refusal, "its code_generator"))
        self.has_target = type(driver).triton_target is not Driver.triton_target
        self.has_gpus = self.has_target if self.is_by_device else self._of_all.is_gpu

    def of(self, device: int) -> CodeGenerator:
        """Return the generator of a device.

        Raises
        ------
        RegistrationError
            If the driver returns an unknown generator.
        """
        if not self.is_by_device:
            return self._of_all
        if device not in self._by_device:
            answer = self.driver.code_generator(device)
            refusal = f"torch.compile cannot make kernels for {self.driver.name}:{device}"
            self._by_device[device] = self._make(_find(answer, refusal, f"code_generator({device}) of its driver"))
        return self._by_device[device]

    def eager(self) -> CodeGenerator:
        """Return the generator of kernels for eager operators. Requires `has_eager`.

        Raises
        ------
        RegistrationError
            If the generator has no dialect that the device can build.
        """
        if self._eager is None:
            self._eager = self._make(self._eager_kind())
        return self._eager

    def _eager_kind(self) -> type[CodeGenerator]:
        refusal = f"kernels cannot be generated for operators on {self.driver.name!r}"
        named = self.driver.kernel_generator
        if _is_method(named):
            named = named(self._devices())
        kind = _find(named, refusal, "its kernel_generator")
        dialect = getattr(kind, "dialect", None)
        if dialect is None or dialect.runs_on_host:
            raise RegistrationError(
                f"{refusal}: its kernel_generator must be a SimtGenerator whose dialect the device can build, such as "
                f"'opencl_c', not {named!r}"
            )
        return kind

    def of_all(self, devices: Iterable[int]) -> list[CodeGenerator]:
        """Return the generators of several devices, without duplicates."""
        return list(dict.fromkeys(map(self.of, devices))) if self.is_by_device else [self._of_all]

    def _make(self, kind: type[CodeGenerator]) -> CodeGenerator:
        if kind not in self._instances:
            self._instances[kind] = kind(self.driver)
        return self._instances[kind]


def _is_method(named: Any) -> bool:
    return callable(named) and not isinstance(named, type)


def _find(named: Any, refusal: str, subject: str) -> type[CodeGenerator]:
    if named is None:
        return _Missing
    if isinstance(named, str):
        name, has_units, units = named.partition(": ")
        if has_units and name in _SLANGS:
            return _slang(name, units)
        if named not in _LANGUAGES:
            raise RegistrationError(
                f"{refusal}: unknown code generator {named!r}. Choose from {', '.join(_LANGUAGES)}."
                f"{nearest(named, list(_LANGUAGES))}"
            )
        return _LANGUAGES[named]()
    if isinstance(named, type) and issubclass(named, CodeGenerator):
        return named
    raise RegistrationError(
        f"{refusal}: {subject} must be a name or a subclass of torch_outboard.compile.CodeGenerator, not {named!r}"
    )


def check_generator(driver: Driver) -> None:
    """Raise RegistrationError if a driver names an unknown generator. The check opens no device."""
    known = Generators(driver)
    if known.has_eager:
        known.eager()


_attached: Generators | None = None


def set_driver(driver: Driver, devices: Callable[[], list[DeviceProperties]]) -> None:
    """Create the generators of the attached driver. `devices` returns the properties of its devices."""
    global _attached
    _attached = Generators(driver, devices)


def generators() -> Generators:
    """Return the generators of the attached driver's devices.

    Raises
    ------
    OutboardError
        If no driver is attached.
    """
    if _attached is None:
        raise OutboardError("no driver is attached: call torch_outboard.attach first")
    return _attached


def torch_has_changed(error: BaseException | None) -> OutboardError:
    """Return the error to raise if this torch's compiler does not accept the device, with `error` as its cause."""
    return OutboardError(
        f"torch.compile does not work for {generators().driver.name!r}: registering the device with "
        f"torch {torch.__version__} failed with {type(error).__name__}: {error}"
    )
