# SPDX-License-Identifier: BSD-3-Clause
"""The version, which the package, its metadata and the build read from here."""

__version__ = "0.3.0"
