# SPDX-License-Identifier: BSD-3-Clause
"""The inputs of compiled code, for the keys of Inductor's caches, which by themselves distinguish only CUDA devices."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

from torch_outboard import _C
from torch_outboard._extension import header_path
from torch_outboard._version import __version__
from torch_outboard.compile.generators import generators
from torch_outboard.compile.own_code import own_code
from torch_outboard.device.devices import get_device_properties

__all__ = ["cache_key"]


@functools.cache
def cache_key() -> tuple[tuple[str, str], ...]:
    """Return pairs of strings: driver and version, chips, code generators, compiler, and this package and its path."""
    chips = []
    versions = []
    for index in range(_C.device_count()):
        properties = get_device_properties(index)
        chips.append(f"{properties.vendor}/{properties.name}/{properties.architecture}")
        versions.append(properties.driver_version)
    used = generators().of_all(range(_C.device_count()))
    key = {
        "driver": _C.driver_name(),
        "driver_version": ",".join(dict.fromkeys(versions)),
        "chip": ",".join(dict.fromkeys(chips)),
        "generator": ",".join(dialect.name for dialect in used),
        "torch_outboard": f"{__version__}-{own_code()}",
        "library": _library(),
        # Compiled code refers to these headers, and an environment of the same version may be gone.
        "headers": str(header_path("compiled.h").parent),
    }
    for dialect in used:
        key.update(dialect.cache_key())
    return tuple(sorted(key.items()))


def _library() -> str:
    """Return a hash of the C++ library, which decides which form of attention is traced."""
    libraries = sorted(Path(_C.__file__).parent.glob("lib/libtorch_outboard.*"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in libraries)).hexdigest()[:16]
