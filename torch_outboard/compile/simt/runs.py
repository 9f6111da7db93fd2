# SPDX-License-Identifier: BSD-3-Clause
"""The old name of `torch_outboard.codegen.mapping.run`."""

from torch_outboard._moved import forward
from torch_outboard.codegen.mapping import run

forward(__name__, run)
