# SPDX-License-Identifier: BSD-3-Clause
"""Schedules of templates: their parameters, measurements, and tables of chosen values."""
