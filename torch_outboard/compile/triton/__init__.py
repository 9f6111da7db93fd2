# SPDX-License-Identifier: BSD-3-Clause
"""Kernels that Inductor writes in Triton and Triton compiles, launched by us, for every driver with a back end."""
