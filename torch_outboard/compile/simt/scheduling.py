# SPDX-License-Identifier: BSD-3-Clause
"""The old name of `torch_outboard.codegen.scheduling`."""

from torch_outboard._moved import forward
from torch_outboard.codegen import scheduling

forward(__name__, scheduling)
