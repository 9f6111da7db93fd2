# SPDX-License-Identifier: BSD-3-Clause
"""The contract's Python face: a driver is a subclass of `Driver`.

An entry is written in one of three ways, and may move from the first to the last one at a time:

1. a method of the subclass, with the arguments below. A failure is an exception: `DriverError(message, code)` chooses
   the status, MemoryError and NotImplementedError have theirs, everything else is `Status.INTERNAL`;
2. the address of a C function with the signature of driver.h, as an int or a ctypes function, assigned to the
   entry's name. It gets `self_address` as its `self`;
3. nothing at all, if `library` names a shared library that exports `ob_driver_table`. A method or an address beside it
   takes the place of the library's own entry.

include/torch_outboard/driver.h says for each entry what it must do, who owns what, which threads call it and whether it
may wait; here stand only the arguments and the results. An entry that a subclass leaves alone (or sets to None) is
missing. Methods are called from any thread, without torch-outboard holding a lock, and hold Python's interpreter lock:
one that waits must wait in a way that gives it up.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from torch_outboard._errors import DriverError, NotSupportedError, RegistrationError, Status
from torch_outboard._options import Option, OptionValue, nearest, resolve_options
from torch_outboard._triton import TritonTarget

__all__ = ["Driver", "DriverError", "Option", "Status", "TritonTarget"]

_Entry = TypeVar("_Entry", bound=Callable[..., Any])

_REQUIRED: list[str] = []
_OPTIONAL: list[str] = []


def _required(method: _Entry) -> _Entry:
    _REQUIRED.append(method.__name__)
    return method


def _optional(method: _Entry) -> _Entry:
    _OPTIONAL.append(method.__name__)
    return method


class Driver:
    """Describes one kind of device.

    Attributes
    ----------
    name : str
        What the device is called in torch: "mychip" gives torch.device("mychip") and torch.mychip. Lower-case letters
        and underscores, since torch parses nothing else.
    options : mapping of str to Option
        What `attach` accepts beside the name; also read from the environment, as OUTBOARD_<NAME>_<OPTION>.
    library : path or None
        A shared library that exports `ob_driver_table`; it is given the options as text.
    abi : tuple of int
        The contract's version that entries bound by address were compiled for.
    self_address : int
        The `self` of entries bound by address.
    probe_opens : bool
        Whether `device_count` opens the runtime and doesn't survive a fork.
    kernels : mapping of str to callable
        Kernels for operators: {"aten::relu": fn}. See `torch_outboard.register_kernel`.
    code_generator : str, type or None, or a method that gives one for a device's index
        Who generates kernels for torch.compile: "cpp" if the host can reach the device's memory, "triton" where
        `triton_target` says what for, or a subclass of torch_outboard.compile.CodeGenerator. Without one torch.compile
        raises for this device. A method is asked once a device, when something is compiled.
    kernel_generator : str, type or None
        Who generates kernels for operators of eager code: "opencl_c", or a subclass of
        torch_outboard.compile.simt.generator.SimtGenerator with a dialect that the device builds. It is used on devices
        whose memory the host can't reach, and on all with `providers` or OUTBOARD_PROVIDERS.
    kernel_packs : sequence of paths
        Folders that `outboard kernels pack` made, with kernels for operators of eager code that need not be generated
        then. A relative path begins at the folder of the module whose class names it.
    providers : sequence of str or None
        The chain of providers that operators are asked of: some of "native", "compiled" and "host", in this order;
        OUTBOARD_PROVIDERS wins. None is all, "compiled" only on devices whose memory the host can't reach.
    test_programs : torch_outboard.testing.programs.TestPrograms or None
        Texts in the driver's language that `outboard test` builds. A driver whose generator has a dialect needs none.
    autocast : None, "default" or mapping of str to str
        What torch.autocast does: nothing (it warns and disables itself), what it does on CUDA, or that with the changes
        in the mapping: {"aten::softmax": "lower_precision_fp"}. See `torch_outboard.amp.set_policy`.
    autocast_dtype : torch.dtype or None
        What torch.autocast takes if it is given no dtype, in the thread that attaches; None is torch's own, float16.
    """

    name: ClassVar[str] = ""
    options: ClassVar[Mapping[str, Option]] = {}
    library: ClassVar[str | os.PathLike[str] | None] = None
    abi: ClassVar[tuple[int, int]] = (1, 0)
    self_address: int = 0
    probe_opens: ClassVar[bool] = False
    kernels: ClassVar[Mapping[str, Callable[..., Any]]] = {}
    code_generator: ClassVar[Any] = None
    kernel_generator: ClassVar[Any] = None
    kernel_packs: ClassVar[Sequence[str | os.PathLike[str]]] = ()
    providers: ClassVar[Sequence[str] | None] = None
    test_programs: ClassVar[Any] = None
    autocast: ClassVar[str | Mapping[str, str] | None] = None
    autocast_dtype: ClassVar[Any] = None

    option_values: dict[str, OptionValue | None]

    def __init__(self, **options: object) -> None:
        """Resolves the options into `option_values`. It opens nothing: that is `device_open`'s."""
        self.option_values = resolve_options(type(self).name, type(self).options, options)

    def triton_target(self, device: int) -> TritonTarget:
        """Gives what Triton compiles for a device's kernels; asked with `code_generator = "triton"` alone."""
        raise NotSupportedError(
            f"the driver {self.name!r} names the code generator 'triton' and has no `triton_target`, which says what "
            "Triton compiles for"
        )

    def libraries(self) -> Mapping[str, str]:
        """Gives the libraries of the vendor that operators use, each with its file, for `outboard info`."""
        return {}

    # -- Required ------------------------------------------------------------------------------------------------------

    @_required
    def device_count(self) -> int:
        """Gives the number of devices; cheap, opens nothing."""
        raise NotImplementedError

    @_required
    def device_properties(self, device: int) -> Any:
        """Gives a dict of the fields of ob_device_properties, or DeviceProperties; what is left out is unknown.

        `dtypes` may also be an iterable of torch.dtype.
        """
        raise NotImplementedError

    @_required
    def mem_alloc(self, device: int, bytes: int) -> int:
        """Gives the address of new device memory, a multiple of 512."""
        raise NotImplementedError

    @_required
    def mem_free(self, device: int, address: int) -> None:
        """Frees what mem_alloc gave."""
        raise NotImplementedError

    @_required
    def copy_async(
        self, device: int, stream: int, dst: int, src: int, bytes: int, dst_device: int, src_device: int
    ) -> None:
        """Queues a copy between addresses; a device of -1 is the host."""
        raise NotImplementedError

    @_required
    def stream_create(self, device: int, priority: int) -> int:
        """Gives a new stream's handle."""
        raise NotImplementedError

    @_required
    def stream_destroy(self, device: int, stream: int) -> None:
        """Destroys a stream; what is queued on it completes."""
        raise NotImplementedError

    @_required
    def stream_synchronize(self, device: int, stream: int) -> None:
        """Waits for all that is queued, and raises the first failure of it, once."""
        raise NotImplementedError

    @_required
    def event_create(self, device: int, flags: int) -> int:
        """Gives a new event's handle, never 0."""
        raise NotImplementedError

    @_required
    def event_destroy(self, device: int, event: int) -> None:
        """Destroys an event, whatever waits for it."""
        raise NotImplementedError

    @_required
    def event_record(self, device: int, stream: int, event: int) -> None:
        """Queues a mark on the stream."""
        raise NotImplementedError

    @_required
    def event_query(self, device: int, event: int) -> bool:
        """Whether the latest record is done; True if there was none."""
        raise NotImplementedError

    @_required
    def stream_wait_event(self, device: int, stream: int, event_device: int, event: int) -> None:
        """Queues a wait for the event's latest record at the time of this call."""
        raise NotImplementedError

    # -- Optional ------------------------------------------------------------------------------------------------------

    @_optional
    def destroy(self) -> None:
        """Called once, when nothing will be called any more."""
        raise NotImplementedError

    @_optional
    def device_open(self, device: int) -> None:
        """Opens a device before its first use."""
        raise NotImplementedError

    @_optional
    def device_close(self, device: int) -> None:
        """Closes a device."""
        raise NotImplementedError

    @_optional
    def device_synchronize(self, device: int) -> None:
        """Waits for all work of the device."""
        raise NotImplementedError

    @_optional
    def fill_async(self, device: int, stream: int, dst: int, pattern: bytes, count: int) -> None:
        """Queues `count` repetitions of a pattern of 1, 2, 4, 8 or 16 bytes."""
        raise NotImplementedError

    @_optional
    def copy_nd_async(
        self,
        device: int,
        stream: int,
        dst: int,
        src: int,
        dst_device: int,
        src_device: int,
        element_size: int,
        sizes: tuple[int, ...],
        dst_strides: tuple[int, ...],
        src_strides: tuple[int, ...],
    ) -> None:
        """Queues a strided copy; sizes and strides count elements."""
        raise NotImplementedError

    @_optional
    def mem_info(self, device: int) -> tuple[int, int]:
        """Gives free and total bytes."""
        raise NotImplementedError

    @_optional
    def host_alloc(self, bytes: int) -> int:
        """Gives the address of host memory that copies reach without a detour."""
        raise NotImplementedError

    @_optional
    def host_free(self, pointer: int) -> None:
        """Frees what host_alloc gave."""
        raise NotImplementedError

    @_optional
    def host_register(self, pointer: int, bytes: int) -> None:
        """Makes existing host memory as good as host_alloc's."""
        raise NotImplementedError

    @_optional
    def host_unregister(self, pointer: int) -> None:
        """Undoes host_register."""
        raise NotImplementedError

    @_optional
    def host_address(self, device: int, address: int, bytes: int) -> int | None:
        """Gives the address through which the host touches device memory, None if there is none."""
        raise NotImplementedError

    @_optional
    def stream_query(self, device: int, stream: int) -> bool:
        """Whether all work of the stream is done."""
        raise NotImplementedError

    @_optional
    def event_synchronize(self, device: int, event: int) -> None:
        """Waits for the event's latest record."""
        raise NotImplementedError

    @_optional
    def event_elapsed(self, device: int, start: int, end: int) -> float:
        """Gives the milliseconds between two recorded timing events."""
        raise NotImplementedError

    @_optional
    def event_timestamp(self, device: int, event: int) -> int:
        """Gives the nanoseconds of CLOCK_MONOTONIC at which a timing event was reached."""
        raise NotImplementedError

    @_optional
    def peer_access(self, device: int, peer: int) -> bool:
        """Whether the device reaches the peer's memory without the host."""
        raise NotImplementedError

    @_optional
    def mem_reserve(self, device: int, bytes: int) -> int:
        """Gives the address of address space without memory."""
        raise NotImplementedError

    @_optional
    def mem_release(self, device: int, address: int, bytes: int) -> None:
        """Gives back what mem_reserve gave."""
        raise NotImplementedError

    @_optional
    def mem_map(self, device: int, address: int, bytes: int) -> None:
        """Puts memory behind a part of reserved address space."""
        raise NotImplementedError

    @_optional
    def mem_unmap(self, device: int, address: int, bytes: int) -> None:
        """Takes the memory away again."""
        raise NotImplementedError

    @_optional
    def ipc_export(self, device: int, address: int) -> bytes:
        """Gives a handle by which another process opens one allocation."""
        raise NotImplementedError

    @_optional
    def ipc_open(self, device: int, handle: bytes) -> int:
        """Gives the address of another process's allocation in this one."""
        raise NotImplementedError

    @_optional
    def ipc_close(self, device: int, address: int) -> None:
        """Ends the use of what ipc_open gave."""
        raise NotImplementedError

    @_optional
    def host_callback(self, device: int, stream: int, work: Callable[[], None]) -> None:
        """Queues a call of `work`, which must be called exactly once, on any thread."""
        raise NotImplementedError

    @_optional
    def program_build(self, device: int, language: str, code: bytes, options: str) -> int:
        """Gives a program's handle, never 0; a failure's message is the build log."""
        raise NotImplementedError

    @_optional
    def program_binary(self, device: int, program: int) -> bytes | None:
        """Gives what program_build takes again in the language "binary"; None if there is nothing to keep."""
        raise NotImplementedError

    @_optional
    def program_destroy(self, device: int, program: int) -> None:
        """Destroys a program and its kernels."""
        raise NotImplementedError

    @_optional
    def kernel_get(self, device: int, program: int, name: str) -> int:
        """Gives a kernel's handle, never 0."""
        raise NotImplementedError

    @_optional
    def kernel_launch(
        self,
        device: int,
        stream: int,
        kernel: int,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        args: Sequence[tuple[int, int | bytes]],
        shared_memory: int,
        cluster: tuple[int, int, int],
        is_cooperative: bool,
        follows_addresses: bool,
    ) -> None:
        """Queues a launch; an argument is (0, device address), (1, value as bytes) or (2, bytes of local memory).

        A method of version 1.1, which ends before `follows_addresses`, is called without it.
        """
        raise NotImplementedError

    @_optional
    def graph_capture_begin(self, device: int, stream: int) -> None:
        """Begins to capture what is queued on the stream."""
        raise NotImplementedError

    @_optional
    def graph_capture_end(self, device: int, stream: int) -> int:
        """Gives the captured graph's handle, never 0."""
        raise NotImplementedError

    @_optional
    def graph_instantiate(self, device: int, graph: int) -> int:
        """Gives an executable's handle, never 0."""
        raise NotImplementedError

    @_optional
    def graph_launch(self, device: int, stream: int, executable: int) -> None:
        """Queues a replay."""
        raise NotImplementedError

    @_optional
    def graph_destroy(self, device: int, graph: int) -> None:
        """Destroys a graph."""
        raise NotImplementedError

    @_optional
    def graph_executable_destroy(self, device: int, executable: int) -> None:
        """Destroys an executable."""
        raise NotImplementedError

    @_optional
    def activity_enable(self, kinds: int) -> None:
        """Starts records of the kinds, or stops them with 0."""
        raise NotImplementedError

    @_optional
    def activity_correlate(self, correlation: int) -> None:
        """Sets the number that this thread's work gets from now on."""
        raise NotImplementedError

    @_optional
    def activity_read(self, capacity: int) -> list[tuple[int, int, int, int, int, int, int, int, int, str]]:
        """Gives done records: (kind, device, stream, correlation, start, end, bytes, src_device, dst_device, name)."""
        raise NotImplementedError

    # Only as the address of a C function: Python drivers raise exceptions, and bring kernels as `kernels`.
    last_error: ClassVar[int | None] = None
    kernel_register: ClassVar[int | None] = None


REQUIRED_ENTRIES = tuple(_REQUIRED)
OPTIONAL_ENTRIES = (*_OPTIONAL, "last_error", "kernel_register")

# Typing errors in a subclass would otherwise make an entry silently missing.
_KNOWN = {*REQUIRED_ENTRIES, *OPTIONAL_ENTRIES}
_PREFIXES = tuple({name.split("_")[0] + "_" for name in _KNOWN if "_" in name})


def driver_entries(driver: Driver) -> dict[str, Callable[..., Any] | int]:
    """Gives the entries that a driver brings itself: bound methods and addresses.

    RegistrationError if a required one is missing and there is no library, or a name looks like a misspelt entry.
    """
    entries: dict[str, Callable[..., Any] | int] = {}
    for name in (*REQUIRED_ENTRIES, *OPTIONAL_ENTRIES):
        value = getattr(driver, name)
        if value is None or getattr(value, "__func__", value) is getattr(Driver, name):
            continue
        entries[name] = _address(value) if _is_ctypes(value) else value
    if callable(launch := entries.get("kernel_launch")):
        entries["kernel_launch"] = _of_any_version(launch)
    _check_spelling(driver)
    if driver.library is None:
        missing = [name for name in REQUIRED_ENTRIES if name not in entries]
        if missing:
            raise RegistrationError(
                f"driver {driver.name!r} cannot be attached: it lacks the required entries {', '.join(missing)}. "
                "Define them as methods (see torch_outboard.Driver), bind addresses, or name a `library`."
            )
    return entries


def _of_any_version(launch: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a kernel_launch that takes what the contract's newest version passes, for a method of an earlier one."""
    import inspect

    try:
        inspect.signature(launch).bind(*range(10))
    except TypeError:
        return lambda *arguments: launch(*arguments[:9])
    return launch


def _check_spelling(driver: Driver) -> None:
    import difflib

    for owner in type(driver).__mro__:
        if owner in (Driver, object):
            break
        for name, value in vars(owner).items():
            if name in _KNOWN or hasattr(Driver, name) or not callable(value) or not name.startswith(_PREFIXES):
                continue
            if difflib.get_close_matches(name, _KNOWN, n=1, cutoff=0.85):
                raise RegistrationError(
                    f"driver {driver.name!r} cannot be attached: {name!r} is no entry.{nearest(name, sorted(_KNOWN))} "
                    "Begin the name of a helper with an underscore."
                )


def _is_ctypes(value: object) -> bool:
    return any(owner.__module__ == "_ctypes" and owner.__name__ == "CFuncPtr" for owner in type(value).__mro__)


def _address(function: Any) -> int:
    import ctypes

    return ctypes.cast(function, ctypes.c_void_p).value or 0
