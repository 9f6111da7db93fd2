# SPDX-License-Identifier: BSD-3-Clause
"""The header of AOTInductor's models, at the path where torch 2.15 looks for it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from torch._inductor.codecache import write_atomic
from torch._inductor.runtime.cache_dir_utils import cache_dir

__all__ = ["folder_of"]


def folder_of(header: str, device: str) -> str:
    """Return a folder in which torch/csrc/inductor/aoti_include/<device>.h includes a header.

    AOTInductor precompiles the header with that name.
    """
    text = f'#include "{header}"\n'
    folder = Path(cache_dir()) / "outboard_headers" / hashlib.sha256(text.encode()).hexdigest()[:16]
    file = folder / "torch" / "csrc" / "inductor" / "aoti_include" / f"{device}.h"
    if not file.exists():
        write_atomic(str(file), text, make_dirs=True)
    return str(folder)
