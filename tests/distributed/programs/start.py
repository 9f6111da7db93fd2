# SPDX-License-Identifier: BSD-3-Clause
"""The start of each program: the driver, the rank's device, the group."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from datetime import timedelta

import torch
import torch.distributed as dist

import torch_outboard

__all__ = ["RANK", "attach", "init", "meet", "pipe", "raises", "start"]

RANK = int(os.environ["RANK"])


def attach() -> torch.device:
    """Attach the driver that the test names, and return this rank's device."""
    torch_outboard.attach(os.environ["TEST_DRIVER"], **json.loads(os.environ["TEST_OPTIONS"]))
    name = torch_outboard.attached_driver().name
    device = torch.device(name, RANK % torch.get_device_module(name).device_count())
    torch.accelerator.set_device_index(device.index)
    return device


@functools.cache
def server() -> dist.Store:
    return dist.TCPStore("127.0.0.1", int(os.environ["TEST_PORT"]), 2, is_master=RANK == 0)


def init(backend: str | None = None, seconds: float = 60, **more: object) -> None:
    # Not a FileStore: split_group clones the store, and each clone counts as a
    # process that may remove the file.
    store = dist.PrefixStore(os.environ["TEST_STORE"], server())
    dist.init_process_group(backend, store=store, rank=RANK, world_size=2, timeout=timedelta(seconds=seconds), **more)


def start(backend: str | None = None, seconds: float = 60) -> torch.device:
    device = attach()
    init(backend, seconds)
    return device


def pipe(name: str) -> str:
    """Return the path of a named pipe of both ranks."""
    path = f"{os.environ['TEST_STORE']}-{name}"
    with contextlib.suppress(FileExistsError):
        os.mkfifo(path)
    return path


def meet(name: str) -> None:
    """Wait until the other rank has arrived here too, without the group: a pipe opens once both ends are there."""
    with open(pipe(name), "rb" if RANK else "wb"):
        pass


class raises:
    """Return a context that asserts the exact type of an error, and words of its text."""

    def __init__(self, kind: type[BaseException], *words: str) -> None:
        self.kind, self.words = kind, words

    def __enter__(self) -> raises:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        assert error is not None, f"nothing was raised, where {self.kind.__name__} was to be"
        if type(error) is not self.kind:
            return False
        missing = [word for word in self.words if word not in str(error)]
        assert not missing, f"{missing} is not in: {error}"
        self.error = error
        return True
