# SPDX-License-Identifier: BSD-3-Clause
"""A differential fuzzer: calls of operators drawn by a seed, on the CPU and on the device, whole storages compared."""
