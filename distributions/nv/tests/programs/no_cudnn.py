# SPDX-License-Identifier: BSD-3-Clause
"""Run operators of cuDNN on nv with a cuDNN that cannot be used: python no_cudnn.py LIBCUDA LIBCUDNN [WHAT]

A third argument names the only thing that cuDNN cannot do: "attention" or "recurrent". With OB_FAKE_CUDNN_WORKSPACE,
there is no memory for gradients or recurrent nets.
"""

from __future__ import annotations

import copy
import os
import sys

import torch

os.environ["OUTBOARD_PROVIDERS"] = "native,host"
os.environ["OUTBOARD_FALLBACK"] = "silent"

import torch_outboard

IS_SHORT = "OB_FAKE_CUDNN_WORKSPACE" in os.environ
MISSING = sys.argv[3] if len(sys.argv) > 3 else "all"
attention = torch.nn.functional.scaled_dot_product_attention


def vendor_ops() -> list[str]:
    return [row.op for row in torch_outboard.coverage() if row.provider == "native"]


module = torch_outboard.attach("nv", library=sys.argv[1], cudnn=sys.argv[2])
if IS_SHORT:
    total = module.get_device_properties(0).total_memory
    module.set_per_process_memory_fraction((1 << 28) / total)
x, weight = torch.randn(2, 4, 6, 6), torch.randn(8, 4, 3, 3)
gradient = torch.randn(2, 8, 4, 4)
aten = torch.ops.aten
sizes = (None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [False, True, False])
expected = aten.convolution_backward(gradient, x, weight, *sizes)[1]
ours = aten.convolution_backward(gradient.to("nv"), x.to("nv"), weight.to("nv"), *sizes)[1]
torch.testing.assert_close(ours.cpu(), expected)
if MISSING == "all":
    assert not vendor_ops(), vendor_ops()

query = torch.randn(2, 2, 16, 32, dtype=torch.float16)
leaf = query.to("nv").requires_grad_()
result = attention(leaf, leaf, leaf)
torch.testing.assert_close(result.detach().cpu(), attention(query, query, query), atol=2e-3, rtol=2e-3)
if IS_SHORT:
    # The host has no kernel for the gradients of whole nets, and generated kernels are disabled
    # here.
    try:
        result.sum().backward()
    except NotImplementedError as error:
        assert "fused_attention_overrideable" in str(error), error
    else:
        raise AssertionError("the gradients had no memory")
    dropped = attention(leaf, leaf, leaf, dropout_p=0.5)
    try:
        torch.autograd.grad(dropped, leaf, torch.ones_like(dropped))
    except torch.OutOfMemoryError as error:
        assert "scratch memory" in str(error), error
    else:
        raise AssertionError("the gradients of dropout had no memory")
else:
    assert any("attention" in op for op in vendor_ops()) == (MISSING == "recurrent"), vendor_ops()

net = torch.nn.GRU(4, 6, 2)
rows = torch.randn(3, 2, 4)
try:
    ours = copy.deepcopy(net).to("nv")(rows.to("nv"))[0]
except torch.OutOfMemoryError as error:
    assert IS_SHORT and "scratch memory" in str(error) and "outboard::recurrent_net" in str(error), error
else:
    torch.testing.assert_close(ours.detach().cpu(), net(rows)[0].detach(), atol=1e-3, rtol=1e-3)  # rounded to TF32
    assert not IS_SHORT
assert any("recurrent_net" in op for op in vendor_ops()) == (MISSING == "attention"), vendor_ops()
