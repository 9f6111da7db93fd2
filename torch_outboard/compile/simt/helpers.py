# SPDX-License-Identifier: BSD-3-Clause
"""The old name of `torch_outboard.codegen.prelude`."""

from torch_outboard._moved import forward
from torch_outboard.codegen import prelude

forward(__name__, prelude)
