# SPDX-License-Identifier: BSD-3-Clause
"""The old name of `torch_outboard.codegen.dialects.dialect`."""

from torch_outboard._moved import forward
from torch_outboard.codegen.dialects import dialect

forward(__name__, dialect)
