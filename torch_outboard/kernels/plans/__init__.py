# SPDX-License-Identifier: BSD-3-Clause
"""The way from a call to a plan: traced, lowered, written as text."""
