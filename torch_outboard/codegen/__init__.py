# SPDX-License-Identifier: BSD-3-Clause
"""Kernels as text, in C for a dialect, the language of a device or the host's C++ to prove them.

Operators of eager code and torch.compile share it.
"""
