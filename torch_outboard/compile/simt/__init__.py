# SPDX-License-Identifier: BSD-3-Clause
"""The generators of kernels in C for a dialect."""
