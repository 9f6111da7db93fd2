# SPDX-License-Identifier: BSD-3-Clause
"""Triton kernels from Inductor, run by our launcher, for every driver with a Triton back end."""
