# SPDX-License-Identifier: BSD-3-Clause
"""Checks of libraries: the device that each library selects by itself, and the line that changes it to the driver's."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from torch_outboard._check import Check

__all__ = ["REMEDIES", "ProbeContext", "check_groups", "check_libraries"]

_HUGGINGFACE = "torch_outboard.integrations.huggingface.use()"
# The libraries to check, in this order, and the line to write if a library does not select the
# device by itself.
REMEDIES: Mapping[str, str] = {
    "safetensors": "torch_outboard.integrations.safetensors.use()",
    "torchvision": "install the torchvision that was built for this torch and its CUDA or CPU",
    "diffusers": "pipeline.to(…): name the device",
    "peft": _HUGGINGFACE,
    "accelerate": _HUGGINGFACE,
    "transformers": _HUGGINGFACE,
    "trl": _HUGGINGFACE,
    "lightning": "torch_outboard.integrations.lightning.use()",
    "pytorch_lightning": "torch_outboard.integrations.lightning.use()",
    "deepspeed": "torch_outboard.integrations.deepspeed.use(), before `import deepspeed`",
    "vllm": "torch_outboard.integrations.vllm.use(), before `import vllm`",
}
# Libraries whose process group is checked too.
WITH_GROUPS = ("accelerate", "lightning")
_TIMEOUT_SECONDS = 300  # for the import and the answers of all libraries, from a slow disk
_MAX_OUTPUT_LINES = 3  # lines shown of the output of a process that died


class ProbeContext(NamedTuple):
    """The input of all checks: the driver, its options, and whether integrations are used."""

    driver: str
    options: Mapping[str, str]
    device: str
    is_used: bool = False


def check_libraries(context: ProbeContext, names: Iterable[str] | None = None) -> Iterator[Check]:
    """Yield a check for each installed library, with the device that the library uses."""
    pending = [library for library in (REMEDIES if names is None else names) if find_spec(library) is not None]
    while pending:
        answers, end = _answers_of_process(context, pending)
        for answer in answers:
            yield from _checks_of(context, answer)
        pending = pending[len(answers) :]
        if pending:  # this library ended the process; a new process checks the rest
            yield Check(pending.pop(0), "wrong", f"the process that checked it ended: {end}")


def check_groups(context: ProbeContext, names: Iterable[str] | None = None) -> Iterator[Check]:
    """For each library with a group, start two ranks as torchrun does, and yield whether they form one group."""
    for library in WITH_GROUPS if names is None else [library for library in names if library in WITH_GROUPS]:
        if find_spec(library) is not None:
            yield _check_of_group(context, library, _two_ranks(context, library))


def _checks_of(context: ProbeContext, answer: dict[str, Any]) -> Iterator[Check]:
    library = f"{answer['library']} {answer['version']}".strip()
    remedy = REMEDIES[answer["library"]]
    if "error" in answer:
        yield Check(library, "wrong", f"the check failed: {answer['error']}")
        return
    why = f" ({answer['why']})" if answer["why"] else ""
    if answer["device"] == context.device:
        yield Check(library, "right", f"uses {context.device}{why}")
    else:
        yield Check(library, "wrong", f"{_device_text(answer['device'], context.device)}{why}", remedy)
    for use, device in answer["others"].items():
        if device == context.device:
            yield Check(f"{library}, {use}", "right", f"uses {context.device}")
        else:
            yield Check(f"{library}, {use}", "wrong", _device_text(device, context.device), remedy)


def _device_text(device: str, wanted: str) -> str:
    """Return the device that a library uses, or the library's error."""
    return f"silently uses {device}, not {wanted}" if device.isidentifier() else f"refuses {wanted}: {device}"


def _check_of_group(context: ProbeContext, library: str, ranks: Sequence[dict[str, Any]]) -> Check:
    subject = f"{library}, 2 processes"
    if errors := [rank["error"] for rank in ranks if "error" in rank]:
        return Check(subject, "wrong", f"they cannot start: {errors[0]}", REMEDIES[library])
    members = min(rank["members"] for rank in ranks)
    devices = sorted({f"{rank['device']}:{rank['index']}" for rank in ranks})
    if members == 1:
        problem = f"each is alone, on {', '.join(devices)}, so they would train separate models"
    elif any(rank["device"] != context.device for rank in ranks):
        problem = f"one group, on {', '.join(devices)}, not on {context.device}"
    else:
        return Check(subject, "right", f"one group of {members}, on {', '.join(devices)}")
    return Check(subject, "wrong", problem, REMEDIES[library])


def _answers_of_process(context: ProbeContext, libraries: Sequence[str]) -> tuple[list[dict[str, Any]], str]:
    """Return the answers of one process, in order, and how the process ended if answers are missing."""
    with tempfile.TemporaryDirectory() as folder:
        process = _start_process(context, libraries, Path(folder), {}, is_group=False)
        end = _wait_for_end(process)
        answers = _read(Path(folder) / "answers")
    return answers, end if len(answers) < len(libraries) else ""


def _two_ranks(context: ProbeContext, library: str) -> list[dict[str, Any]]:
    """Start two ranks with torchrun's variables, and return their answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    together = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "0",
        "TORCHELASTIC_RUN_ID": "outboard-doctor",
    }
    with tempfile.TemporaryDirectory() as folder:
        started = []
        for rank in range(2):
            own = Path(folder) / str(rank)
            own.mkdir()
            variables = {**together, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            started.append((_start_process(context, [library], own, variables, is_group=True), own / "answers"))
        reports = []
        for process, answers in started:
            end = _wait_for_end(process)
            reports += _read(answers) or [{"error": f"the process ended: {end}"}]
    return reports


def _start_process(
    context: ProbeContext, libraries: Sequence[str], folder: Path, variables: Mapping[str, str], is_group: bool
) -> subprocess.Popen[str]:
    request = {
        "driver": context.driver,
        "options": dict(context.options),
        "use": context.is_used,
        "libraries": list(libraries),
        "group": is_group,
    }
    (folder / "request").write_text(json.dumps(request), encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "torch_outboard.doctor.probe_process",
        str(folder / "request"),
        str(folder / "answers"),
    ]
    # The libraries must not access the network for models.
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", **variables}
    with (folder / "output").open("w") as output:
        return subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.PIPE, text=True
        )


def _wait_for_end(process: subprocess.Popen[str]) -> str:
    """Wait for a process, and return how it ended: its status and the last lines that it printed."""
    try:
        _, errors = process.communicate(timeout=_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return f"no answer in {_TIMEOUT_SECONDS} s"
    return "; ".join([f"status {process.returncode}", *errors.strip().splitlines()[-_MAX_OUTPUT_LINES:]])


def _read(answers: Path) -> list[dict[str, Any]]:
    if not answers.is_file():
        return []
    return [json.loads(line) for line in answers.read_text(encoding="utf-8").splitlines()]
