# SPDX-License-Identifier: BSD-3-Clause
"""The old name of `torch_outboard.codegen.dialects.host_cpp`."""

from torch_outboard._moved import forward
from torch_outboard.codegen.dialects import host_cpp

forward(__name__, host_cpp)
