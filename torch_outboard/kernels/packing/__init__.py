# SPDX-License-Identifier: BSD-3-Clause
"""Building packs, on a device or without one."""
