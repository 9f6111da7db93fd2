# SPDX-License-Identifier: BSD-3-Clause
"""Inductor's scheduling of kernels in Triton, which our launchers run."""

from __future__ import annotations

import functools
from typing import Any, ClassVar

import torch
from torch._inductor.codegen.triton import TritonKernel, TritonScheduling
from torch._inductor.runtime.hints import DeviceProperties
from torch._inductor.virtualized import V

from torch_outboard._errors import OutboardError
from torch_outboard._triton import TritonTarget
from torch_outboard.compile.triton.launch import begin_compiling
from torch_outboard.driver import Driver

__all__ = ["OutboardTritonKernel", "OutboardTritonScheduling", "scheduling_for"]

# Triton's own driver, by which nothing is launched here; and which a worker has none of.
_OF_DRIVER = "triton_helpers.set_driver_to_gpu()"


class OutboardTritonKernel(TritonKernel):
    """TritonKernel, whose configurations we measure and keep ourselves."""

    @classmethod
    def inductor_meta_common(cls) -> dict[str, Any]:
        common = super().inductor_meta_common()  # type: ignore[no-untyped-call]
        return {**common, "autotune_local_cache": False, "autotune_remote_cache": False}


class OutboardTritonScheduling(TritonScheduling):
    """TritonScheduling for the targets of a driver's devices."""

    kernel_type: type[Any] = OutboardTritonKernel
    driver: ClassVar[Driver]

    def _emit_kernel_to_wrapper(
        self,
        wrapper: Any,
        kernel: Any,
        src_code: str,
        kernel_name: str,
        subs_name: str,
        node_schedule: Any,
        kernel_path: str,
        get_kernel_metadata: Any,
    ) -> None:
        device = V.graph.get_current_device_or_throw()
        index = device.index or 0
        target = self.driver.triton_target(index)
        source = source_for(src_code, device, target)
        begin_compiling(subs_name, source, target, index)
        text = f"r'''{source}'''" if "'''" not in source and not source.endswith(("'", "\\")) else repr(source)
        origins, detailed_origins = get_kernel_metadata(node_schedule, wrapper)
        wrapper.add_import_once("from torch_outboard._triton import TritonTarget")
        wrapper.add_import_once("from torch_outboard.compile.triton.launch import triton_kernel")
        wrapper.define_kernel(
            kernel_name,
            f"triton_kernel({kernel_name!r}, {subs_name!r}, {text}, {target!r}, device={index})",
            f"{origins}\n{detailed_origins}",
        )


def source_for(source: str, device: torch.device, target: TritonTarget) -> str:
    """Gives Inductor's source of a kernel with what it says of the device as the target's."""
    own = DeviceProperties.create(device)
    of_target = own._replace(type=target.backend, index=0, cc=target.arch, warp_size=target.warp_size)  # type: ignore[arg-type]
    if repr(own) not in source:
        raise OutboardError(
            "Inductor's kernel does not say which device it is for: this version of torch is not one that "
            "torch-outboard serves"
        )
    # The last newline is the literal's, whose first line is empty.
    return "\n" + source.replace(repr(own), repr(of_target)).replace(_OF_DRIVER, "").strip() + "\n"


@functools.cache
def scheduling_for(driver: Driver) -> type[OutboardTritonScheduling]:
    """Gives the scheduling for a driver's devices."""
    return type("DriverScheduling", (OutboardTritonScheduling,), {"driver": driver})
