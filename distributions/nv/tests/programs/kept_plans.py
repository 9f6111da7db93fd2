# SPDX-License-Identifier: BSD-3-Clause
"""Convolve with cuDNN, and print how often it was asked for engines: python kept_plans.py LIBCUDA LIBCUDNN

Runs without a GPU, with fake_cuda.cpp and fake_cudnn.cpp.
"""

from __future__ import annotations

import ctypes
import os
import sys

import torch

os.environ["OUTBOARD_PROVIDERS"] = "native,host"
os.environ["OUTBOARD_FALLBACK"] = "silent"

import torch_outboard

torch_outboard.attach("nv", library=sys.argv[1], cudnn=sys.argv[2])
library = ctypes.CDLL(sys.argv[2])
for name in ("fakeCudnnSearches", "fakeCudnnEngine"):
    getattr(library, name).restype = ctypes.c_int64

for groups in (1, 4):
    x = torch.randn(2, 8, 9, 9, requires_grad=True)
    weight = torch.randn(8, 8 // groups, 3, 3, requires_grad=True)
    ours = [tensor.detach().to("nv:0").requires_grad_() for tensor in (x, weight)]
    results = []
    for inputs in ([x, weight], ours):
        y = torch.nn.functional.conv2d(*inputs, padding=1, groups=groups)
        results.append([y, *torch.autograd.grad(y.square().sum(), inputs)])
    for result, expected in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(result.detach().cpu(), expected.detach(), atol=1e-3, rtol=1e-3)
print(library.fakeCudnnSearches(), library.fakeCudnnEngine())
