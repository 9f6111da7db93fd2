# SPDX-License-Identifier: BSD-3-Clause
"""The old name of `torch_outboard.codegen.kernel.checking`."""

from torch_outboard._moved import forward
from torch_outboard.codegen.kernel import checking

forward(__name__, checking)
