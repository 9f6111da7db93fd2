# SPDX-License-Identifier: BSD-3-Clause
"""The old name of `torch_outboard.codegen.dialects`."""

from torch_outboard._moved import forward
from torch_outboard.codegen import dialects

forward(__name__, dialects)
