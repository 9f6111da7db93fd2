# SPDX-License-Identifier: BSD-3-Clause
"""The old name of `torch_outboard.codegen.values`."""

from torch_outboard._moved import forward
from torch_outboard.codegen import values

forward(__name__, values)
