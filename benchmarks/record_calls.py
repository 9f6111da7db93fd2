# SPDX-License-Identifier: BSD-3-Clause
"""Record the calls of published architectures, from which `make pack-nv` builds its pack. No device is needed.

    benchmarks/record_calls.py distributions/nv/kernels/calls.txt                     # all that can be imported here
    benchmarks/record_calls.py distributions/nv/kernels/calls.txt --only gpt2,lstm    # add these to the list

Each architecture runs in a process of its own, on a device without hardware, with random weights: training steps in
float32 and under autocast in bfloat16 and float16, and a call for inference in each. Plans are kept in --keep, so a
call that an earlier architecture has made is recorded once, and a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("USE_TF", "0")

import torch
from _models import MODELS, made

from torch_outboard.kernels.disk.recorded import described, write_calls

_ARCHITECTURE = "sm_90"


def _step(device: torch.device, name: str, dtype: torch.dtype) -> None:
    model, batch, loss_of = made(name, False)
    model = model.to(device)
    batch = {key: one.to(device) for key, one in batch.items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    is_mixed = dtype != torch.float32
    with torch.autocast(device.type, dtype, enabled=is_mixed):
        loss = loss_of(model, batch)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        model.eval()
        if is_mixed:
            model = model.to(dtype)
            batch = {key: one.to(dtype) if one.is_floating_point() else one for key, one in batch.items()}
        loss_of(model, batch)


def _serve(name: str) -> None:
    """Print the calls of an architecture."""
    from torch_outboard._attach import attach
    from torch_outboard._discovery import find_driver
    from torch_outboard.kernels import builder
    from torch_outboard.kernels.packing.without_device import without_device

    lines: list[str | None] = []
    attach(without_device(find_driver("nv"), [_ARCHITECTURE], {}))
    builder.record(lambda operator, arguments: lines.append(described(operator, arguments)))
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        _step(torch.device("nv"), name, dtype)
    print(json.dumps(sorted(filter(None, lines))))


def _recorded(name: str, folder: Path) -> list[str]:
    """Return the calls of an architecture, of this run or of an earlier one; raise for one that doesn't run here."""
    kept = folder / f"{name}.json"
    if kept.exists():
        found: list[str] = json.loads(kept.read_text())
        return found
    environment = {
        **os.environ,
        "OUTBOARD_KERNEL_CACHE_DIR": str(folder / "plans"),
        "OUTBOARD_KERNEL_PACKS": "",
        "OUTBOARD_PROVIDERS": "native,generated",
        "OUTBOARD_FALLBACK": "silent",
    }
    done = subprocess.run([sys.executable, __file__, "--serve", name], env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"status {done.returncode}")
    kept.write_text(done.stdout.splitlines()[-1])
    return _recorded(name, folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("list", type=Path, nargs="?")
    parser.add_argument("--only", default=",".join(MODELS), help="architectures of benchmarks/_models.py")
    parser.add_argument("--keep", type=Path, default=Path("build/recorded"), help="the folder of what is made")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        _serve(given.serve)
        return 0
    programs, lines = _read(given.list)
    given.keep.mkdir(parents=True, exist_ok=True)
    names = given.only.split(",")
    for number, name in enumerate(names, 1):
        begin = time.monotonic()
        try:
            found = _recorded(name, given.keep.resolve())
        except RuntimeError as error:
            print(f"{number} of {len(names)}: {name} does not run here: {error}", flush=True)
            continue
        new = len(set(found) - set(lines))
        lines += found
        programs = [*dict.fromkeys([*programs, name])]
        write_calls(given.list, programs, lines)
        print(f"{number} of {len(names)}: {name}, {new} new calls, {time.monotonic() - begin:.0f} s", flush=True)
    return 0


def _read(path: Path) -> tuple[list[str], list[str]]:
    if not path.exists():
        return [], []
    first, *lines = path.read_text().splitlines()
    head: dict[str, Any] = json.loads(first)
    return head["programs"], lines


if __name__ == "__main__":
    sys.exit(main())
