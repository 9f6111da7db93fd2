# SPDX-License-Identifier: BSD-3-Clause
"""Schedules of templates: their parameters, measuring them, and the tables of what was chosen."""
