# SPDX-License-Identifier: BSD-3-Clause
"""All that this package changes of torch's, for `outboard info --patches`. Asking imports torch's compiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

__all__ = ["PATCHES", "Patch"]

_ISSUE = "https://github.com/pytorch/pytorch/issues/"


class Patch(NamedTuple):
    """One change: what it replaces, what for, where torch is asked for another way, and whether this torch needs it."""

    target: str
    purpose: str
    upstream: str
    is_needed: Callable[[], bool]


def _dlpack_device() -> bool:
    from torch_outboard._compat.every_torch import needs_dlpack_device

    return needs_dlpack_device()


def _share_storages() -> bool:
    from torch_outboard._compat.sharing import needs_share_storages

    return needs_share_storages()


def _register_autocast() -> bool:
    from torch_outboard._compat.torch_2_11 import needs_register_autocast

    return needs_register_autocast()


def _fuse_as_on_cpu() -> bool:
    from torch_outboard._compat.inductor import needs_fuse_as_on_cpu

    return needs_fuse_as_on_cpu()


def _lay_out_as_on_cpu() -> bool:
    from torch_outboard._compat.inductor import needs_lay_out_as_on_cpu

    return needs_lay_out_as_on_cpu()


def _capture_graphs() -> bool:
    import torch

    from torch_outboard._compat.inductor import needs_capture_graphs

    return needs_capture_graphs(torch._C._get_privateuse1_backend_name())


def _model_header() -> bool:
    from torch_outboard._compat.inductor import needs_model_header

    return needs_model_header()


PATCHES: tuple[Patch, ...] = (
    Patch("torch.Tensor.__dlpack_device__", "know the device by its name", f"{_ISSUE}195815", _dlpack_device),
    Patch(
        "the reduction of torch.UntypedStorage in torch.multiprocessing",
        "share the device's memory between processes",
        f"{_ISSUE}192099",
        _share_storages,
    ),
    Patch(
        "torch.library.register_autocast, CustomOpDef.register_autocast",
        "take the device's type",
        "done in torch 2.13",
        _register_autocast,
    ),
    Patch(
        "a finder on sys.meta_path",
        "tell when torch's compiler is imported",
        f"{_ISSUE}189138",
        lambda: True,  # torch has no hook that could be asked for
    ),
    Patch(
        "torch._inductor.ir.is_cpu, BaseSchedulerNode.is_cpu",
        "fuse as for the CPU, whose generator is used",
        f"{_ISSUE}189135",
        _fuse_as_on_cpu,
    ),
    Patch(
        "the convolutions of torch._subclasses.fake_impls",
        "give the strides that the CPU's kernels give",
        f"{_ISSUE}189137",
        _lay_out_as_on_cpu,
    ),
    Patch(
        "check_lowering_disable_cudagraph, CompiledFxGraph.post_compile",
        'capture graphs for mode="reduce-overhead"',
        f"{_ISSUE}132856",
        _capture_graphs,
    ),
    Patch(
        "torch._inductor.codecache._get_cpp_wrapper_header",
        "precompile the device's header of ahead-of-time models",
        f"{_ISSUE}189998",
        _model_header,
    ),
)
