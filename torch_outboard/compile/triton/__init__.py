# SPDX-License-Identifier: BSD-3-Clause
"""Kernels that Inductor writes in Triton and our launcher runs, for every driver with a back end of Triton."""
