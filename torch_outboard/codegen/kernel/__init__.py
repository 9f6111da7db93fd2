# SPDX-License-Identifier: BSD-3-Clause
"""One kernel as text: the body that Inductor's scheduling drives, its operations, indices, reductions and checks."""
