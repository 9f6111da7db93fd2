# SPDX-License-Identifier: BSD-3-Clause
"""The old name of `torch_outboard.codegen.dialects.cuda_cpp`."""

from torch_outboard._moved import forward
from torch_outboard.codegen.dialects import cuda_cpp

forward(__name__, cuda_cpp)
