# SPDX-License-Identifier: BSD-3-Clause
"""Builds a pack: runs the calls of kernels/disk/calls.py on a device, or on devices without hardware.

The plans in the device's store become the pack. Without hardware, the driver compiles the programs of each
architecture. Plans and programs are first stored in a folder, so that a second run continues where the first was
stopped.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, TypeVar

import torch

from torch_outboard._discovery import find_driver
from torch_outboard._private_files import (
    checked_content,
    make_private_folders,
    read_private,
    with_checksum,
    write_atomically,
)
from torch_outboard._properties import DeviceProperties
from torch_outboard.codegen.program import KernelRecord
from torch_outboard.driver import Driver
from torch_outboard.kernels.disk.calls import PackCall, Samples
from torch_outboard.kernels.disk.files import Entry
from torch_outboard.kernels.disk.key import has_code_changed, kind_with_memory, serves
from torch_outboard.kernels.disk.pack_file import program_name, write_pack_file
from torch_outboard.kernels.disk.packs import own_kernels, versions
from torch_outboard.kernels.disk.store import Store
from torch_outboard.kernels.packing.without_device import without_device

__all__ = ["EmptyPack", "Programs", "groups_of", "programs_of", "run_calls", "run_in_processes", "write_pack"]

_Call = tuple[str, PackCall, torch.dtype]
_Result = TypeVar("_Result")
_Work = TypeVar("_Work")

_RECORDED_CALLS_PER_TASK = 8
_VARIANTS = itertools.count(1)


def run_calls(
    index: int, calls: Sequence[_Call], report: Callable[[str], None], has_memory: bool = True
) -> Iterator[tuple[str, str]]:
    """Run calls of `chosen_calls` or `read_calls`, and yield the failed ones. `report` gets each label before its call.

    Each recorded call gets the plan that its own sizes need, even if the plan of an earlier call would serve it: the
    recorded calls and the programs that made them are then served in any order.
    """
    from torch_outboard import _C
    from torch_outboard.device.devices import get_device_properties

    Store.max_files = Store.max_plans_per_class = sys.maxsize  # one folder holds the plans of all kinds of devices
    device = torch.device(_C.driver_name(), index)
    machine = get_device_properties(index).machine
    with torch.get_device_module(device).device(device):  # a graph is captured on the current device
        for label, call, dtype in calls:
            report(label)
            is_recorded = not call.dtypes
            Store.serves_own_sizes_only = is_recorded
            _C.set_plan_variant(next(_VARIANTS) if is_recorded else 0)  # none of the plans in memory serves it
            try:
                call.run(Samples(device, dtype, machine, has_memory))
                torch.accelerator.synchronize(device)
            except Exception as error:  # noqa: BLE001 - the caller reports it
                yield label, f"{type(error).__name__}: {error}"


def groups_of(driver: Driver, names: Sequence[str]) -> list[list[str]]:
    """Return architectures grouped by generator, because a process has one generator for all of its devices."""
    groups: dict[Any, list[str]] = {}
    for name in names:
        named = driver.kernel_generator
        if callable(named) and not isinstance(named, type):
            named = named([DeviceProperties(**driver.architectures[name])])
        groups.setdefault(named, []).append(name)
    return list(groups.values())


def run_in_processes(
    driver: str, options: Mapping[str, Any], names: Sequence[str], calls: Callable[[], list[_Call]], bar: Any
) -> tuple[dict[str, dict[str, str]], list[tuple[str, str]]]:
    """Run the calls on devices without hardware, in a process for each core. Return their kinds, and the failed calls.

    The calls run once for each kind. `calls` is a module-level function that returns the calls in the process. `bar` is
    a progress bar of click.

    Raises RuntimeError if a process ends early.
    """
    parts = os.cpu_count() or 1
    arguments = (driver, options, names, calls, torch.get_num_threads() // parts)
    kinds: dict[str, dict[str, str]] = {}
    failures: list[tuple[str, str]] = []

    def submit(pool: ProcessPoolExecutor) -> dict[Future[list[tuple[str, str]]], int]:
        kinds.update(pool.submit(_kinds_of_devices, names).result())
        first = {json.dumps(kind): index for index, kind in reversed(list(enumerate(kinds.values())))}
        groups = _split_into_tasks(calls())
        bar.length = len(first) * sum(map(len, groups))
        return {pool.submit(_run_some, index, group): len(group) for index in first.values() for group in groups}

    try:
        for done, count in _in_processes(_attach_without_device, arguments, submit):
            failures += done.result()
            bar.update(count)
    except BrokenProcessPool as error:
        raise RuntimeError(f"a worker process that runs the calls for {', '.join(names)} ended early") from error
    return kinds, failures


def _in_processes(
    initializer: Callable[..., None],
    arguments: tuple[Any, ...],
    submit: Callable[[ProcessPoolExecutor], dict[Future[_Result], _Work]],
) -> Iterator[tuple[Future[_Result], _Work]]:
    """Yield the futures that `submit` returns, as they complete. Work runs in one process per core.

    If the caller stops early, work that has not begun is cancelled.
    """
    context = multiprocessing.get_context("spawn")  # a fork would keep locks of torch's threads
    with ProcessPoolExecutor(os.cpu_count(), context, initializer, arguments) as pool:
        try:
            submitted = submit(pool)
            for done in as_completed(submitted):
                yield done, submitted[done]
        finally:
            pool.shutdown(cancel_futures=True)


def _split_into_tasks(calls: Sequence[_Call]) -> list[list[int]]:
    """Return the numbers of calls in groups, which a process runs one after the other.

    Neighbours in a list of recorded calls often have the same class, for which two processes would wait for each other.
    A call of kernels/disk/calls.py runs many operators, for up to minutes, so each is its own group, and these groups
    come first.
    """
    alone = [[number] for number, (_, call, _) in enumerate(calls) if call.dtypes]
    recorded = [number for number, (_, call, _) in enumerate(calls) if not call.dtypes]
    return alone + [
        recorded[at : at + _RECORDED_CALLS_PER_TASK] for at in range(0, len(recorded), _RECORDED_CALLS_PER_TASK)
    ]


_found: list[_Call] = []  # in a process that runs calls


def _attach_without_device(
    driver: str, options: Mapping[str, Any], names: Sequence[str], find_calls: Callable[[], list[_Call]], threads: int
) -> None:
    from torch_outboard._attach import attach

    torch.set_num_threads(max(1, threads))  # samples are computed on the CPU
    attach(without_device(find_driver(driver), names, options))
    _found[:] = find_calls()


def _kinds_of_devices(names: Sequence[str]) -> dict[str, dict[str, str]]:
    return {name: kind_with_memory(index) for index, name in enumerate(names)}


def _run_some(index: int, numbers: Sequence[int]) -> list[tuple[str, str]]:
    return list(run_calls(index, [_found[number] for number in numbers], lambda label: None, has_memory=False))


def programs_of(
    driver: Driver, entries: Iterable[Entry], kinds: Mapping[str, Mapping[str, str]]
) -> dict[str, tuple[str, KernelRecord]]:
    """Return the programs of a pack by the names of `program_name`.

    They are the programs that plans need on the architectures of their kinds, and the driver's own.
    """
    found: dict[str, tuple[str, KernelRecord]] = {}
    for name, kernel in itertools.product(kinds, own_kernels(driver)):
        found[program_name(name, kernel)] = name, kernel
    for entry in entries:
        names = [name for name, kind in kinds.items() if serves(entry.key, kind)]
        for name, kernel in itertools.product(names, entry.answer.kernels if entry.answer is not None else ()):
            program = program_name(name, kernel)
            # Plans may share a program. The first kernel by name represents it, whatever the order
            # of the plans.
            if program not in found or kernel.name < found[program][1].name:
                found[program] = name, kernel
    return found


_compiler: Driver | None = None  # in a process that compiles programs


def _make_driver(driver: str, options: Mapping[str, Any]) -> None:
    global _compiler
    _compiler = find_driver(driver)(**options)


def _compile_to(path: Path, architecture: str, kernel: KernelRecord) -> None:
    assert _compiler is not None
    write_atomically(
        path, with_checksum(_compiler.compile_program(architecture, kernel.language, kernel.code, kernel.options))
    )


class Programs:
    """The requested programs by name, and the folder that stores them.

    Iteration yields the programs that the folder has, with an operator's programs for an architecture in sequence.
    """

    def __init__(self, folder: Path, wanted: Mapping[str, tuple[str, KernelRecord]]) -> None:
        self.wanted = wanted
        self._folder = folder

    def compile(self, driver: str, options: Mapping[str, Any], bar: Any) -> Iterator[tuple[str, str]]:
        """Compile the programs that the folder lacks, in one process per core, and yield the failed programs.

        Compilers such as NVRTC compile one program at a time in a process.
        """
        make_private_folders(self._folder)
        lacking = [name for name in self.wanted if self._read(name) is None]
        bar.update(len(self.wanted) - len(lacking))

        def submit(pool: ProcessPoolExecutor) -> dict[Future[None], str]:
            return {pool.submit(_compile_to, self._folder / name, *self.wanted[name]): name for name in lacking}

        for done, name in _in_processes(_make_driver, (driver, options), submit):
            bar.update(1)
            if (error := done.exception()) is not None:
                _, kernel = self.wanted[name]
                yield f"{kernel.name} for {name}", f"{type(error).__name__}: {error}"

    def _place(self, name: str) -> tuple[str, str, bytes, str]:
        architecture, kernel = self.wanted[name]
        return architecture, kernel.name, kernel.code, name

    def _read(self, name: str) -> bytes | None:
        return checked_content(read_private(self._folder / name) or b"")

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        for name in sorted(self.wanted, key=self._place):
            if (content := self._read(name)) is not None:
                yield name, content


class EmptyPack(Exception):
    """The calls left no plan. Nothing was written."""


def write_pack(
    kept: Path, path: Path, devices: Mapping[str, Mapping[str, str]], programs: Iterable[tuple[str, bytes]] = ()
) -> tuple[int, int]:
    """Write the plans in a store's folder for these devices, and programs; return the number of plans and of programs.

    `devices` are the kinds of architectures; the name "" is for a device whose programs are not in the pack.

    Raises EmptyPack if there is no plan; an older pack then remains.
    """
    known = list(devices.values())
    plans = [
        (json.dumps(dict(entry.key)), entry.sizes, entry.answer)
        for entry in Store(kept).entries()
        if entry.answer is not None and any(serves(entry.key, kind) for kind in known)
    ]
    if not plans:
        raise EmptyPack(
            "torch_outboard's code changed while the command ran, so its plans are outdated: run the command again"
            if has_code_changed()
            else "no call created a plan"
        )
    made = list(programs)
    about = {
        **versions(),
        "devices": [{"architecture": name, "kind": dict(kind)} for name, kind in devices.items()],
        "plans": len(plans),
        "programs": len(made),
    }
    write_pack_file(path, about, plans, made)
    return len(plans), len(made)
