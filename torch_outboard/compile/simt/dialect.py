# SPDX-License-Identifier: BSD-3-Clause
"""The old name of `torch_outboard.codegen.dialect`."""

from torch_outboard._moved import forward
from torch_outboard.codegen import dialect

forward(__name__, dialect)
