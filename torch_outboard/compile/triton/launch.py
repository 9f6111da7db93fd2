# SPDX-License-Identifier: BSD-3-Clause
"""The function that generated Python code calls to turn a Triton kernel into a launcher, which queues launches."""

from __future__ import annotations

import functools
import logging
import math
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import torch

from torch_outboard import _C
from torch_outboard._errors import NotSupportedError, OutboardError
from torch_outboard._triton import TritonTarget
from torch_outboard.compile.runtime.device_kernel import device_kernel
from torch_outboard.compile.triton.binary import Binaries, Binary, compile_in_worker, compile_kernel, hidden_types
from torch_outboard.compile.triton.grid import evaluate
from torch_outboard.compile.triton.measure import milliseconds
from torch_outboard.compile.triton.store import Store
from torch_outboard.device.devices import get_device_properties

__all__ = ["Tuning", "begin_compiling", "chip_of", "launcher_of", "triton_kernel"]

_log = logging.getLogger(__name__)

# Tasks running in workers, by the kernel's entry and source.
_pending: dict[tuple[str, str], Future[Binaries]] = {}


def begin_compiling(entry: str, source: str, target: TritonTarget, device: int) -> None:
    """Start compiling a kernel in a worker, unless it is stored or there are no workers.

    `triton_kernel` collects the result.
    """
    if (entry, source) in _pending or _store(entry, source, target, device).binaries() is not None:
        return
    task = _submit(entry, source, target)
    if task is not None:
        _pending[entry, source] = task


def triton_kernel(name: str, entry: str, source: str, target: TritonTarget, device: int) -> Any:
    """Return a kernel's launcher for a device, or torch's future of the launcher while a worker compiles.

    The launcher takes the same arguments as Inductor's launcher, except the stream. It queues launches on the current
    stream of its tensors' device. If there are several configurations, the first call measures them and waits. The
    fastest configuration is stored for other processes.
    """
    from torch._inductor.codecache import LambdaFuture

    task, finish = _compilation(name, entry, source, target, device)
    if task is None:
        return finish().launcher()
    return LambdaFuture(lambda: finish().launcher(), future=task)


def chip_of(device: int) -> str:
    """Return the properties of a chip that affect the times of kernels."""
    chip = get_device_properties(device)
    return f"{chip.vendor}/{chip.name}/{chip.architecture}/{chip.driver_version}"


def _store(entry: str, source: str, target: TritonTarget, device: int) -> Store:
    return Store(entry, source, target, chip_of(device))


def _submit(entry: str, source: str, target: TritonTarget) -> Future[Binaries] | None:
    from torch._inductor.async_compile import AsyncCompile

    if not AsyncCompile.use_process_pool():  # type: ignore[no-untyped-call]
        return None
    names = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
    environment = {name: os.environ[name] for name in names if name in os.environ}
    return AsyncCompile.process_pool().submit(compile_in_worker, environment, entry, source, target)


def _result(task: Future[Binaries] | None, name: str, entry: str, source: str, target: TritonTarget) -> Binaries:
    if task is not None:
        try:
            return task.result()
        except Exception as error:  # noqa: BLE001 - raised again in this process
            # Either the worker died or compilation failed. In the second case, this process raises
            # the error with its own type.
            _log.warning("a worker could not compile %s, so this process compiles it: %s", name, error)
    return compile_kernel(entry, source, target)


def _compilation(
    name: str, entry: str, source: str, target: TritonTarget, device: int
) -> tuple[Future[Binaries] | None, Callable[[], Tuning]]:
    """Return the worker's task, if a worker compiles the kernel, and a function that waits for the result."""
    store = _store(entry, source, target, device)
    kept = store.binaries()
    if kept is not None:
        return None, lambda: Tuning(name, kept, store, target, device)
    task = _pending.pop((entry, source), None) or _submit(entry, source, target)

    def finish() -> Tuning:
        binaries = _result(task, name, entry, source, target)
        store.keep_binaries(binaries)
        return Tuning(name, binaries, store, target, device)

    return task, finish


def launcher_of(
    name: str, types: Sequence[str], binary: Binary, target: TritonTarget, device: int
) -> Callable[..., None]:
    """Return the launcher of a compiled kernel, built for a device; `types` are the types of the passed arguments."""
    launcher = device_kernel(
        name,
        target.language,
        [*types, *hidden_types(binary)],
        binary.code,
        entry=binary.entry,
        grid=binary.grid,
        block=(str(binary.threads),),
        local_bytes=str(binary.shared),
        device=device,
    )
    if not any(size for size, _ in binary.scratch):
        return launcher
    return functools.partial(_launch_with_scratch, launcher, binary)


def _launch_with_scratch(launcher: Callable[..., None], variant: Binary, *arguments: Any) -> None:
    """Launch with memory for each block. The allocator reuses the memory once the stream has finished with it."""
    where = next(argument.device for argument in arguments if isinstance(argument, torch.Tensor))
    blocks = math.prod(evaluate(formula, arguments) for formula in variant.grid)
    memory = [
        torch.empty(size * blocks, dtype=torch.uint8, device=where)  # the allocator's alignment is 512
        for size, _ in variant.scratch
        if size
    ]
    launcher(*arguments, *memory)


class Tuning:
    """A compiled kernel and its fastest configuration on a chip.

    Attributes
    ----------
    binaries : Binaries
        All configurations.
    """

    def __init__(self, name: str, binaries: Binaries, store: Store, target: TritonTarget, device: int) -> None:
        self.binaries = binaries
        self._name = name
        self._store = store
        self._device = device
        self.make = functools.partial(launcher_of, name, binaries.types, target=target, device=device)

    @staticmethod
    def of(name: str, entry: str, source: str, target: TritonTarget, device: int) -> Tuning:
        """Return the tuning for a source. Waits for the compiler."""
        return _compilation(name, entry, source, target, device)[1]()

    def launcher(self) -> Callable[..., None]:
        """Return the launcher of the fastest configuration, or one whose first call determines the configuration."""
        known = self._known()
        return _UntunedLauncher(self) if known is None else self.make(known)

    def variant(self, arguments: Callable[[], Sequence[Any]]) -> Binary:
        """Return the fastest configuration. If it is unknown, measure with the arguments that `arguments` creates."""
        return self._known() or self.choose(arguments())[0]

    def choose(self, arguments: Sequence[Any]) -> tuple[Binary, Callable[..., None]]:
        """Measure all configurations, store the fastest one, and return it with its launcher.

        Raises
        ------
        OutboardError
            If no configuration runs.
        """
        times: list[tuple[float, int]] = []
        launchers: dict[int, Callable[..., None]] = {}
        failures: list[Exception] = []
        for place, variant in enumerate(self.binaries.variants):
            try:
                launchers[place] = self.make(variant)
                times.append((self._measure(launchers[place], arguments), place))
            except NotSupportedError:
                raise
            except Exception as error:  # noqa: BLE001 - needs more shared memory or threads than the chip has: another one may run
                _log.info("%s can't run as %s: %s", self._name, variant.config, error)
                failures.append(error)
        if not times:
            raise OutboardError(
                f"none of the {len(failures)} configurations of the kernel {self._name} runs: {failures[0]}"
            ) from failures[0]
        best = min(times)[1]
        self._store.choice.write(self.binaries.variants[best].config)
        return self.binaries.variants[best], launchers[best]

    def _known(self) -> Binary | None:
        variants = self.binaries.variants
        chosen = self._store.choice.read() if len(variants) > 1 else variants[0].config
        return next((variant for variant in variants if variant.config == chosen), None)

    def _measure(self, launcher: Callable[..., None], arguments: Sequence[Any]) -> float:
        copies = list(arguments)
        for place in {*self.binaries.changed, *self.binaries.zeroed}:
            copies[place] = _copy(copies[place])

        def prepare() -> None:
            for place in self.binaries.zeroed:
                copies[place].zero_()

        return milliseconds(lambda: launcher(*copies), prepare, torch.device(_C.driver_name(), self._device))


class _UntunedLauncher:
    """The launcher of a kernel with several configurations, until its first call determines the fastest."""

    def __init__(self, tuning: Tuning) -> None:
        self._tuning = tuning
        self._lock = threading.Lock()
        self._chosen: Callable[..., None] | None = None

    def __call__(self, *arguments: Any) -> None:
        launcher = self._chosen
        if launcher is None:
            if torch.get_device_module(_C.driver_name()).is_current_stream_capturing():
                # A capture cannot measure, so a later call measures.
                launcher = self._tuning.make(self._tuning.binaries.variants[0])
            else:
                with self._lock:
                    launcher = self._chosen = self._chosen or self._tuning.choose(arguments)[1]
        launcher(*arguments)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """Copy a tensor with its strides, including the memory between its elements."""
    elements = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    whole = torch.as_strided(tensor, (elements if tensor.numel() else 0,), (1,)).clone()
    return torch.as_strided(whole, tensor.shape, tensor.stride())
