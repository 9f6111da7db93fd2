# SPDX-License-Identifier: BSD-3-Clause
"""A hash of this package's own code, for the keys of what it generates. It needs no device."""

from __future__ import annotations

import hashlib
from pathlib import Path

from torch_outboard._extension import include_paths

__all__ = ["own_code"]


def own_code(*more: Path) -> str:
    """Gives a hash of what decides what is generated, `more` folders included.

    An installed version may be a changed checkout.
    """
    code = hashlib.sha256()
    headers = Path(include_paths()[0]).glob("torch_outboard/compiled*.h")
    folders = (Path(__file__).parent, *more)
    rooms = (path for one in folders for path in one.rglob("*") if path.is_file() and path.suffix != ".pyc")
    for path in sorted([*rooms, *headers]):
        code.update(path.read_bytes())
    return code.hexdigest()[:16]
