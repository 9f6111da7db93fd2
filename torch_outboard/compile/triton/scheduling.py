# SPDX-License-Identifier: BSD-3-Clause
"""Inductor's scheduling of Triton kernels that our launchers run."""

from __future__ import annotations

import ast
import functools
from typing import Any, ClassVar

import torch
from torch._inductor.codegen.triton import TritonKernel, TritonScheduling
from torch._inductor.virtualized import V

from torch_outboard._errors import OutboardError
from torch_outboard.compile.triton.definition import Definition
from torch_outboard.driver import Driver

__all__ = ["OutboardTritonKernel", "OutboardTritonScheduling", "scheduling_for"]


class OutboardTritonKernel(TritonKernel):
    """TritonKernel whose configurations this package measures and stores."""

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
        origins, detailed_origins = get_kernel_metadata(node_schedule, wrapper)
        device = V.graph.get_current_device_or_throw()
        wrapper.define_tuned(
            Definition(kernel_name, subs_name, src_code, device, self.driver), f"{origins}\n{detailed_origins}"
        )

    # A program's own kernels. Torch's wrappers would write a call to torch's compiler for them.

    def user_kernel_info(self, changed: tuple[str, ...], options: dict[str, Any]) -> type[OutboardTritonKernel]:
        """Return the class that provides the metadata of a kernel.

        `changed` are the arguments that the kernel writes; `options` are the launch's options for the back end.
        """

        class UserKernel(OutboardTritonKernel):
            @classmethod
            def inductor_meta_common(cls) -> dict[str, Any]:
                own = {"mutated_arg_names": list(changed), "backend_options": options}
                return {**super().inductor_meta_common(), **own}

        return UserKernel

    def launch_options(self, device: torch.device, options: dict[str, Any], arguments: Any) -> dict[str, Any]:
        """Return the keywords of a launch that are options for the back end."""
        from torch._inductor.runtime import triton_helpers
        from torch._inductor.runtime.triton_compat import GPUTarget

        target = self.driver.triton_target(device.index or 0)
        find: Any = triton_helpers.try_filter_backend_options_for_target  # type: ignore[attr-defined]
        return find(GPUTarget(target.backend, target.arch, target.warp_size), options, arguments)  # type: ignore[no-any-return]

    def define_user_kernel(self, wrapper: Any, name: str, body: str, comment: str | None) -> None:
        call = ast.parse(body).body[0]
        match call:
            case ast.Expr(value=ast.Call(args=[ast.Constant(value=str(entry)), ast.Constant(value=str(source))])):
                device = V.graph.get_current_device_or_throw()
                wrapper.define_tuned(Definition(name, entry, source, device, self.driver), comment)
            case _:
                raise OutboardError(
                    f"cannot read Inductor's definition of the kernel {name}: {body.partition('(')[0]!r} is not called "
                    "with a name and a source. torch-outboard does not support this version of torch"
                )


@functools.cache
def scheduling_for(driver: Driver) -> type[OutboardTritonScheduling]:
    """Return the scheduling for a driver's devices."""
    return type("DriverScheduling", (OutboardTritonScheduling,), {"driver": driver})
