# SPDX-License-Identifier: BSD-3-Clause
"""A driver whose native kernels round differently from the CPU's, as those of an accelerator do."""

from __future__ import annotations

import torch
from torch.utils import _pytree

from examples.pure_python_driver import PythonDriver
from torch_outboard import Option

# Products, reductions and transcendental functions: what no two devices round alike.
OPERATORS = (
    *("mm.out", "addmm.out", "bmm.out", "baddbmm.out", "dot", "convolution_overrideable"),
    *("convolution_backward_overrideable", "native_layer_norm", "native_group_norm"),
    *("exp.out", "log.out", "sin.out", "tanh.out", "sigmoid.out", "sqrt.out", "erf.out", "pow.Tensor_Scalar_out"),
    *("gelu.out", "_softmax.out", "_log_softmax.out", "tanh_backward.grad_input", "sigmoid_backward.grad_input"),
    *("sum.IntList_out", "mean.out", "cumsum.out", "linalg_vector_norm.out", "addcdiv.out", "lerp.Scalar_out"),
    *("mse_loss.out", "_foreach_addcdiv_.Scalar", "_foreach_sqrt", "_foreach_norm.Scalar"),
)
# The functional forms whose names do not say so.
FUNCTIONAL = {
    "pow.Tensor_Scalar_out": "pow.Tensor_Scalar",
    "tanh_backward.grad_input": "tanh_backward",
    "sigmoid_backward.grad_input": "sigmoid_backward",
    "sum.IntList_out": "sum.dim_IntList",
    "mean.out": "mean.dim",
    "lerp.Scalar_out": "lerp.Scalar",
}


def in_double(name):
    """Return a kernel that runs a float32 operator on the CPU in double precision and rounds its results."""
    packet, _, overload = name.partition(".")
    op = getattr(getattr(torch.ops.aten, packet), overload or "default")
    outs = [argument.name for argument in op._schema.arguments if argument.is_out]

    def kernel(*arguments, **keywords):
        tensors = [t for t in _pytree.tree_leaves((arguments, keywords)) if isinstance(t, torch.Tensor)]
        if not tensors or any(t.dtype != torch.float32 or t.layout != torch.strided for t in tensors):
            return NotImplemented
        device = tensors[0].device
        wide = _pytree.tree_map_only(torch.Tensor, lambda t: t.cpu().double(), (arguments, keywords))
        results = op(*wide[0], **wide[1])
        outputs = [keywords[name] for name in outs]
        fresh = _pytree.tree_leaves(results) if outs else []
        if any(out.shape != result.shape for out, result in zip(outputs, fresh, strict=True)):
            return NotImplemented  # to be resized
        for ours, theirs in zip(outputs, fresh, strict=True):
            ours.copy_(theirs)
        for info, ours, theirs in zip(op._schema.arguments, arguments, wide[0], strict=False):
            if info.alias_info is not None and info.alias_info.is_write:
                for target, source in zip(_pytree.tree_leaves(ours), _pytree.tree_leaves(theirs), strict=True):
                    target.copy_(source)
        if outs or results is None:
            return None
        return _pytree.tree_map_only(torch.Tensor, lambda t: t.to(device, torch.float32), results)

    return kernel


class RoundingDriver(PythonDriver):
    name = "rounding"
    options = {**PythonDriver.options, "devices": Option(int, 1, "Number of devices.")}
    # Whichever form of a structured operator arrives, functional or out=.
    kernels = {
        f"aten::{form}": in_double(form)
        for name in OPERATORS
        for form in {name, FUNCTIONAL.get(name, name.removesuffix(".out"))}
    }
