# SPDX-License-Identifier: BSD-3-Clause
"""Torch's operator database on a device: its entries' calls, and how results are compared with the CPU's."""
