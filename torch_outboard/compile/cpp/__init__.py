# SPDX-License-Identifier: BSD-3-Clause
"""C++: kernels for memory that the host can reach, and the C++ wrapper of every generator."""
