# SPDX-License-Identifier: BSD-3-Clause
"""The old name of `torch_outboard.codegen.groups`."""

from torch_outboard._moved import forward
from torch_outboard.codegen import groups

forward(__name__, groups)
