# SPDX-License-Identifier: BSD-3-Clause
"""All changes of this package to torch, for `outboard info --patches`.

Checking whether a change is needed imports torch's compiler.
"""

from __future__ import annotations

import importlib
from typing import NamedTuple

__all__ = ["PATCHES", "Patch"]

_ISSUE = "https://github.com/pytorch/pytorch/issues/"


class Patch(NamedTuple):
    """One change: the replaced code, the purpose, the upstream request, and the condition that makes it unnecessary.

    `question` is the function that checks whether the running torch needs the change, or None if every torch does.
    """

    target: str
    purpose: str
    upstream: str
    ends_when: str
    question: str | None

    def is_needed(self) -> bool:
        if self.question is None:
            return True
        module, _, name = self.question.partition(".")
        return bool(getattr(importlib.import_module(f"torch_outboard._compat.{module}"), name)())


PATCHES: tuple[Patch, ...] = (
    Patch(
        "torch.Tensor.__dlpack_device__",
        "know the device by its name",
        f"{_ISSUE}195815",
        "the method asks for the name of the device that torch renamed",
        "every_torch.needs_dlpack_device",
    ),
    Patch(
        "torch._meta_registrations.device_hint",
        "return the same shapes and strides as the CPU's kernels",
        f"{_ISSUE}189137",
        "meta kernels ask the device for its kernels' shapes and strides",
        "every_torch.needs_hint_cpu",
    ),
    Patch(
        "the setters in torch._C for the default dtype, determinism and precision, which CPU kernels read",
        "finish queued calls before a setting changes",
        "no issue: torch's settings belong to the process",
        "torch notifies a device before a setting changes",
        "every_torch.needs_wait_before_setting_change",
    ),
    Patch(
        "nothing: each of the CPU's unary functions is called once",
        "let oneMKL choose their code on one thread",
        f"{_ISSUE}188792",
        "torch is built with oneMKL 2025",
        "vector_math.needs_initialize_vector_math",
    ),
    Patch(
        "torch._tensor_str._tensor_str",
        "print a copy on the CPU",
        "its list of devices, torch/_tensor_str.py",
        "torch prints a CPU copy for every device of another package",
        "printing.needs_print_from_cpu",
    ),
    Patch(
        "the functions that torch._disable_dynamo wraps in torch._refs",
        "run without importing Dynamo",
        "https://github.com/pytorch/pytorch/pull/146219",
        "_disable_dynamo calls the function directly while Dynamo is not imported",
        "dynamo.needs_defer_dynamo",
    ),
    Patch(
        "the reduction of torch.UntypedStorage in torch.multiprocessing",
        "share the device's memory between processes",
        f"{_ISSUE}192099",
        "the hooks of PrivateUse1 share memory between processes",
        "sharing.needs_share_storages",
    ),
    Patch(
        "torch.library.register_autocast, CustomOpDef.register_autocast",
        "accept the device's type",
        "done in torch 2.13",
        "torch 2.11 and 2.12 are no longer supported",
        "torch_2_11.needs_register_autocast",
    ),
    Patch(
        "the meta kernel of _scaled_dot_product_fused_attention_overrideable_backward",
        "trace the gradients of attention",
        "done in torch 2.13",
        "torch 2.11 and 2.12 are no longer supported",
        "torch_2_11.needs_attention_backward",
    ),
    Patch(
        "torch.distributed.distributed_c10d._new_process_group_helper",
        "choose the device's backend in init_process_group() without a name",
        "torch 2.15 uses the map, but leaves CPU tensors without a backend",
        "a group without a name takes the backends of all devices in the map",
        "distributed.needs_choose_backend",
    ),
    Patch(
        "a finder on sys.meta_path",
        "run a function when torch's compiler is imported",
        f"{_ISSUE}189138",
        "Dynamo asks a device's module for its interface, as Inductor asks for its back end from 2.15 on",
        None,
    ),
    Patch(
        "torch.nn.attention.flex_attention._validate_device, flex_attention_hop",
        "let the device call flex_attention, compiled without Triton too",
        "its list of devices, torch/nn/attention/flex_attention.py",
        "the device's interface says whether it runs flex_attention",
        "flex_attention.needs_accept_device",
    ),
    Patch(
        "torch.nested._internal.ops.jagged_scaled_dot_product_attention",
        "attend to jagged nested tensors by padded ones",
        "its choice of backends, torch/nested/_internal/sdpa.py",
        "the choice of backends asks the device",
        "nested.needs_attend_jagged",
    ),
    Patch(
        "torch._inductor.ir.is_cpu, BaseSchedulerNode.is_cpu",
        "fuse as for the CPU, whose generator is used",
        f"{_ISSUE}189135",
        "the scheduler asks the device's scheduling",
        "inductor.needs_fuse_as_on_cpu",
    ),
    Patch(
        "torch._inductor.choices.InductorChoices.reduction_split_factor",
        "split reductions for devices without multiprocessors and warps",
        "done in torch 2.15: register_inductor_choices",
        "torch 2.14 is no longer supported",
        "splits.needs_split_reductions",
    ),
    Patch(
        "torch._inductor.dtype_propagation.DtypePropagationOpsHandler.__init__",
        "build the dtype rules of operations once, not for each operation",
        "done in torch 2.15",
        "torch 2.14 is no longer supported",
        "rules.needs_cache_rules",
    ),
    Patch(
        "torch._inductor.scheduler.ForeachKernelSchedulerNode.combinable_nodes",
        "keep kernels that are not written in Triton out of combo_kernels",
        "its list of devices, torch/_inductor/scheduler.py",
        "the features of a device's scheduling say whether it combines kernels",
        "inductor.needs_combine_in_triton",
    ),
    Patch(
        "the convolutions of torch._subclasses.fake_impls",
        "return the same strides as the CPU's kernels",
        f"{_ISSUE}189137",
        "fake tensors ask the device for a convolution's strides",
        "inductor.needs_lay_out_as_on_cpu",
    ),
    Patch(
        "torch._inductor.graph.SUPPORTED_MKLDNN_DEVICES",
        "run convolutions in the memory format in which the CPU's are fastest",
        f"{_ISSUE}189137",
        "the device's scheduling chooses the format of convolutions",
        "inductor.needs_convolve_as_on_cpu",
    ),
    Patch(
        "check_lowering_disable_cudagraph, CompiledFxGraph.post_compile",
        'capture graphs for mode="reduce-overhead"',
        f"{_ISSUE}132856",
        "Inductor captures graphs with torch.accelerator.Graph",
        "inductor.needs_capture_graphs",
    ),
    Patch(
        "torch._inductor.codecache._get_cpp_wrapper_header",
        "precompile the device's header of ahead-of-time models",
        f"{_ISSUE}189998, in torch 2.15: get_cpp_device_options",
        "torch 2.14 is no longer supported",
        "inductor.needs_model_header",
    ),
    Patch(
        "the lowering of fractional_max_pool3d in torch._inductor.lowering",
        "read the random samples in the order of the dimensions",
        f"{_ISSUE}183249",
        "the lowering is fixed",
        "pools.needs_fix_fractional_max_pool",
    ),
    Patch(
        "the lowerings of avg_pool2d_backward and avg_pool3d_backward in torch._inductor.lowering",
        "divide by the number of elements in a window that ceil_mode extends beyond the padding",
        f"{_ISSUE}198119",
        "the lowerings are fixed",
        "pools.needs_fix_avg_pool_gradients",
    ),
    Patch(
        "torch._inductor.utils.get_gpu_dram_gbps, get_device_tflops",
        "estimate run times without Triton, as for graphs with several streams",
        "its import, torch/utils/_runtime_estimation.py",
        "a device can register its speeds",
        "estimates.needs_estimate_speeds",
    ),
    Patch(
        "torch._functorch._aot_autograd.streams._wrap_sync_node",
        "divide the graph of a training step with several streams",
        "https://github.com/pytorch/pytorch/pull/187695, in torch 2.14",
        "torch 2.13 is no longer supported",
        "streams.needs_order_streams",
    ),
    Patch(
        "torch._dynamo.variables.streams.SymbolicStreamState.cur_stream",
        "trace the current stream of a device that is not the current one",
        "no issue: torch takes the current device's stream",
        "tracing asks for the stream of the named device",
        "streams.needs_trace_current_stream",
    ),
    Patch(
        "torch._inductor.utils.GPU_TYPES, get_gpu_type, scheduler.has_triton",
        "generate Triton kernels for the device",
        "done in torch 2.14, where a driver is attached before Inductor is imported",
        "torch 2.13 is no longer supported",
        "triton.needs_list_as_gpu",
    ),
    Patch(
        "torch.utils._triton.has_triton",
        "trace a program's own Triton kernels",
        "done in torch 2.14",
        "torch 2.13 is no longer supported",
        "triton.needs_count_as_triton",
    ),
    Patch(
        "triton.runtime.driver.active, JITFunction.run, Autotuner.run",
        "launch Triton kernels with the driver of their tensors' device",
        "no issue: Triton has one active driver per process",
        "Triton chooses its driver from a launch's tensors",
        "triton.needs_choose_driver",
    ),
)
