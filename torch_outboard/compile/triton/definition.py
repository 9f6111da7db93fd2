# SPDX-License-Identifier: BSD-3-Clause
"""How wrappers define a Triton kernel: as Python code that finds its fastest configuration, or as one configuration."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch._inductor.runtime.hints import DeviceProperties

from torch_outboard._errors import OutboardError
from torch_outboard._triton import TritonTarget
from torch_outboard.codegen.program import DeviceProgram
from torch_outboard.compile.triton.binary import hidden_types
from torch_outboard.compile.triton.launch import Tuning, begin_compiling
from torch_outboard.driver import Driver

__all__ = ["Definition", "source_for"]

# Selects Triton's own driver. It launches nothing here, and workers do not have it.
_OF_DRIVER = "triton_helpers.set_driver_to_gpu()"


class Definition:
    """A kernel of Inductor for a device. It implements torch_outboard.compile.wrapper.graph.TunedKernel.

    Compilation starts in a worker, if there are workers.
    """

    imports = (
        "from torch_outboard._triton import TritonTarget",
        "from torch_outboard.compile.triton.launch import triton_kernel",
    )

    def __init__(self, name: str, entry: str, source: str, device: torch.device, driver: Driver) -> None:
        self.name = name
        self._entry = entry
        self._device = device.index or 0
        self._target = driver.triton_target(self._device)
        self._source = source_for(source, device, self._target)
        self._tuning: Tuning | None = None
        begin_compiling(entry, self._source, self._target, self._device)

    def definition(self) -> str:
        source = self._source
        text = f"r'''{source}'''" if "'''" not in source and not source.endswith(("'", "\\")) else repr(source)
        return f"triton_kernel({self.name!r}, {self._entry!r}, {text}, {self._target!r}, device={self._device})"

    def types(self) -> tuple[str, ...]:
        return self._compiled().binaries.types

    def program(self, arguments: Callable[[], list[Any]]) -> tuple[DeviceProgram, tuple[int, ...]]:
        tuning = self._compiled()
        chosen = tuning.variant(arguments)
        program = DeviceProgram(
            name=re.sub(r"\W", "_", self.name),
            language=self._target.language,
            types=(*tuning.binaries.types, *hidden_types(chosen)),
            code=chosen.code,
            entry=chosen.entry,
            grid=chosen.grid,
            block=(str(chosen.threads),),
            local_bytes=str(chosen.shared),
        )
        return program, tuple(size for size, _ in chosen.scratch if size)

    def _compiled(self) -> Tuning:
        if self._tuning is None:
            self._tuning = Tuning.of(self.name, self._entry, self._source, self._target, self._device)
        return self._tuning


def source_for(source: str, device: torch.device, target: TritonTarget) -> str:
    """Return Inductor's source of a kernel, with the device's properties replaced by the target's.

    Raises
    ------
    OutboardError
        If the source does not contain the device's properties.
    """
    own = DeviceProperties.create(device)
    of_target = own._replace(type=target.backend, index=0, cc=target.arch, warp_size=target.warp_size)  # type: ignore[arg-type]
    if repr(own) not in source:
        raise OutboardError("Inductor's kernel names no device: torch-outboard doesn't support this version of torch")
    # The literal starts with an empty line and ends with a newline.
    return "\n" + source.replace(repr(own), repr(of_target)).replace(_OF_DRIVER, "").strip() + "\n"
