# SPDX-License-Identifier: BSD-3-Clause
"""Convolve on nv with a cuDNN that can't be used: python no_convolutions.py LIBCUDA LIBCUDNN"""

from __future__ import annotations

import os
import sys

import torch

os.environ["OUTBOARD_PROVIDERS"] = "native,host"
os.environ["OUTBOARD_FALLBACK"] = "silent"

import torch_outboard

torch_outboard.attach("nv", library=sys.argv[1], cudnn=sys.argv[2])
x, weight = torch.randn(2, 4, 6, 6), torch.randn(8, 4, 3, 3)
ours = torch.nn.functional.conv2d(x.to("nv"), weight.to("nv"))
torch.testing.assert_close(ours.cpu(), torch.nn.functional.conv2d(x, weight))
calls = torch_outboard.coverage().calls(provider="native")
assert not (sum(calls.values()) if isinstance(calls, dict) else calls), "a missing library took a call"
