# SPDX-License-Identifier: BSD-3-Clause
"""The old name of `torch_outboard.codegen.mapping.parts`."""

from torch_outboard._moved import forward
from torch_outboard.codegen.mapping import parts

forward(__name__, parts)
