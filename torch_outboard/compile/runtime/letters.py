# SPDX-License-Identifier: BSD-3-Clause
"""The old name of `torch_outboard.codegen.letters`."""

from torch_outboard._moved import forward
from torch_outboard.codegen import letters

forward(__name__, letters)
