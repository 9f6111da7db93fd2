# SPDX-License-Identifier: BSD-3-Clause
"""Generators of kernels in a C dialect."""
