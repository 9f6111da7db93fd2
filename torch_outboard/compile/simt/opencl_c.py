# SPDX-License-Identifier: BSD-3-Clause
"""The old name of `torch_outboard.codegen.dialects.opencl_c`."""

from torch_outboard._moved import forward
from torch_outboard.codegen.dialects import opencl_c

forward(__name__, opencl_c)
