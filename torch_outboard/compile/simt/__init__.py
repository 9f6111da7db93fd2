# SPDX-License-Identifier: BSD-3-Clause
"""Kernels in C for a dialect: the language of a device, or the host's C++ to prove them."""
