# SPDX-License-Identifier: BSD-3-Clause
"""All versions of torchvision: it registers autocast rules for its operators on the CPU, CUDA and XPU only.

On another device, an operator then receives tensors of two dtypes and refuses them: boxes in half precision, scores in
float32.
"""

from __future__ import annotations

from types import ModuleType

import torch

from torch_outboard._compat.imports import when_imported

__all__ = ["POLICIES", "cast_operators"]

# The policies that torchvision uses on its own devices.
POLICIES = {
    "torchvision::deform_conv2d": "fp32_cast_back",
    "torchvision::nms": "fp32",
    "torchvision::ps_roi_align": "fp32_cast_back",
    "torchvision::ps_roi_pool": "fp32_cast_back",
    "torchvision::roi_align": "fp32_cast_back",
    "torchvision::roi_pool": "fp32_cast_back",
}


def cast_operators() -> None:
    """Register autocast policies for torchvision's operators, once torchvision is imported.

    Policies set by the driver or the program, and kernels registered by torchvision or another library, are kept.
    """
    from torch_outboard import _C

    if _C.has_autocast():
        when_imported("torchvision", _set_policies)


def _set_policies(_: ModuleType) -> None:
    from torch_outboard import _C

    # Without its library (for example, if it was built for another torch), torchvision has no
    # operators.
    known = set(torch._C._dispatch_get_all_op_names())
    for name, policy in POLICIES.items():
        has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
        if name in known and not has_kernel(name, "AutocastPrivateUse1"):
            _C.set_cast_policy(name, policy)
