# SPDX-License-Identifier: BSD-3-Clause
"""The contract in Python: a driver is a subclass of `Driver`.

An entry is written in one of three ways, and each entry may use a different one:

1. a method of the subclass, with the arguments below. A failure is an exception: `DriverError(message, code)` chooses
   the status, MemoryError and NotImplementedError have their own status, and any other exception becomes
   `Status.INTERNAL`;
2. the address of a C function with the signature of driver.h, as an int or a ctypes function, assigned to the entry's
   name. The function receives `self_address` as its `self`;
3. nothing, if `library` names a shared library that exports `ob_driver_table`. A method or an address in the subclass
   replaces the library's entry.

include/torch_outboard/driver.h states for each entry what it must do, who owns what, which threads call it and whether
it may wait. This file lists only the arguments and the results. An entry that a subclass does not define (or sets to
None) is missing. Methods are called from any thread. torch-outboard holds no lock during a call, but the thread holds
Python's interpreter lock: a method that waits must release it meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from torch_outboard._check import Check
from torch_outboard._errors import DriverError, NotSupportedError, RegistrationError, Status
from torch_outboard._options import Option, OptionValue, nearest, resolve_options
from torch_outboard._triton import TritonTarget

__all__ = ["Check", "Driver", "DriverError", "Option", "Status", "TritonTarget", "package_folders"]

_Entry = TypeVar("_Entry", bound=Callable[..., Any])

_REQUIRED: list[str] = []
# The consequence, as stated in driver.h, of each optional entry that is null.
WITHOUT: dict[str, str] = {}
_NO_IPC = "memory can't be shared between processes"
_NO_MAP = "no expandable segments"
_NO_PROGRAMS = "no generated kernels"
_NO_GRAPHS = "graphs are captured in software"
_NO_RECORDS = "the profiler times host work and copies with events"


def _required(method: _Entry) -> _Entry:
    _REQUIRED.append(method.__name__)
    return method


def _optional(without: str) -> Callable[[_Entry], _Entry]:
    """Mark an entry as optional, and state the effect of a missing entry."""

    def mark(method: _Entry) -> _Entry:
        WITHOUT[method.__name__] = without
        return method

    return mark


class Driver:
    """The description of one kind of device.

    Attributes
    ----------
    name : str
        The name of the device in torch: "mychip" becomes torch.device("mychip") and torch.mychip. Only lower-case
        letters and underscores, because torch parses nothing else.
    options : mapping of str to Option
        The options that `attach` accepts beside the name; also read from the environment, as OUTBOARD_<NAME>_<OPTION>.
    library : path or None
        A shared library that exports `ob_driver_table`. It receives the options as text.
    abi : tuple of int
        The version of the contract for which entries bound by address were compiled.
    self_address : int
        The `self` of entries bound by address.
    probe_opens : bool
        Whether `device_count` opens the runtime and does not survive a fork.
    kernels : mapping of str to callable
        Kernels for operators: {"aten::relu": fn}. See `torch_outboard.register_kernel`.
    code_generator : str, type or None, or a method that returns one of them for a device's index
        The generator of kernels for torch.compile: "cpp" if the host can reach the device's memory, "triton" if
        `triton_target` describes the target, or a subclass of torch_outboard.compile.CodeGenerator. Without a
        generator, torch.compile raises an error for this device. A method is called once for each device, at its first
        compilation.
    kernel_generator : str, type or None, or a method that returns one of the first two for the devices' properties
        The generator of kernels for operators of eager code: "opencl_c", or a subclass of
        torch_outboard.compile.simt.generator.SimtGenerator with a dialect that all devices build. It serves devices
        whose memory the host cannot reach, and all devices with `providers` or OUTBOARD_PROVIDERS. A method is called
        with a list of DeviceProperties when the first kernel is generated, or with an empty list before the driver is
        attached.
    kernel_packs : sequence of paths
        Files that `outboard kernels pack` wrote, with kernels for operators of eager code, which are then not generated
        again. A relative path starts at the folder of the module that defines the class.
    architectures : mapping of str to mapping of str
        The architectures that `compile_program` compiles for, each with the fields of `device_properties` that
        determine its kernels: `machine`, `major`, `minor`, `max_threads_per_block`, `shared_memory_per_block` and so
        on. `outboard kernels pack --arch` then needs no device.
    providers : sequence of str or None
        The chain of providers that operators try: some of "native", "generated" and "host", in this order.
        OUTBOARD_PROVIDERS takes precedence. None means all of them, "generated" only on devices whose memory the host
        cannot reach.
    test_programs : torch_outboard.testing.programs.TestPrograms or None
        Texts in the driver's language that `outboard test` builds. Not needed if the driver's generator has a dialect.
    autocast : None, "default" or mapping of str to str
        The effect of torch.autocast. None: autocast warns and disables itself. "default": as on CUDA. A mapping: as on
        CUDA with these changes, {"aten::softmax": "lower_precision_fp"}. See `torch_outboard.amp.set_policy`.
    autocast_dtype : torch.dtype or None
        The default dtype of torch.autocast, in the thread that attaches; None means torch's own default, float16.
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
    architectures: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    providers: ClassVar[Sequence[str] | None] = None
    test_programs: ClassVar[Any] = None
    autocast: ClassVar[str | Mapping[str, str] | None] = None
    autocast_dtype: ClassVar[Any] = None

    option_values: dict[str, OptionValue | None]

    def __init__(self, **options: object) -> None:
        """Resolve the options into `option_values`. This opens nothing; `device_open` opens a device."""
        self.option_values = resolve_options(type(self).name, type(self).options, options)

    def triton_target(self, device: int) -> TritonTarget:
        """Return Triton's target for a device's kernels; called only with `code_generator = "triton"`."""
        raise NotSupportedError(
            f"the driver {self.name!r} names the code generator 'triton' but does not implement `triton_target`, "
            "which must return the target that Triton compiles for"
        )

    def compile_program(self, architecture: str, language: str, code: bytes, options: str) -> bytes:
        """Return the program that `program_build` accepts as language "binary" on devices of one of `architectures`.

        The method opens no device, and is called from several threads at a time. It raises on failure, like
        `program_build`.
        """
        raise NotSupportedError(
            f"the driver {self.name!r} does not implement `compile_program`, which compiles programs without a device"
        )

    def own_programs(self) -> Sequence[tuple[str, bytes, str]]:
        """Return the language, text and options of each program that the driver's library builds for itself.

        A pack contains these programs, compiled by `compile_program`. While a process uses the pack, `recall` of
        `ob_registrar` (driver.h) finds a program by its text. The method opens no device.
        """
        return ()

    def compatible_architectures(self, architecture: str) -> Sequence[str]:
        """Return the architectures whose binaries a device of this architecture runs, best first."""
        return (architecture,)

    def libraries(self) -> Mapping[str, str]:
        """Return the vendor's libraries that operators use, each with its file, for `outboard info`."""
        return {}

    def checks(self) -> Sequence[Check]:
        """Return the checks of the vendor's libraries on this machine, for `outboard doctor`.

        Called in a process that has imported torch, maybe before the driver is attached. The method must open no device
        that the process keeps, and report missing things instead of raising.
        """
        return ()

    def report(self) -> Mapping[str, Any] | None:
        """Return the report that `outboard doctor --report` prints for the driver's developers, as JSON data, or None.

        Called like `checks`. The report states what the machine has, how the driver uses it, and whether values are
        right.
        """
        return None

    # -- Required
    # ------------------------------------------------------------------------------------------------------

    @_required
    def device_count(self) -> int:
        """Return the number of devices; must be cheap and open nothing."""
        raise NotImplementedError

    @_required
    def device_properties(self, device: int) -> Any:
        """Return a dict of the fields of ob_device_properties, or DeviceProperties; a missing field is unknown.

        `dtypes` may also be an iterable of torch.dtype.
        """
        raise NotImplementedError

    @_required
    def mem_alloc(self, device: int, bytes: int) -> int:
        """Return the address of new device memory, a multiple of 512."""
        raise NotImplementedError

    @_required
    def mem_free(self, device: int, address: int) -> None:
        """Free memory from mem_alloc."""
        raise NotImplementedError

    @_required
    def copy_async(
        self, device: int, stream: int, dst: int, src: int, bytes: int, dst_device: int, src_device: int
    ) -> None:
        """Queue a copy between addresses; the device -1 is the host."""
        raise NotImplementedError

    @_required
    def stream_create(self, device: int, priority: int) -> int:
        """Return a new stream's handle."""
        raise NotImplementedError

    @_required
    def stream_destroy(self, device: int, stream: int) -> None:
        """Destroy a stream; the work queued on it completes."""
        raise NotImplementedError

    @_required
    def stream_synchronize(self, device: int, stream: int) -> None:
        """Wait for all queued work of the stream, and raise its first failure, once."""
        raise NotImplementedError

    @_required
    def event_create(self, device: int, flags: int) -> int:
        """Return a new event's handle, never 0."""
        raise NotImplementedError

    @_required
    def event_destroy(self, device: int, event: int) -> None:
        """Destroy an event, even if queued waits for it are pending."""
        raise NotImplementedError

    @_required
    def event_record(self, device: int, stream: int, event: int) -> None:
        """Queue a mark on the stream."""
        raise NotImplementedError

    @_required
    def event_query(self, device: int, event: int) -> bool:
        """Return whether the latest record is done; True without a record."""
        raise NotImplementedError

    @_required
    def stream_wait_event(self, device: int, stream: int, event_device: int, event: int) -> None:
        """Queue a wait for the record that is the event's latest at the time of this call."""
        raise NotImplementedError

    # -- Optional
    # ------------------------------------------------------------------------------------------------------

    @_optional("nothing is called at the end")
    def destroy(self) -> None:
        """Release the driver: no other entry is called afterwards."""
        raise NotImplementedError

    @_optional("nothing is opened")
    def device_open(self, device: int) -> None:
        """Open a device before its first use."""
        raise NotImplementedError

    @_optional("nothing is closed")
    def device_close(self, device: int) -> None:
        """Close a device."""
        raise NotImplementedError

    @_optional("every stream is synchronized")
    def device_synchronize(self, device: int) -> None:
        """Wait for all work of the device."""
        raise NotImplementedError

    @_optional("filled by copies from the host, or through host_address")
    def fill_async(self, device: int, stream: int, dst: int, pattern: bytes, count: int) -> None:
        """Queue `count` repetitions of a pattern of 1, 2, 4, 8 or 16 bytes."""
        raise NotImplementedError

    @_optional("through host_address, else through host memory")
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
        """Queue a strided copy; sizes and strides count elements."""
        raise NotImplementedError

    @_optional("total from the properties, free as total less this process's use")
    def mem_info(self, device: int) -> tuple[int, int]:
        """Return the free and the total bytes."""
        raise NotImplementedError

    @_optional("pinned memory is ordinary memory, and copies wait")
    def host_alloc(self, bytes: int) -> int:
        """Return the address of host memory that the device copies from and to directly."""
        raise NotImplementedError

    @_optional("pinned memory is ordinary memory, and copies wait")
    def host_free(self, pointer: int) -> None:
        """Free memory from host_alloc."""
        raise NotImplementedError

    @_optional("existing memory can't be pinned")
    def host_register(self, pointer: int, bytes: int) -> None:
        """Pin existing host memory, so that it can be used like memory from host_alloc."""
        raise NotImplementedError

    @_optional("existing memory can't be pinned")
    def host_unregister(self, pointer: int) -> None:
        """Undo host_register."""
        raise NotImplementedError

    @_optional("CPU kernels can't run on device memory: operators go through copies")
    def host_address(self, device: int, address: int, bytes: int) -> int | None:
        """Return the address at which the host reaches device memory, or None if there is none."""
        raise NotImplementedError

    @_optional("through an event")
    def stream_query(self, device: int, stream: int) -> bool:
        """Return whether all work of the stream is done."""
        raise NotImplementedError

    @_optional("event_query is polled")
    def event_synchronize(self, device: int, event: int) -> None:
        """Wait for the event's latest record."""
        raise NotImplementedError

    @_optional("collectives block the thread that waits for them, not only a stream")
    def event_signal(self, device: int, event: int) -> None:
        """Complete an event made with flag 8 (OB_EVENT_HOST), once; streams that wait for it continue. Never block."""
        raise NotImplementedError

    @_optional("no timing, unless event_timestamp exists")
    def event_elapsed(self, device: int, start: int, end: int) -> float:
        """Return the milliseconds between two recorded timing events."""
        raise NotImplementedError

    @_optional("no timestamps")
    def event_timestamp(self, device: int, event: int) -> int:
        """Return the nanoseconds of CLOCK_MONOTONIC at which a timing event was reached."""
        raise NotImplementedError

    @_optional("copies between devices count as going through the host")
    def peer_access(self, device: int, peer: int) -> bool:
        """Return whether the device reaches the peer's memory without the host."""
        raise NotImplementedError

    @_optional(_NO_MAP)
    def mem_reserve(self, device: int, bytes: int) -> int:
        """Return the address of reserved address space without memory."""
        raise NotImplementedError

    @_optional(_NO_MAP)
    def mem_release(self, device: int, address: int, bytes: int) -> None:
        """Release address space from mem_reserve."""
        raise NotImplementedError

    @_optional(_NO_MAP)
    def mem_map(self, device: int, address: int, bytes: int) -> None:
        """Map memory to a part of reserved address space."""
        raise NotImplementedError

    @_optional(_NO_MAP)
    def mem_unmap(self, device: int, address: int, bytes: int) -> None:
        """Unmap memory from a part of reserved address space."""
        raise NotImplementedError

    @_optional(_NO_IPC)
    def ipc_export(self, device: int, address: int) -> bytes:
        """Return a handle by which another process opens one allocation."""
        raise NotImplementedError

    @_optional(_NO_IPC)
    def ipc_open(self, device: int, handle: bytes) -> int:
        """Return the address in this process of another process's allocation."""
        raise NotImplementedError

    @_optional(_NO_IPC)
    def ipc_close(self, device: int, address: int) -> None:
        """Close an allocation that ipc_open opened."""
        raise NotImplementedError

    @_optional("host work waits for its stream and runs on the caller's thread")
    def host_callback(self, device: int, stream: int, work: Callable[[], None]) -> None:
        """Queue a call of `work`, which the driver must call exactly once, on any thread."""
        raise NotImplementedError

    @_optional(_NO_PROGRAMS)
    def program_build(self, device: int, language: str, code: bytes, options: str) -> int:
        """Return a program's handle, never 0; the message of a failure is the build log."""
        raise NotImplementedError

    @_optional("programs are compiled anew in each process")
    def program_binary(self, device: int, program: int) -> bytes | None:
        """Return a binary that program_build takes in the language "binary", or None if there is none to keep."""
        raise NotImplementedError

    @_optional(_NO_PROGRAMS)
    def program_destroy(self, device: int, program: int) -> None:
        """Destroy a program and its kernels."""
        raise NotImplementedError

    @_optional(_NO_PROGRAMS)
    def kernel_get(self, device: int, program: int, name: str) -> int:
        """Return a kernel's handle, never 0."""
        raise NotImplementedError

    @_optional(_NO_PROGRAMS)
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
        """Queue a launch; an argument is (0, device address), (1, value as bytes) or (2, bytes of local memory).

        A method written for version 1.1 has no parameter `follows_addresses`, and is called without this argument.
        """
        raise NotImplementedError

    @_optional(_NO_GRAPHS)
    def graph_capture_begin(self, device: int, stream: int) -> None:
        """Begin to capture the work queued on the stream."""
        raise NotImplementedError

    @_optional(_NO_GRAPHS)
    def graph_capture_end(self, device: int, stream: int) -> int:
        """Return the captured graph's handle, never 0."""
        raise NotImplementedError

    @_optional(_NO_GRAPHS)
    def graph_instantiate(self, device: int, graph: int) -> int:
        """Return an executable's handle, never 0."""
        raise NotImplementedError

    @_optional(_NO_GRAPHS)
    def graph_launch(self, device: int, stream: int, executable: int) -> None:
        """Queue a replay."""
        raise NotImplementedError

    @_optional(_NO_GRAPHS)
    def graph_destroy(self, device: int, graph: int) -> None:
        """Destroy a graph."""
        raise NotImplementedError

    @_optional(_NO_GRAPHS)
    def graph_executable_destroy(self, device: int, executable: int) -> None:
        """Destroy an executable."""
        raise NotImplementedError

    @_optional(_NO_RECORDS)
    def activity_enable(self, kinds: int) -> None:
        """Start recording activities of these kinds; 0 stops all recording."""
        raise NotImplementedError

    @_optional(_NO_RECORDS)
    def activity_correlate(self, correlation: int) -> None:
        """Set the correlation number of the work that this thread queues from now on."""
        raise NotImplementedError

    @_optional(_NO_RECORDS)
    def activity_read(self, capacity: int) -> list[tuple[int, int, int, int, int, int, int, int, int, str]]:
        """Return finished records.

        A record is (kind, device, stream, correlation, start, end, bytes, src_device, dst_device, name).
        """
        raise NotImplementedError

    # Only as the address of a C function: Python drivers raise exceptions and pass kernels as
    # `kernels`.
    last_error: ClassVar[int | None] = None
    kernel_register: ClassVar[int | None] = None


REQUIRED_ENTRIES = tuple(_REQUIRED)
WITHOUT |= {"last_error": "messages contain only the status", "kernel_register": "no kernels in C"}
OPTIONAL_ENTRIES = tuple(WITHOUT)

# Otherwise a typo in a subclass would silently remove an entry.
_ENTRY_NAMES = {*REQUIRED_ENTRIES, *OPTIONAL_ENTRIES}
_PREFIXES = tuple({name.split("_")[0] + "_" for name in _ENTRY_NAMES if "_" in name})


def package_folders() -> list[Path]:
    """Return the folders that packages are installed into: torch's first, because vendors' packages come with torch.

    A driver searches them for its vendor's libraries, which the loader does not find there. `sys.path` is not searched:
    it may name the process's current folder, and a library in that folder must not be loaded.
    """
    import site
    import sysconfig

    import torch  # not at the top: `outboard info` loads drivers without torch

    paths = sysconfig.get_paths()
    folders = [str(Path(torch.__file__).parent.parent), *site.getsitepackages(), paths["purelib"], paths["platlib"]]
    if site.ENABLE_USER_SITE:
        folders.append(site.getusersitepackages())
    return [Path(path) for path in dict.fromkeys(folders) if os.path.isabs(path)]


def driver_entries(driver: Driver) -> dict[str, Callable[..., Any] | int]:
    """Return the entries that a driver itself defines: bound methods and addresses.

    Raises
    ------
    RegistrationError
        A required entry is missing and there is no library, or a name looks like a misspelt entry.
    """
    entries: dict[str, Callable[..., Any] | int] = {}
    for name in (*REQUIRED_ENTRIES, *OPTIONAL_ENTRIES):
        value = getattr(driver, name)
        if value is None or getattr(value, "__func__", value) is getattr(Driver, name):
            continue
        entries[name] = _address(value) if _is_ctypes(value) else value
    if callable(launch := entries.get("kernel_launch")):
        entries["kernel_launch"] = _accept_any_version(launch)
    _check_spelling(driver)
    if driver.library is None:
        missing = [name for name in REQUIRED_ENTRIES if name not in entries]
        if missing:
            raise RegistrationError(
                f"driver {driver.name!r} cannot be attached: it lacks the required entries {', '.join(missing)}. "
                "Define them as methods (see torch_outboard.Driver), bind them to addresses, or set `library`."
            )
    return entries


def _accept_any_version(launch: Callable[..., Any]) -> Callable[..., Any]:
    """Return a kernel_launch that takes the newest version's arguments, and passes on only the method's own."""
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
            if name in _ENTRY_NAMES or hasattr(Driver, name) or not callable(value) or not name.startswith(_PREFIXES):
                continue
            if difflib.get_close_matches(name, _ENTRY_NAMES, n=1, cutoff=0.85):
                raise RegistrationError(
                    f"driver {driver.name!r} cannot be attached: {name!r} is not an entry."
                    f"{nearest(name, sorted(_ENTRY_NAMES))} If it is a helper, start its name with an underscore."
                )


def _is_ctypes(value: object) -> bool:
    return any(owner.__module__ == "_ctypes" and owner.__name__ == "CFuncPtr" for owner in type(value).__mro__)


def _address(function: Any) -> int:
    import ctypes

    return ctypes.cast(function, ctypes.c_void_p).value or 0
