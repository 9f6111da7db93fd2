# SPDX-License-Identifier: BSD-3-Clause
"""The old name of `torch_outboard.codegen.helpers`."""

from torch_outboard._moved import forward
from torch_outboard.codegen import helpers

forward(__name__, helpers)
