# SPDX-License-Identifier: BSD-3-Clause
"""The Python function that calls a graph's kernels, and the parts that all wrappers share."""
