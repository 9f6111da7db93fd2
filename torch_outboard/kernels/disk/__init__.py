# SPDX-License-Identifier: BSD-3-Clause
"""What is kept on disk: plans of the user's, and packs of drivers'."""
