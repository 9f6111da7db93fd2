# SPDX-License-Identifier: BSD-3-Clause
"""The old name of `torch_outboard.compile.runtime.simt_kernel`."""

from torch_outboard._moved import forward
from torch_outboard.compile.runtime import simt_kernel

forward(__name__, simt_kernel)
