# SPDX-License-Identifier: BSD-3-Clause
"""The matrix of refusals: wrong calls of every operator, derived from right ones, on the CPU and on the device."""
