# SPDX-License-Identifier: BSD-3-Clause
"""The old name of `torch_outboard.codegen.runs`."""

from torch_outboard._moved import forward
from torch_outboard.codegen import runs

forward(__name__, runs)
