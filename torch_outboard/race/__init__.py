# SPDX-License-Identifier: BSD-3-Clause
"""`outboard race`: runs a program under the stream sanitizer and many schedules, and reports the first difference.

docs/races.md is the page for users. A program runs in child processes (`child`), once for each schedule (`runs`);
`search` chooses the schedules and compares the runs; `report` and `page` present the findings.
"""

from __future__ import annotations

__all__: list[str] = []
