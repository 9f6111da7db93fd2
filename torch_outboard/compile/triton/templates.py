# SPDX-License-Identifier: BSD-3-Clause
"""Choosing the fastest template for an operator on a device, under max-autotune.

Inductor calls our function with the remaining choices. If there are several, this module measures them with our
launcher and keeps only the fastest. Inductor's own measurement, which would launch through Triton, therefore never
runs.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch._inductor.codecache import CodeCacheFuture
from torch._inductor.select_algorithm import (
    AlgorithmSelectorCache,
    ExternKernelCaller,
    TritonTemplateCaller,
    add_preprocessing_fn,
)
from torch._inductor.virtualized import V

from torch_outboard._errors import OutboardError
from torch_outboard.compile.triton.definition import source_for
from torch_outboard.compile.triton.launch import begin_compiling, chip_of, triton_kernel
from torch_outboard.compile.triton.measure import milliseconds
from torch_outboard.compile.triton.store import Choice
from torch_outboard.driver import Driver

__all__ = ["choose_templates"]

_log = logging.getLogger(__name__)

# Names of templates that read indices from an input. The random numbers of a measurement are not
# valid indices.
_OF_VALUES = ("flex", "grouped")

_registered: set[str] = set()


def choose_templates(driver: Driver) -> None:
    """Register our choice function in Inductor for a driver's devices, once per process."""
    if driver.name not in _registered:
        _registered.add(driver.name)
        add_preprocessing_fn(lambda choices: _fastest(driver, choices))


def _fastest(driver: Driver, choices: list[Any]) -> list[Any]:
    if not choices or choices[0].layout.device.type != driver.name:
        return choices
    # Other choices, such as graphs, would have to be compiled to be measured.
    known = [choice for choice in choices if isinstance(choice, TritonTemplateCaller | ExternKernelCaller)]
    if len(known) < 2:
        return known
    if any(word in choice.name for choice in known for word in _OF_VALUES):
        return known[:1]
    from torch._inductor import config

    if config.deterministic:
        return known  # torch chooses without measuring
    index = choices[0].layout.device.index or 0
    runs = [_Run(driver, choice, index) for choice in known]
    kept = Choice([run.key for run in runs] + _shapes(known[0]), chip_of(index))
    best = next((run for run in runs if run.key == kept.read()), None)
    if best is None:
        best = _measure(runs, torch.device(driver.name, index))
        kept.write(best.key)
    return [best.choice]


def _measure(runs: list[_Run], device: torch.device) -> _Run:
    first = runs[0].choice
    for run in runs:
        run.begin()
    inputs = AlgorithmSelectorCache.get_inputs([run.choice for run in runs], first.input_nodes, first.layout, None)
    times: list[tuple[float, int]] = []
    failures: list[Exception] = []
    for place, run in enumerate(runs):
        tensors, out = inputs.get_benchmark_tensors(run.is_extern).unpack()  # type: ignore[no-untyped-call]
        try:
            times.append((milliseconds(run.launcher(tensors, out), lambda: None, device), place))
        except Exception as error:  # noqa: BLE001 - needs more shared memory than the chip has: another one may run
            _log.info("%s can't run: %s", run.choice, error)
            failures.append(error)
    if not times:
        raise OutboardError(f"none of the {len(runs)} choices for {first.name} runs: {failures[0]}") from failures[0]
    return runs[min(times)[1]]


class _Run:
    """A choice, and how to run it for a measurement."""

    def __init__(self, driver: Driver, choice: Any, device: int) -> None:
        self.choice = choice
        self.is_extern = isinstance(choice, ExternKernelCaller)
        self._device = device
        if self.is_extern:
            self.key = choice.choice.name
            return
        self._target = driver.triton_target(device)
        source = Path(choice.bmreq.module_path).read_text(encoding="utf-8")
        self._source = source_for(source, torch.device(driver.name, device), self._target)
        content = "\0".join((self._source, choice.bmreq.kernel_name, repr(choice.bmreq.extra_args)))
        self.key = hashlib.sha256(content.encode()).hexdigest()

    def begin(self) -> None:
        """Start the compilation in a worker, if there are workers."""
        if not self.is_extern:
            begin_compiling(self.choice.bmreq.kernel_name, self._source, self._target, self._device)

    def launcher(self, inputs: list[torch.Tensor], out: torch.Tensor) -> Callable[[], None]:
        if self.is_extern:
            call = self.choice.to_callable()
            if self.choice.has_out_variant:
                return lambda: call(*inputs, out=out)
            return lambda: call(*inputs)
        request = self.choice.bmreq
        kernel = triton_kernel(request.kernel_name, request.kernel_name, self._source, self._target, self._device)
        if isinstance(kernel, CodeCacheFuture):
            kernel = kernel.result()
        more = [self._workspace(extra, out) for extra in request.extra_args]
        return lambda: kernel(*inputs, out, *more)

    def _workspace(self, argument: Any, out: torch.Tensor) -> Any:
        request = self.choice.bmreq
        if request.workspace_size is None or isinstance(argument, int):
            return argument
        make = torch.zeros if request.workspace_zero_fill else torch.empty
        return make(request.workspace_size, dtype=torch.uint8, device=out.device)


def _shapes(choice: Any) -> list[str]:
    """Return the dtypes, sizes and strides on which a choice's measured times depend, in addition to its code."""
    layouts = [*(node.get_layout() for node in choice.input_nodes), choice.layout]
    hint = V.graph.sizevars.optimization_hint
    return [f"{layout.dtype} {[hint(number) for number in (*layout.size, *layout.stride)]}" for layout in layouts]
