# SPDX-License-Identifier: BSD-3-Clause
"""Inductor's scheduling of kernels in a dialect."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._inductor.codegen.common import BackendFeature
from torch._inductor.codegen.simd import SIMDScheduling
from torch._inductor.utils import get_kernel_metadata
from torch._inductor.virtualized import V
from torch.utils._ordered_set import OrderedSet

from torch_outboard._compat.splits import split_reductions
from torch_outboard.codegen.dialects.dialect import Dialect
from torch_outboard.codegen.kernel.kernel import SimtKernel
from torch_outboard.codegen.mapping.machine import groups_share_work
from torch_outboard.codegen.mapping.parts import parts_for_groups, parts_of_reduction
from torch_outboard.codegen.program import DeviceProgram

__all__ = ["SimtScheduling", "scheduling_for"]

_FEATURES = (
    BackendFeature.INPLACE_BUFFERS,
    BackendFeature.SCAN,
    BackendFeature.SORT,
    BackendFeature.TUPLE_REDUCTION,
    BackendFeature.BUCKETIZE,
    BackendFeature.MASKED_SCATTER_WITH_INDEX,
)


class SimtScheduling(SIMDScheduling):
    """SIMDScheduling that uses its kernels' dialect."""

    kernel_type: type[Any] = SimtKernel

    @classmethod
    def get_backend_features(cls, device: Any) -> OrderedSet[BackendFeature]:
        return OrderedSet(_FEATURES)

    def codegen_comment(self, node_schedule: Any, kernel_name: str | None = None) -> None:
        # The operators that a kernel fuses, for the compile report. Inductor itself writes this
        # comment for GPUs only.
        origins, _ = get_kernel_metadata(node_schedule, V.graph.wrapper_code)
        V.graph.wrapper_code.make_comment(origins)  # type: ignore[no-untyped-call]

    def define_kernel(self, src_code: str, node_schedule: Any, kernel: SimtKernel) -> str:
        wrapper: Any = V.graph.wrapper_code
        if src_code in wrapper.src_to_kernel:
            return wrapper.src_to_kernel[src_code]  # type: ignore[no-any-return]
        name = f"simt_fused_{wrapper.next_kernel_suffix()}"
        wrapper.src_to_kernel[src_code] = name
        text = src_code.replace("KERNEL_NAME", name)
        if kernel.dialect.runs_on_host:
            declared = kernel.dialect.declared
            parameters = [(declared(parameter), parameter.name, letter) for parameter, letter, _ in kernel.parameters()]
            wrapper.add_import_once("from torch_outboard.compile.runtime.simt_kernel import simt_kernel")
            arguments = f"{name!r}, {kernel.dialect.name!r}, {parameters!r}, {kernel.items()!r}"
            wrapper.define_kernel(name, f"simt_kernel({arguments}, r'''\n{text}''')", gpu=False)
        else:
            wrapper.define_program(_program(name, text, kernel), V.graph.get_current_device_or_throw())
        return name


def _program(name: str, text: str, kernel: SimtKernel) -> DeviceProgram:
    dialect = kernel.dialect
    grid, block = kernel.geometry()
    return DeviceProgram(
        name=name,
        language=dialect.language or dialect.name,
        types=(*kernel.types(), "record") if kernel.checks else kernel.types(),
        checks=tuple(kernel.checks),
        code=dialect.source(text),
        entry=name,
        grid=(grid,),
        block=(block,),
        options=dialect.options,
    )


@functools.cache
def scheduling_for(device: str, dialect: Dialect) -> type[SimtScheduling]:
    """Return a dialect's scheduling for the driver's devices."""

    def parts(where: torch.device, row: int, rows: int, is_inner: bool) -> int:
        if groups_share_work(dialect, where):
            return parts_for_groups(row, rows, is_inner)
        return parts_of_reduction(row, rows)

    split_reductions(device, parts)
    kernel = type("DialectKernel", (SimtKernel,), {"dialect": dialect})
    return type("DialectScheduling", (SimtScheduling,), {"kernel_type": kernel})
