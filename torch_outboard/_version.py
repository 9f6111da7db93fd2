# SPDX-License-Identifier: BSD-3-Clause
"""The version, read from here by the package, by its metadata and by the build."""

__version__ = "0.1.0"
