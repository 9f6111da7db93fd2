# SPDX-License-Identifier: BSD-3-Clause
"""Schedules of templates: their parameters, their measurement, and the tables of the chosen ones."""
