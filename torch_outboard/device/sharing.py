# SPDX-License-Identifier: BSD-3-Clause
"""Storages shared between processes, tensors over other libraries' memory, and pinning of existing host memory.

A sender sends the driver's handle of the segment, and keeps the storage until the receiver is done. Both use a file of
the sender with one byte per message. The receiver sets the byte on receipt, and locks it as long as it uses the memory.
The sender can therefore distinguish a message in transit from one that is no longer used. The operating system drops
the locks of a process that dies.

The sender also locks one byte of the file, beyond all messages, so that the next sending process can find and remove
the files of killed senders.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing import util
from typing import Any

import torch
from torch.multiprocessing import reductions

from torch_outboard import _C
from torch_outboard._errors import NotSupportedError
from torch_outboard.device import _context
from torch_outboard.device._context import device_index

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["from_blob", "host_register", "host_unregister", "ipc_collect"]

_untyped: Any = reductions
_Device = torch.device | int | str | None
_RECEIVED = b"\1"
_PREFIX = "torch_outboard-sent-"
_SENDER = 1 << 62  # the byte that a sender locks as long as it lives

# Guards the tables below. Call no driver entry under this lock. Reentrant, because garbage
# collection may run code that takes it.
_lock = threading.RLock()


class _SentStorages:
    """The storages that other processes may be using, and the file that records when each use ends."""

    def __init__(self) -> None:
        _sweep(tempfile.gettempdir())
        self.file, self.path = _new_file()
        self.storages: dict[int, torch.UntypedStorage] = {}
        self.free: list[int] = []
        # Also runs in multiprocessing's processes, which exit without atexit.
        util.Finalize(None, _remove, args=(self.path, os.getpid()), exitpriority=0)
        _C.attach_out_of_memory_observer(lambda *_: self.collect())

    def add(self, storage: torch.UntypedStorage) -> int:
        with _lock:
            slot = self.free.pop() if self.free else len(self.storages)
            os.pwrite(self.file, b"\0", slot)
            self.storages[slot] = storage
        return slot

    def take(self, slot: int) -> torch.UntypedStorage:
        """Return a storage that this process sent to itself."""
        with _lock:
            self.free.append(slot)
            return self.storages.pop(slot)

    def collect(self) -> None:
        ended = []  # destroyed after the lock is released
        with _lock:
            for slot in [slot for slot in self.storages if self._has_ended(slot)]:
                ended.append(self.storages.pop(slot))
                self.free.append(slot)

    def _has_ended(self, slot: int) -> bool:
        if os.pread(self.file, 1, slot) != _RECEIVED:
            return False
        try:
            fcntl.lockf(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, slot)
        except BlockingIOError:
            return False
        fcntl.lockf(self.file, fcntl.LOCK_UN, 1, slot)
        return True


class _Segment:
    """Another process's memory, mapped here once for all storages in it."""

    def __init__(self, key: tuple[int, bytes], address: int) -> None:
        self.key = key
        self.address = address
        self.leases = 1


class _File:
    """The file of a sending process, open as long as this process holds a lock in it."""

    def __init__(self, path: str) -> None:
        try:
            self.number = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            raise RuntimeError(
                "the process that sent a tensor has ended: keep the sender alive until the tensor is received"
            ) from None
        self.path = path
        self.uses = 0

    def lock(self, slot: int) -> None:
        fcntl.lockf(self.number, fcntl.LOCK_SH, 1, slot)

    def unlock(self, slot: int) -> None:
        fcntl.lockf(self.number, fcntl.LOCK_UN, 1, slot)


class _Lease:
    """The owner object of a received storage. It may be destroyed on any thread: `_release_dropped` does the rest."""

    def __init__(self, segment: _Segment, file: _File, slot: int) -> None:
        self.parts = (segment, file, slot)

    def __del__(self) -> None:
        _ended.append(self.parts)


_sent: _SentStorages | None = None
_segments: dict[tuple[int, bytes], _Segment] = {}
# One per sender, closed after the last use: closing a file drops all locks that this process holds
# in it.
_files: dict[str, _File] = {}
_ended: deque[tuple[_Segment, _File, int]] = deque()


def _new_file() -> tuple[int, str]:
    """Create this process's file, and lock it."""
    while True:
        file, path = tempfile.mkstemp(prefix=_PREFIX)
        fcntl.lockf(file, fcntl.LOCK_EX, 1, _SENDER)
        if os.fstat(file).st_nlink:
            return file, path
        os.close(file)  # another process removed the file before it was locked


def _sweep(folder: str) -> None:
    """Remove the files of senders that ended without removing them."""
    with _lock, contextlib.suppress(OSError), os.scandir(folder) as entries:
        for file in entries:
            # Opening and closing a file that this process uses would drop its locks.
            if file.name.startswith(_PREFIX) and file.path not in _files:
                _remove_if_left(file.path)


def _remove_if_left(path: str) -> None:
    with contextlib.suppress(OSError):  # the file is in use, owned by another user, or gone
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            about = os.fstat(file)
            if about.st_uid == os.geteuid() and stat.S_ISREG(about.st_mode):
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _SENDER)
                os.unlink(path)
        finally:
            os.close(file)


def _remove(path: str, process: int) -> None:
    if os.getpid() == process:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def _release_dropped() -> None:
    """Release received storages that were dropped. Waits for the device, because queued work may still use them."""
    ended = []
    with contextlib.suppress(IndexError):
        while True:
            ended.append(_ended.popleft())
    try:
        for index in {segment.key[0] for segment, _, _ in ended}:
            torch.accelerator.synchronize(index)
    except BaseException:  # re-raised, also for an interrupt: the next call releases them
        _ended.extend(ended)
        raise
    failures: list[Exception] = []
    for segment, file, slot in ended:
        with _lock:
            segment.leases -= 1
            is_last = segment.leases == 0
            if is_last:
                del _segments[segment.key]
        try:
            if is_last:
                _C.close_shared(segment.key[0], segment.address)
        except Exception as error:  # noqa: BLE001 - raised below; the sender gets its memory back anyway
            failures.append(error)
        _unlock_message(file, slot)
    if failures:
        raise failures[0]


def reduce_storage(storage: torch.UntypedStorage) -> tuple[Callable[..., torch.UntypedStorage], tuple[Any, ...]]:
    """Reduce a device storage for pickling to another process, as torch.multiprocessing does on the CPU.

    The call waits for the device. The storage is kept until the receiver drops it or exits.
    """
    index = storage.device.index
    if storage.nbytes() == 0:
        return _rebuild_empty, (_context.name, index)
    if fcntl is None:
        raise NotSupportedError("sharing memory between processes needs file locks, which this system lacks")
    ipc_collect()
    handle, segment_bytes, offset = _C.share_storage(storage)
    torch.accelerator.synchronize(index)
    global _sent
    if _sent is None:
        _sent = _SentStorages()
    slot = _sent.add(storage)
    where = (handle, segment_bytes, offset, storage.nbytes())
    return _rebuild, (_context.name, index, where, os.getpid(), _sent.path, slot)


def _check_attached(name: str) -> None:
    if _context.name != name:
        raise RuntimeError(
            f"cannot receive a tensor on the device {name!r}, because this process has not attached its driver: call "
            f"torch_outboard.attach({name!r}, …) at the top of the main module, or set OUTBOARD_DRIVER={name}"
        )


def _rebuild_empty(name: str, index: int) -> torch.UntypedStorage:
    _check_attached(name)
    return torch.UntypedStorage(0, device=f"{name}:{index}")  # type: ignore[no-untyped-call]


def _rebuild(
    name: str, index: int, where: tuple[bytes, int, int, int], process: int, path: str, slot: int
) -> torch.UntypedStorage:
    _check_attached(name)
    if _sent is not None and process == os.getpid() and path == _sent.path:
        return _sent.take(slot)
    _release_dropped()
    handle, segment_bytes, offset, size = where
    file = _lock_message(path, slot)
    lease = None
    try:
        known = ("torch_outboard", path, index, *where)
        storage: torch.UntypedStorage | None = _untyped.storage_from_cache(torch.UntypedStorage, known)
        if storage is None:
            lease = _Lease(_segment_of(index, handle), file, slot)
            storage = _C.storage_at(index, lease.parts[0].address + offset, size, lease)
            _untyped.shared_cache[known] = _untyped.StorageWeakRef(storage)
        return storage
    finally:
        # Mark the message as received even after a failure, because it will not arrive again. A
        # lease unlocks the message when the lease ends. If there is no lease, either an error
        # occurred, or an earlier message's lock keeps the memory alive.
        os.pwrite(file.number, _RECEIVED, slot)
        if lease is None:
            _unlock_message(file, slot)


def _lock_message(path: str, slot: int) -> _File:
    """Lock a message in a sender's file, and return the file; `_unlock_message` unlocks the message."""
    with _lock:
        file = _files.get(path) or _File(path)
        _files[path] = file
        file.uses += 1
    try:
        file.lock(slot)
    except BaseException:  # re-raised, also for an interrupt, which may end the wait for the lock
        _release(file)
        raise
    return file


def _unlock_message(file: _File, slot: int) -> None:
    file.unlock(slot)
    _release(file)


def _release(file: _File) -> None:
    with _lock:
        file.uses -= 1
        if file.uses == 0:
            del _files[file.path]
            os.close(file.number)


def _segment_of(index: int, handle: bytes) -> _Segment:
    key = (index, handle)
    with _lock:
        segment = _segments.get(key)
        if segment is not None:
            segment.leases += 1
            return segment
    address = _C.open_shared(index, handle)
    with _lock:
        segment = _segments.get(key)
        if segment is None:
            segment = _segments[key] = _Segment(key, address)
            return segment
        segment.leases += 1
    _C.close_shared(index, address)  # another thread was faster
    return segment


def ipc_collect() -> None:
    """Free dropped shared memory: storages that receivers have dropped, and received storages dropped here.

    Each send, each receipt and each allocation that finds no memory does the same. The call waits for the device if a
    received storage was dropped.
    """
    _release_dropped()
    if _sent is not None:
        _sent.collect()


def from_blob(
    address: int,
    size: Sequence[int],
    stride: Sequence[int] | None = None,
    dtype: torch.dtype | None = None,
    device: _Device = None,
    owner: object = None,
) -> torch.Tensor:
    """Return a tensor over existing memory, without a copy.

    Parameters
    ----------
    address : int
        A device address, of the allocator's or of another library's memory.
    size, stride : sequence of int
        In elements; without strides the tensor is contiguous.
    dtype : torch.dtype, optional
        torch's default dtype if it is omitted.
    device : optional
        The device of the memory. Without it the address must lie in the allocator's memory; otherwise ValueError.
    owner : object, optional
        Kept as long as the tensor's storage lives. The allocator does not know the tensor: the memory must outlive it,
        `record_stream` is ignored, and its storage cannot be resized.
    """
    index = _C.device_of_address(address) if device is None else device_index(device)
    dtype = torch.get_default_dtype() if dtype is None else dtype
    strides = torch.empty(tuple(size), device="meta").stride() if stride is None else tuple(stride)
    if len(strides) != len(size) or any(number < 0 for number in (*size, *strides)):
        raise ValueError(f"size {tuple(size)} and stride {strides} must have one non-negative number per dimension")
    last = sum((count - 1) * step for count, step in zip(size, strides, strict=True)) if 0 not in size else -1
    storage = _C.storage_at(index, address, (last + 1) * dtype.itemsize, owner)
    empty = torch.empty(0, dtype=dtype, device=storage.device)
    return empty.set_(storage, 0, tuple(size), strides)


# Storages kept alive as long as the driver may access their memory.
_registered: dict[int, torch.UntypedStorage] = {}


def host_register(tensor: torch.Tensor) -> None:
    """Pin the memory of a CPU tensor in place: its whole storage, even for a view.

    Afterwards the memory serves like memory of `pin_memory`: `is_pinned` is true, and non-blocking copies do not wait.
    The storage is kept until `host_unregister`, and must not be resized before.

    Raises
    ------
    NotSupportedError
        The driver cannot pin existing memory.
    ValueError
        The memory is already pinned.
    """
    storage = _host_storage(tensor)
    _C.host_register(storage.data_ptr(), storage.nbytes())
    _registered[storage.data_ptr()] = storage


def host_unregister(tensor: torch.Tensor) -> None:
    """Undo `host_register` once all devices have done their queued work; raise ValueError if nothing is registered."""
    storage = _host_storage(tensor)
    _C.host_unregister(storage.data_ptr())
    _registered.pop(storage.data_ptr(), None)


def _host_storage(tensor: torch.Tensor) -> torch.UntypedStorage:
    if tensor.device.type != "cpu":
        raise ValueError(f"expected a CPU tensor, got one on {tensor.device}")
    return tensor.untyped_storage()
