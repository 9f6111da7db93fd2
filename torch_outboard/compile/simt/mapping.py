# SPDX-License-Identifier: BSD-3-Clause
"""The old name of `torch_outboard.codegen.mapping`."""

from torch_outboard._moved import forward
from torch_outboard.codegen import mapping

forward(__name__, mapping)
