# SPDX-License-Identifier: BSD-3-Clause
"""The wrapper as a torch.fx graph instead of a Python function."""
