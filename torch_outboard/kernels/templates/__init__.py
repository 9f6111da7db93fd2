# SPDX-License-Identifier: BSD-3-Clause
"""Kernels for operators that Inductor leaves to a library: a template writes steps of a plan for an operator's call.

Rows of the book name the templates (`kernels/book`). Their operators stay calls when a graph is lowered. Where a plan
would call one, its template writes allocations and launches instead, and returns the names of the operator's results,
None for an undefined one. That holds for the called operator and for parts of another's decomposition. A template
writes one text for all sizes, with sizes and strides as arguments of the kernel.
"""
