# SPDX-License-Identifier: BSD-3-Clause
"""The version, read from here by the package, its metadata and the build."""

__version__ = "0.3.0"
