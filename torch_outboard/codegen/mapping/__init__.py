# SPDX-License-Identifier: BSD-3-Clause
"""Mappings: how a kernel distributes its elements over items and groups of items."""
