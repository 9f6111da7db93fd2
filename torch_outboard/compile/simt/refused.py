# SPDX-License-Identifier: BSD-3-Clause
"""The old name of `torch_outboard.codegen.refused`."""

from torch_outboard._moved import forward
from torch_outboard.codegen import refused

forward(__name__, refused)
