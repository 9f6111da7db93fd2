# SPDX-License-Identifier: BSD-3-Clause
"""Kernels for operators that Inductor leaves to a library: a template writes the plan steps for an operator's call.

Rows of the book name the templates (`kernels/book`). Operators with a template remain calls when a graph is lowered. In
place of such a call, the template writes allocations and launches, and returns the names of the operator's results, or
None for an undefined result. This works for the called operator and for parts of another operator's decomposition. A
template writes one text for all sizes, with sizes and strides as kernel arguments.
"""
