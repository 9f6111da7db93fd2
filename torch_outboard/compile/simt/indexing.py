# SPDX-License-Identifier: BSD-3-Clause
"""The old name of `torch_outboard.codegen.indexing`."""

from torch_outboard._moved import forward
from torch_outboard.codegen import indexing

forward(__name__, indexing)
