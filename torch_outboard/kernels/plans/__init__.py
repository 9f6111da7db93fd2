# SPDX-License-Identifier: BSD-3-Clause
"""From a call to a plan: tracing, lowering, and writing the plan's text."""
