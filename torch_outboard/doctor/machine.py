# SPDX-License-Identifier: BSD-3-Clause
"""Checks of this machine: the build, the drivers, which of them attach themselves to torch, compilers and folders."""

from __future__ import annotations

import difflib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

from torch_outboard._build import build_info, check_built_for, installed_torch, rebuild_command
from torch_outboard._check import Check, State
from torch_outboard._discovery import AUTOLOAD_GROUP, AUTOLOAD_MODULE, found_drivers

__all__ = ["Report", "check_autoload", "check_build", "check_driver", "check_environment", "info_of"]

# The report of `outboard info` about a driver, or None and a description of how the process ended.
Report: TypeAlias = tuple[dict[str, Any] | None, str]

_TIMEOUT_SECONDS = 300  # for attaching one driver, from a slow disk


def check_build() -> Check:
    """Return whether the core was built for the installed torch and the running Python."""
    torch = installed_torch()
    try:
        check_built_for(torch)
    except ImportError as error:
        return Check("torch", "wrong", str(error), rebuild_command())
    built = build_info()
    assert built is not None  # otherwise check_built_for would have raised
    return Check("torch", "right", f"torch {torch} and Python {built.python}, which the core was built for")


def check_autoload() -> Iterator[Check]:
    """Return which driver `import torch` attaches, and whether several packages want torch's only free device type."""
    named = os.environ.get("OUTBOARD_DRIVER")
    is_off = os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD") == "0"
    others = [entry for entry in entry_points(group=AUTOLOAD_GROUP) if entry.module != AUTOLOAD_MODULE]
    if named and is_off:
        problem = f"OUTBOARD_DRIVER={named} has no effect: TORCH_DEVICE_BACKEND_AUTOLOAD=0 turns loading off"
        yield Check("loading", "wrong", problem, "unset TORCH_DEVICE_BACKEND_AUTOLOAD")
    elif len(others) > 1 and not named:
        problem = (
            f"{', '.join(map(_label, others))} load themselves with torch, but a process has only one such device type"
        )
        yield Check("loading", "wrong", problem, "set OUTBOARD_DRIVER, or uninstall the others")
    elif named and named not in found_drivers() and ":" not in named:
        near = difflib.get_close_matches(named, found_drivers(), n=1)
        text = f"; {near[0]!r} is" if near else ""
        yield Check("loading", "wrong", f"OUTBOARD_DRIVER={named} is not an installed driver{text}", "outboard info")
    else:
        drivers = f"OUTBOARD_DRIVER={named}" if named else ", ".join(map(_label, others))
        yield Check("loading", "right", f"`import torch` attaches {drivers or 'nothing'}")


def _label(entry: EntryPoint) -> str:
    return entry.name if entry.dist is None else f"{entry.name} of {entry.dist.name}"


def check_driver(name: str, is_wanted: bool, report: Mapping[str, Any] | None, trouble: str) -> Iterator[Check]:
    """Judge the report of `outboard info` about a driver; a missing device is wrong only for the wanted driver."""
    wrong: State = "wrong" if is_wanted else "unused"
    if report is None:
        yield Check(name, "wrong", f"the process ended while attaching it: {trouble}", f"outboard info --driver {name}")
        return
    attached = report["attached"]
    if attached["error"]:
        yield Check(name, wrong, attached["error"], f"outboard info --driver {name}")
        return
    for device in attached["devices"]:
        subject = f"{name}, device {device['index']}"
        if device["error"]:
            yield Check(subject, wrong, device["error"], f"outboard info --driver {name}")
            continue
        operators = device["operators"]
        compiler = operators["compiler"] or "nothing: the driver names no code_generator"
        eager = "; ".join(operators["eager"])
        yield Check(subject, "right", f"{device['name']}: {eager}; torch.compile: {compiler}")


def info_of(name: str, options: Mapping[str, str]) -> Report:
    """Attach a driver in a separate process, and return the report of `outboard info`, or how the process ended."""
    command = [sys.executable, "-m", "torch_outboard", "info", "--json", f"--driver={name}"]
    command += [f"--option={key}={value}" for key, value in options.items()]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        return None, f"no answer in {_TIMEOUT_SECONDS} s"
    start = done.stdout.find("{")  # a vendor's library may have printed lines before
    try:
        return json.loads(done.stdout[max(start, 0) :]), ""
    except ValueError:
        return None, "; ".join([f"status {done.returncode}", *done.stderr.strip().splitlines()[-2:]])


def check_environment() -> Iterator[Check]:
    """Return whether the folder of kernels can be written, and which compilers are installed. Imports torch."""
    yield _cache()
    yield _compiler_of_cpp()
    yield _triton()


def _cache() -> Check:
    from torch_outboard._private_files import make_private_folders
    from torch_outboard.kernels.disk.store import default_folder

    folder = default_folder()
    if folder is None:
        problem = "kernels are not stored: OUTBOARD_KERNEL_CACHE_DIR is empty, or there is no home folder"
        return Check("cache", "unused", problem, "set OUTBOARD_KERNEL_CACHE_DIR to a folder")
    remedy = "set OUTBOARD_KERNEL_CACHE_DIR to a folder that you alone can write; docs/security.md has the rules"
    try:
        make_private_folders(folder)
    except OSError as error:
        return Check("cache", "wrong", f"kernels are not stored, so each process builds its own: {error}", remedy)
    free = shutil.disk_usage(folder).free / 2**30
    if free < 1:
        return Check("cache", "wrong", f"{folder} has {free:.1f} GiB left", remedy)
    return Check("cache", "right", f"{folder}, {free:.0f} GiB free")


def _compiler_of_cpp() -> Check:
    from torch._inductor import config, exc

    named = config.cpp.cxx
    candidates = [candidate for candidate in (named if isinstance(named, list | tuple) else [named]) if candidate]
    compiler = next((path for candidate in candidates if (path := shutil.which(candidate))), None)
    if compiler is None:
        remedy = str(exc.InvalidCxxCompiler()).splitlines()[0]
        text = f"none of {', '.join(candidates)}, which torch.compile needs if its generator is C++"
        return Check("C++ compiler", "unused", text, remedy)
    return Check("C++ compiler", "right", compiler)


def _triton() -> Check:
    if find_spec("triton") is None:
        return Check("Triton", "unused", "not installed, so drivers that use Triton use their other generator")
    try:
        import triton
    except Exception as error:  # noqa: BLE001 - its import may fail in any way; the cause is the answer
        return Check("Triton", "wrong", f"importing it raises {type(error).__name__}: {error}", "pip install triton")
    return Check("Triton", "right", f"{triton.__version__}, {Path(triton.__file__).parent}")
