# SPDX-License-Identifier: BSD-3-Clause
"""From a call to a plan: traced, lowered, written as text."""
