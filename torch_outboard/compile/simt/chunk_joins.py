# SPDX-License-Identifier: BSD-3-Clause
"""The old name of `torch_outboard.codegen.chunk_joins`."""

from torch_outboard._moved import forward
from torch_outboard.codegen import chunk_joins

forward(__name__, chunk_joins)
