# SPDX-License-Identifier: BSD-3-Clause
"""The code generator: it writes kernels as C text, in a device's dialect or in the host's C++ to verify them.

Eager operators and torch.compile share it.
"""
