# SPDX-License-Identifier: BSD-3-Clause
"""A pack of kernels for NVIDIA's GPUs, kernels.pack, which torch_outboard_nv finds beside this module."""
