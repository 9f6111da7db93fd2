# SPDX-License-Identifier: BSD-3-Clause
"""All supported versions of torch: decisions that Inductor bases on the device's name, not on its capabilities."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from torch_outboard._compat.source import mentions

__all__ = [
    "capture_graphs",
    "combine_in_triton",
    "convolve_as_on_cpu",
    "fuse_as_on_cpu",
    "lay_out_as_on_cpu",
    "name_model_header",
    "needs_capture_graphs",
    "needs_combine_in_triton",
    "needs_convolve_as_on_cpu",
    "needs_fuse_as_on_cpu",
    "needs_lay_out_as_on_cpu",
    "needs_model_header",
]


def needs_fuse_as_on_cpu() -> bool:
    """Return True if the scheduler decides by the device's name, not by the capabilities of the device's scheduling."""
    from torch._inductor import ir, scheduler

    return any(mentions(function, "cpu") for function in (scheduler.BaseSchedulerNode.is_cpu, ir.is_cpu))


def fuse_as_on_cpu(is_as_cpu: Callable[[torch.device], bool]) -> None:
    """Make Inductor fuse loops for such devices as for the CPU, because they use the CPU's kernels.

    Reordering and reindexing of loops produce code that the C++ generator cannot write, or groups that it does not have
    (a TypeError in _try_reindex_pointwise_for_reduction). Torch skips both for devices named "cpu". The thresholds
    above which values are stored instead of recomputed are the CPU's too, so that the same kernels result. There is no
    hook: Inductor does not query the device's scheduling. Upstream: https://github.com/pytorch/pytorch/issues/189135.
    """
    if not needs_fuse_as_on_cpu():
        return
    from torch._inductor import ir, scheduler

    of_node = scheduler.BaseSchedulerNode.is_cpu
    of_value = ir.is_cpu

    @functools.wraps(of_node)
    def is_cpu_node(self: Any) -> bool:
        where = self.get_device()
        return of_node(self) or (where is not None and is_as_cpu(where))

    @functools.wraps(of_value)
    def is_cpu_value(value: Any) -> bool:
        return of_value(value) or (where := _device_of(value)) is not None and is_as_cpu(where)

    scheduler.BaseSchedulerNode.is_cpu = is_cpu_node  # type: ignore[method-assign]
    ir.is_cpu = is_cpu_value  # type: ignore[assignment]


def _device_of(value: Any) -> torch.device | None:
    """Return the device of an argument of ir.is_cpu: a value, a device, or a device type."""
    where = value if value is None or isinstance(value, (str, torch.device)) else value.get_device()
    return torch.device(where) if isinstance(where, str) else where


def needs_lay_out_as_on_cpu() -> bool:
    """Return True if the strides of a convolution's fake result depend on the back end of the device's type."""
    from torch._subclasses import fake_impls

    implementation = fake_impls.op_implementations_dict[torch.ops.aten.convolution.default]
    return mentions(implementation, "_select_conv_backend")


def lay_out_as_on_cpu(is_as_cpu: Callable[[torch.device], bool]) -> None:
    """Make convolutions of fake tensors return the strides of the CPU's kernels, which run for such devices.

    For an out-of-tree device, torch chooses a back end and assumes contiguous results. The CPU's results are in the
    format of the input or the weight, and compiled code asserts strides. There is no hook for a driver: implementations
    for fake tensors belong to operators. Upstream: https://github.com/pytorch/pytorch/issues/189137.
    """
    if not needs_lay_out_as_on_cpu():
        return
    from torch._subclasses import fake_impls
    from torch._subclasses.fake_tensor import FakeTensor

    aten = torch.ops.aten
    of_torch = fake_impls.op_implementations_dict[aten.convolution.default]

    @functools.wraps(of_torch)
    def convolution(mode: Any, operator: Any, *args: Any, **kwargs: Any) -> Any:
        ours = [
            leaf.fake_device
            for leaf in tree_leaves((args, kwargs))
            if isinstance(leaf, FakeTensor) and is_as_cpu(leaf.fake_device)
        ]
        if not ours:
            return of_torch(mode, operator, *args, **kwargs)

        def on(place: torch.device, value: Any) -> Any:
            if not isinstance(value, FakeTensor):
                return value
            with mode:
                return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=place)

        args, kwargs = tree_map(functools.partial(on, torch.device("cpu")), (args, kwargs))
        return tree_map(functools.partial(on, ours[0]), of_torch(mode, operator, *args, **kwargs))

    for operator in (
        aten.convolution.default,
        aten._convolution.default,
        aten._convolution.deprecated,
        aten.convolution_backward.default,
    ):
        if fake_impls.op_implementations_dict.get(operator) is of_torch:
            fake_impls.op_implementations_dict[operator] = convolution


def needs_convolve_as_on_cpu() -> bool:
    """Return True if Inductor chooses the memory format of convolutions by device name."""
    from torch._inductor import graph

    return mentions(graph.GraphLowering.decide_layout_opt, "SUPPORTED_MKLDNN_DEVICES")


def convolve_as_on_cpu(is_as_cpu: Callable[[torch.device], bool]) -> None:
    """Make Inductor run graphs with convolutions in channels-last format, as it does if oneDNN runs them.

    Inductor has a list of devices for this. Other devices get a heuristic for GPUs, which keeps small models
    contiguous. Here this format is slower (by 5 to 10 % for a training step of a CNN on digits). Upstream:
    https://github.com/pytorch/pytorch/issues/189137.
    """
    if not needs_convolve_as_on_cpu():
        return
    from torch._inductor import config, graph

    of_torch = graph.GraphLowering.decide_layout_opt

    @functools.wraps(of_torch)
    def decide_layout_opt(gm: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> bool:
        convolutions = [node for node in gm.graph.nodes if node.target is torch.ops.aten.convolution.default]
        devices = [node.args[place].meta["val"].device for node in convolutions for place in (0, 1)]
        listed: Any = graph.SUPPORTED_MKLDNN_DEVICES  # type: ignore[attr-defined]
        is_served = all(is_as_cpu(device) or device.type in listed for device in devices)
        has_mkldnn = torch.backends.mkldnn.enabled and torch._C._has_mkldnn
        if config.layout_optimization and devices and is_served and has_mkldnn:
            return True
        return of_torch(gm, *args, **kwargs)

    graph.GraphLowering.decide_layout_opt = staticmethod(decide_layout_opt)  # type: ignore[method-assign]


def needs_combine_in_triton() -> bool:
    """Return True if Inductor combines kernels on every device except those on a list."""
    from torch._inductor import scheduler

    node: Any = scheduler.ForeachKernelSchedulerNode
    names = ("_default_group_nodes_for_combo_kernels", "_filter_nodes_for_combo_kernel_grouping")
    return any(mentions(getattr(node, name), "mps") for name in names if hasattr(node, name))


def combine_in_triton(device: str, is_in_triton: Callable[[int], bool]) -> None:
    """Make the setting combo_kernels skip the device's kernels unless they are in Triton.

    Only Inductor's Triton generator can combine several kernels. The CPU is excluded by name, and devices cannot add
    themselves. Upstream: torch/_inductor/scheduler.py.
    """
    if not needs_combine_in_triton():
        return
    from torch._inductor import scheduler

    node: Any = scheduler.ForeachKernelSchedulerNode
    of_torch = node.combinable_nodes.__func__

    @functools.wraps(of_torch)
    def combinable_nodes(cls: Any, nodes: list[Any]) -> Any:
        def is_combined(where: torch.device | None) -> bool:
            return where is None or where.type != device or is_in_triton(where.index or 0)

        return of_torch(cls, [node for node in nodes if is_combined(node.get_device())])

    node.combinable_nodes = classmethod(combinable_nodes)


def needs_capture_graphs() -> bool:
    """Return True if Inductor refuses to capture a graph on one device because of the device's name."""
    from torch._inductor import cudagraph_utils

    nodes: Any = {torch.device(torch._C._get_privateuse1_backend_name(), 0): None}
    return cudagraph_utils.check_multiple_devices_or_any_cpu_nodes(nodes) is not None


def capture_graphs(device: str, capture_obstacle: Callable[..., str | None], install: Callable[..., None]) -> None:
    """Make mode="reduce-overhead" capture graphs of the device.

    At the end of lowering, `capture_obstacle` returns a reason against a capture. `install` puts a capturing function
    into a graph that was compiled or came from a cache. Torch does both only for devices on its own list, i.e. CUDA.
    It also ignores the setting cudagraph_policy of torch 2.13 for other devices. A policy for all devices would change
    CUDA's graphs, so if a policy is set, torch handles it. Upstream: https://github.com/pytorch/pytorch/issues/132856.
    """
    if not needs_capture_graphs():
        return
    from torch._inductor import config, cudagraph_utils, output_code, utils

    of_check = cudagraph_utils.check_lowering_disable_cudagraph
    of_graph = output_code.CompiledFxGraph.post_compile

    @functools.wraps(of_check)
    def check(nodes: Any) -> str | None:
        return capture_obstacle(nodes) if any(node.type == device for node in nodes) else of_check(nodes)

    @functools.wraps(of_graph)
    def post_compile(self: Any, example_inputs: Any, constants: Any, graph_kwargs: Any) -> None:
        is_foreign = (
            getattr(config, "cudagraph_policy", None) is not None
            or utils._unstable_customized_partition_wrapper.wrapper is not None
        )
        if device not in self.device_types or is_foreign:
            of_graph(self, example_inputs, constants, graph_kwargs)
            return
        is_wanted = bool(graph_kwargs["cudagraphs"])
        without: Any = {**graph_kwargs, "cudagraphs": utils.BoxedBool(False)}
        of_graph(self, example_inputs, constants, without)
        install(self, example_inputs, graph_kwargs, is_wanted)

    cudagraph_utils.check_lowering_disable_cudagraph = check  # type: ignore[assignment]
    output_code.CompiledFxGraph.post_compile = post_compile  # type: ignore[method-assign]


def needs_model_header() -> bool:
    """Return True if AOTInductor precompiles a header named after the device, in torch's own folder.

    Torch 2.15 queries the device's interface for further folders.
    """
    from torch._dynamo.device_interface import DeviceInterface
    from torch._inductor import codecache

    is_asked = hasattr(DeviceInterface, "get_cpp_device_options")
    return not is_asked and mentions(codecache._get_cpp_wrapper_header, "aoti_include")


def name_model_header(device: str, header: Callable[[], str | None]) -> None:
    """Make AOTInductor precompile the device's own header for models. `header` returns its path.

    AOTInductor would compile torch/csrc/inductor/aoti_include/<device>.h, which would have to be in torch's
    installation. The wrapper provides the header that models include, but not the precompiled header. The only
    alternative is aot_inductor.precompile_headers, a user setting. Upstream:
    https://github.com/pytorch/pytorch/issues/189998.
    """
    if not needs_model_header():
        return
    from torch._inductor import codecache

    of_device = codecache._get_cpp_wrapper_header

    @functools.wraps(of_device)
    def get_cpp_wrapper_header(device_type: str, aot_mode: bool = False) -> str:
        own = header() if aot_mode and device_type.partition(":")[0] == device else None
        return own or of_device(device_type, aot_mode)

    codecache._get_cpp_wrapper_header = get_cpp_wrapper_header  # type: ignore[assignment]
