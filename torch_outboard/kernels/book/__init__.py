# SPDX-License-Identifier: BSD-3-Clause
"""The book: the package's knowledge about PyTorch's operators, one row per operator, grouped by subject.

`table.py` resolves the rows. Everything else about how an operator is computed comes from PyTorch: its decompositions,
and Inductor's decompositions and lowerings.
"""
