# SPDX-License-Identifier: BSD-3-Clause
"""`outboard race`: runs a program under the stream sanitizer and many schedules, and reports the first difference.

docs/races.md is the page for users. A program runs in child processes (`child`), once for each schedule (`runs`);
`search` decides what runs, and compares; `report` and `page` say what was found.
"""

from __future__ import annotations

__all__: list[str] = []
