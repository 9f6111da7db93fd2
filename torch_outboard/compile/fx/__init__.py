# SPDX-License-Identifier: BSD-3-Clause
"""A graph of torch.fx in place of the Python function."""
