# SPDX-License-Identifier: BSD-3-Clause
"""The making of packs, on a device or without one."""
