# SPDX-License-Identifier: BSD-3-Clause
"""Drawn programs of several steps, which share tensors."""
