# SPDX-License-Identifier: BSD-3-Clause
"""`models.py --plans`: how many plans and programs a training step needs, and how many the other models' steps leave.

Each model's step runs twice in a process of its own: with an empty folder, and with the folder that the other models
have left. What is built then was in no other model: a pack made of them would lack it. A call that builds its plan is
counted as one that the others lack; further calls like it have the plan.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from _step_process import step_process

__all__ = ["count_plans"]

_FOLDER = "OUTBOARD_KERNEL_CACHE_DIR"


def count_plans(script: str, driver: str, names: Iterable[str]) -> dict[str, Any]:
    """Print a row for each model, and return the figures by model."""
    names = list(names)
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as root:
        for name in names:
            step = _step(script, driver, name, Path(root, name))
            programs = len(_programs(Path(root, name)))
            figures[name] = {"calls": step["generated"], "plans": step["plans"]["saved"], "programs": programs}
        print("| model | calls | plans | programs | plans that the others have | calls with such plans |")
        print("|---|---:|---:|---:|---:|---:|")
        for name in names:
            others = Path(root, f"without {name}")
            for kept in names:
                if kept != name:
                    shutil.copytree(Path(root, kept), others, dirs_exist_ok=True)
            built = _step(script, driver, name, others)["plans"]["saved"]
            shutil.rmtree(others)
            row = figures[name]
            row["known"] = row["plans"] - built
            plans, calls = (1 - built / max(row[key], 1) for key in ("plans", "calls"))
            cells = (name, row["calls"], row["plans"], row["programs"], f"{row['known']} ({plans:.0%})", f"{calls:.1%}")
            print(f"| {' | '.join(map(str, cells))} |", flush=True)
    return figures


def _step(script: str, driver: str, name: str, folder: Path) -> dict[str, Any]:
    folder.mkdir(mode=0o700, exist_ok=True)
    os.environ[_FOLDER] = str(folder)
    try:
        with step_process(script, "--driver", driver, "--serve", name, "--tiny") as process:
            step: dict[str, Any] = process.step()
            return step
    finally:
        del os.environ[_FOLDER]


def _programs(folder: Path) -> set[bytes]:
    os.environ[_FOLDER] = str(folder)
    try:
        from torch_outboard.kernels.disk.store import Store

        entries = list(Store(folder).entries())
    finally:
        del os.environ[_FOLDER]
    return {kernel.code for entry in entries if entry.answer is not None for kernel in entry.answer.kernels}
