# SPDX-License-Identifier: BSD-3-Clause
"""The book: what the package knows of PyTorch's operators, one row an operator, by subject.

`table.py` resolves the rows. Everything else that decides how an operator is computed is PyTorch's: its decompositions,
and Inductor's decompositions and lowerings.
"""
