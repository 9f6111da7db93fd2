# SPDX-License-Identifier: BSD-3-Clause
"""The old name of `torch_outboard.codegen.chunks`."""

from torch_outboard._moved import forward
from torch_outboard.codegen import chunks

forward(__name__, chunks)
