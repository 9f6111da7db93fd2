# SPDX-License-Identifier: BSD-3-Clause
"""The old name of `torch_outboard.codegen.formula`."""

from torch_outboard._moved import forward
from torch_outboard.codegen import formula

forward(__name__, formula)
