# SPDX-License-Identifier: BSD-3-Clause
"""Torch 2.11, and torch 2.12 if it behaves the same."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._library.custom_ops import CustomOpDef

__all__ = ["needs_attention_backward", "needs_register_autocast", "register_attention_backward", "register_autocast"]

_ATTENTION_BACKWARD = "_scaled_dot_product_fused_attention_overrideable_backward"


def needs_attention_backward() -> bool:
    """Return True if attention has a meta kernel but its gradients have none."""
    return not hasattr(torch._meta_registrations, f"meta_{_ATTENTION_BACKWARD}")


def register_attention_backward() -> None:
    """Register a meta kernel for attention's gradients, needed to trace them; newer versions have one."""
    if not needs_attention_backward():
        return

    def shapes(grad_out: Any, query: Any, key: Any, value: Any, attn_bias: Any, *rest: Any, **named: Any) -> Any:
        inputs = (query, key, value, attn_bias)
        return tuple(None if tensor is None else torch.empty_like(tensor) for tensor in inputs)

    library = torch.library.Library("aten", "IMPL", "Meta")  # type: ignore[no-untyped-call]
    library.impl(_ATTENTION_BACKWARD, shapes)  # type: ignore[no-untyped-call]
    torch.library._keep_alive.append(library)


def needs_register_autocast() -> bool:
    """Return True if torch.library.register_autocast has a fixed table with only the CPU and CUDA."""
    return "_autocast_cuda_dtype" in CustomOpDef.__init__.__code__.co_names


def register_autocast(device: str) -> None:
    """Make torch.library.register_autocast and CustomOpDef.register_autocast accept the attached device.

    Both refuse every device type except "cpu" and "cuda"; newer versions use the dispatcher. For other device types,
    torch's own behaviour is unchanged.
    """
    if not needs_register_autocast():
        return
    from torch._library.custom_ops import _cast, _maybe_get_opdef

    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)  # type: ignore[attr-defined]
    of_method = CustomOpDef.register_autocast
    of_library = torch.library.register_autocast

    def make_kernel(op: Any, cast_inputs: torch.dtype) -> Any:
        def kernel(_: object, *args: Any, **kwargs: Any) -> Any:
            if kwargs:
                raise AssertionError(f"Custom ops do not support kwargs yet, got {list(kwargs)}")
            with torch._C._ExcludeDispatchKeyGuard(keys):
                return op(*_cast(args, device, cast_inputs))

        return kernel

    @functools.wraps(of_method)
    def method(self: CustomOpDef, device_type: str, cast_inputs: torch.dtype) -> Any:
        if device_type != device:
            return of_method(self, device_type, cast_inputs)
        kernel = make_kernel(self._opoverload, cast_inputs)
        self._lib.impl(self._name, kernel, "AutocastPrivateUse1", with_keyset=True)  # type: ignore[no-untyped-call]
        return kernel

    @functools.wraps(of_library)
    def function(op: Any, device_type: str, cast_inputs: torch.dtype, /, *, lib: Any = None) -> Any:
        if device_type != device:
            return of_library(op, device_type, cast_inputs, lib=lib)
        name = op._name if isinstance(op, torch._ops.OpOverload) else op
        definition = _maybe_get_opdef(name)
        if definition is not None:
            return definition.register_autocast(device_type, cast_inputs)
        space, opname = torch._library.utils.parse_namespace(name)
        if lib is None:
            lib = torch.library.Library(space, "FRAGMENT")  # type: ignore[no-untyped-call]
            torch.library._keep_alive.append(lib)
        kernel = make_kernel(torch._library.utils.lookup_op(name), cast_inputs)
        return lib.impl(opname, kernel, "AutocastPrivateUse1", with_keyset=True)

    CustomOpDef.register_autocast = method  # type: ignore[method-assign]
    torch.library.register_autocast = function
