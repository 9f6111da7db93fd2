# SPDX-License-Identifier: BSD-3-Clause
"""The functions that generated Python code calls: constructors of host and device kernels, and calls of C++."""

from __future__ import annotations

from torch_outboard.compile.runtime.call import in_cpp
from torch_outboard.compile.runtime.device_kernel import device_kernel
from torch_outboard.compile.runtime.host_kernel import cpp_kernel

__all__ = ["cpp_kernel", "device_kernel", "in_cpp"]
