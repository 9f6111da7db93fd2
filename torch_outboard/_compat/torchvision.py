# SPDX-License-Identifier: BSD-3-Clause
"""All versions of torchvision: it registers how its operators cast under autocast for the CPU, CUDA and XPU only.

On another device an operator then meets tensors of two dtypes, which it refuses: boxes in half precision, scores in
float32.
"""

from __future__ import annotations

from types import ModuleType

import torch

from torch_outboard._compat.imports import when_imported

__all__ = ["POLICIES", "cast_operators"]

# As for torchvision's own devices.
POLICIES = {
    "torchvision::deform_conv2d": "fp32_cast_back",
    "torchvision::nms": "fp32",
    "torchvision::ps_roi_align": "fp32_cast_back",
    "torchvision::ps_roi_pool": "fp32_cast_back",
    "torchvision::roi_align": "fp32_cast_back",
    "torchvision::roi_pool": "fp32_cast_back",
}


def cast_operators() -> None:
    """Give torchvision's operators their policies under autocast, once torchvision is imported.

    An operator keeps the policy that the driver or the program has given it, and the kernel that torchvision or another
    library has registered for it.
    """
    from torch_outboard import _C

    if _C.has_autocast():
        when_imported("torchvision", _set_policies)


def _set_policies(_: ModuleType) -> None:
    from torch_outboard import _C

    # Without its library, as where it was built for another torch, torchvision has no operators.
    known = set(torch._C._dispatch_get_all_op_names())
    for name, policy in POLICIES.items():
        has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
        if name in known and not has_kernel(name, "AutocastPrivateUse1"):
            _C.set_cast_policy(name, policy)
