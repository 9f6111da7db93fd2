# SPDX-License-Identifier: BSD-3-Clause
"""Files on disk: the user's plans, and the drivers' packs."""
