# SPDX-License-Identifier: BSD-3-Clause
"""The Python wrapper, which calls a graph's kernels, and the parts that all wrappers share."""
