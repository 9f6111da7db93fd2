# SPDX-License-Identifier: BSD-3-Clause
"""Torch's operator database on a device: the calls of its entries, and the comparison of results with the CPU's."""
