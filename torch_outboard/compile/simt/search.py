# SPDX-License-Identifier: BSD-3-Clause
"""The old name of `torch_outboard.codegen.kernel.search`."""

from torch_outboard._moved import forward
from torch_outboard.codegen.kernel import search

forward(__name__, search)
