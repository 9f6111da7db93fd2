# SPDX-License-Identifier: BSD-3-Clause
"""Torch's operator database on a device: calls of its entries, and comparison of the results with the CPU's."""
