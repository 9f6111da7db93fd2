# SPDX-License-Identifier: BSD-3-Clause
"""What generated Python code calls."""

from __future__ import annotations

from torch_outboard.compile.runtime.call import in_cpp
from torch_outboard.compile.runtime.host_kernel import cpp_kernel

__all__ = ["cpp_kernel", "in_cpp"]
