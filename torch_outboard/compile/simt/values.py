# SPDX-License-Identifier: BSD-3-Clause
"""The old name of `torch_outboard.codegen.kernel.values`."""

from torch_outboard._moved import forward
from torch_outboard.codegen.kernel import values

forward(__name__, values)
