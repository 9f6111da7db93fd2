# SPDX-License-Identifier: BSD-3-Clause
"""Which code generator a device has: one that is named after the language that it writes, or a vendor's own.

A driver names one for all of its devices, or answers for each: a machine may have a CPU for which C++ is written, and
beside it a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch_outboard._errors import NotSupportedError, OutboardError, RegistrationError
from torch_outboard._options import nearest
from torch_outboard.compile.generator import CodeGenerator
from torch_outboard.driver import Driver

__all__ = ["Generators", "check_generator", "generators", "set_driver"]


class _Missing(CodeGenerator):
    """Of a device for which none is named: a sentence when something is compiled; eager code goes on."""

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

        return PythonWrapperCodegen  # never used: the scheduling raises before


def _cpp() -> type[CodeGenerator]:
    from torch_outboard.compile.cpp.generator import CppGenerator

    return CppGenerator


def _opencl_c() -> type[CodeGenerator]:
    from torch_outboard.compile.simt.generator import OpenCLGenerator

    return OpenCLGenerator


def _cuda_cpp() -> type[CodeGenerator]:
    from torch_outboard.compile.simt.generator import CudaGenerator

    return CudaGenerator


def _host_cpp() -> type[CodeGenerator]:
    from torch_outboard.compile.simt.generator import HostGenerator

    return HostGenerator


def _triton() -> type[CodeGenerator]:
    from torch_outboard.compile.triton.generator import TritonGenerator

    return TritonGenerator


_LANGUAGES: Mapping[str, Callable[[], type[CodeGenerator]]] = {
    "cpp": _cpp,
    "opencl_c": _opencl_c,
    "cuda_cpp": _cuda_cpp,
    "host_cpp": _host_cpp,
    "triton": _triton,
}


class Generators:
    """The code generators of a driver's devices. Those of one kind are one object.

    Attributes
    ----------
    driver : Driver
        Whose they are.
    is_by_device : bool
        Whether the driver answers for each of its devices, once, when something is first compiled.
    has_target : bool
        Whether the driver says what Triton compiles for.
    has_gpus : bool
        Whether Inductor takes the type of devices for GPUs of its own: a driver that answers for each device and says
        what Triton compiles for may have some.
    has_eager : bool
        Whether kernels can be generated for eager operators; `eager` gives who does.
    """

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.has_eager = driver.kernel_generator is not None
        named = driver.code_generator
        self.is_by_device = callable(named) and not isinstance(named, type)
        self._made: dict[type[CodeGenerator], CodeGenerator] = {}
        self._by_device: dict[int, CodeGenerator] = {}
        if not self.is_by_device:
            refusal = f"driver {driver.name!r} cannot be attached"
            self._of_all = self._make(_find(named, refusal, "its code_generator"))
        self.has_target = type(driver).triton_target is not Driver.triton_target
        self.has_gpus = self.has_target if self.is_by_device else self._of_all.is_gpu

    def of(self, device: int) -> CodeGenerator:
        """Gives the generator of a device. RegistrationError if the driver answers with one that there is not."""
        if not self.is_by_device:
            return self._of_all
        if device not in self._by_device:
            answer = self.driver.code_generator(device)
            refusal = f"torch.compile cannot make kernels for {self.driver.name}:{device}"
            self._by_device[device] = self._make(_find(answer, refusal, f"code_generator({device}) of its driver"))
        return self._by_device[device]

    def eager(self) -> CodeGenerator:
        """Gives the generator of kernels for eager operators; only with `has_eager`."""
        refusal = f"kernels cannot be generated for operators on {self.driver.name!r}"
        kind = _find(self.driver.kernel_generator, refusal, "its kernel_generator")
        dialect = getattr(kind, "dialect", None)
        if dialect is None or dialect.runs_on_host:
            raise RegistrationError(
                f"{refusal}: its kernel_generator is a SimtGenerator of a dialect that the device builds, such as "
                f"'opencl_c', not {self.driver.kernel_generator!r}"
            )
        return self._make(kind)

    def of_all(self, devices: Iterable[int]) -> list[CodeGenerator]:
        """Gives the generators of several devices, each once."""
        return list(dict.fromkeys(map(self.of, devices))) if self.is_by_device else [self._of_all]

    def _make(self, kind: type[CodeGenerator]) -> CodeGenerator:
        if kind not in self._made:
            self._made[kind] = kind(self.driver)
        return self._made[kind]


def _find(named: Any, refusal: str, what: str) -> type[CodeGenerator]:
    if named is None:
        return _Missing
    if isinstance(named, str):
        if named not in _LANGUAGES:
            raise RegistrationError(
                f"{refusal}: there is no code generator {named!r}, only {', '.join(_LANGUAGES)}."
                f"{nearest(named, list(_LANGUAGES))}"
            )
        return _LANGUAGES[named]()
    if isinstance(named, type) and issubclass(named, CodeGenerator):
        return named
    raise RegistrationError(
        f"{refusal}: {what} is a name or a subclass of torch_outboard.compile.CodeGenerator, not {named!r}"
    )


def check_generator(driver: Driver) -> None:
    """Raises RegistrationError for a driver that names a generator which there is not. It asks of no device."""
    known = Generators(driver)
    if known.has_eager:
        known.eager()


_attached: Generators | None = None


def set_driver(driver: Driver) -> None:
    """Takes the generators of the driver that is attached."""
    global _attached
    _attached = Generators(driver)


def generators() -> Generators:
    """Gives those of the attached driver's devices."""
    if _attached is None:
        raise OutboardError("no driver is attached: call torch_outboard.attach first")
    return _attached
