# SPDX-License-Identifier: BSD-3-Clause
"""A process that answers `outboard doctor`: python -m torch_outboard.doctor.probe_process REQUEST ANSWERS, two files.

REQUEST is JSON: the driver and its options, whether integrations are used, and the libraries to ask, or the library
whose group this process joins as a rank. Each answer is written immediately, as a line of ANSWERS, because a library
may crash the process.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

__all__ = ["main"]


def main(request: dict[str, Any], answers: Path) -> None:
    """Ask each library of the request in turn, and write the answers, one per line."""
    import torch_outboard
    from torch_outboard.doctor.probes import PROBES, group_of_processes

    module = torch_outboard.attach(request["driver"], **request["options"])
    name = module.__name__.rpartition(".")[2]
    if request["use"]:
        from torch_outboard import integrations

        integrations.use_all()
    with answers.open("a", encoding="utf-8") as file:
        for library in request["libraries"]:
            try:
                answer = group_of_processes(library) if request["group"] else PROBES[library](name)
            except Exception as error:  # noqa: BLE001 - any error is the answer
                answer = {"error": f"{type(error).__name__}: {error}"}
            file.write(json.dumps({"library": library, "version": _version(library), **answer}) + "\n")
            file.flush()


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return ""


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), Path(sys.argv[2]))
