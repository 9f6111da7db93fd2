# SPDX-License-Identifier: BSD-3-Clause
"""A vendor's module whose import ends a process, as a back end that crashes does."""

import os

os._exit(3)
