# SPDX-License-Identifier: BSD-3-Clause
"""Kernels in the driver's own language, built and launched from Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import torch

from torch_outboard._errors import RegistrationError
from torch_outboard._options import nearest

__all__ = ["Kernel", "build_kernel", "launch"]

_BY_VALUE = (
    *("bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "bfloat16", "float32", "float64"),
)
_DTYPES = sorted(name for name, value in vars(torch).items() if isinstance(value, torch.dtype))
_Size: TypeAlias = int | Sequence[int]


class ParameterRecord(NamedTuple):
    """A parameter. csrc/bindings/launch.cpp reads it by field name."""

    kind: str  # "tensor", "number" or "local"
    dtype: torch.dtype | None = None  # None: a tensor of any dtype
    is_written: bool = False
    is_strided: bool = False


class TypedKernelRecord(NamedTuple):
    """A kernel with declared parameters. csrc/bindings/launch.cpp reads it by field name."""

    name: str
    language: str
    code: bytes
    options: str
    parameters: tuple[ParameterRecord, ...]


class Kernel:
    """A kernel in the driver's language; `build_kernel` returns it, `launch` takes it. Any thread may use it.

    Attributes
    ----------
    name : str
        The kernel's name in the program, the profiler and errors.
    signature : str
        The types of its parameters, as passed to `build_kernel`.
    """

    __slots__ = ("_launch", "name", "signature")

    def __init__(self, name: str, signature: str, launcher: Any) -> None:
        self.name, self.signature, self._launch = name, signature, launcher

    def __repr__(self) -> str:
        return f"<torch_outboard kernel {self.name}({self.signature})>"


def build_kernel(
    code: str | bytes,
    name: str,
    *,
    language: str,
    signature: str,
    options: str = "",
    device: torch.device | str | int | None = None,
) -> Kernel:
    """Build a kernel from its source, for `launch`.

    The call waits for the driver's compiler, or reads the program from the disk (docs/kernels.md). A launch on another
    device builds the kernel for that device first.

    Parameters
    ----------
    code : str or bytes
        The program, in a language that the driver builds.
    name : str
        The kernel's name in the program.
    language : str
        The driver's name for the language: "opencl_c", "cuda", …
    signature : str
        A type for each parameter, separated by commas: "const float32*, float32*, int32". `T*` is the address of a
        tensor of dtype T, `void*` of any dtype. `const` declares that the kernel only reads, for the stream sanitizer.
        A tensor must be contiguous; `strided T*` accepts any strides. `T` is a number passed by value. `local` is local
        (shared) memory, whose size in bytes is the launch's argument.
    options : str
        Options for the driver's compiler.
    device : torch.device, str or int, optional
        The first device to build for; the current device by default.

    Raises
    ------
    ValueError
        The driver refuses the program (the message is the build log), the program has no kernel of that name, or the
        signature is invalid.
    NotSupportedError
        The driver builds no programs.
    RegistrationError
        No driver is attached.
    """
    from torch_outboard import _C

    if not _C.is_attached():
        raise RegistrationError("attach a driver before building kernels: torch_outboard.attach(name)")
    parameters = tuple(_parameter(text, name) for text in signature.split(",")) if signature.strip() else ()
    source = code.encode() if isinstance(code, str) else bytes(code)
    launcher = _C.typed_kernel(TypedKernelRecord(name, language, source, options, parameters))
    _C.build_typed_kernel(launcher, _device_index(device))
    return Kernel(name, signature, launcher)


def launch(
    kernel: Kernel,
    args: Sequence[Any],
    *,
    grid: _Size,
    block: _Size = 1,
    shared_memory: int = 0,
    cluster: _Size | None = None,
    cooperative: bool = False,
    follows_addresses: bool = False,
    stream: torch.Stream | None = None,
) -> None:
    """Queue a launch of a kernel, on the current stream of its tensors' device, and return.

    During a capture, the graph records the launch and runs it at each replay. The stream sanitizer and the profiler
    show the launch under the kernel's name. The caller may drop the tensors before the launch is done; the tensors of a
    graph must live as long as the graph. To autograd, a launch is a write in place without a gradient. For gradients,
    register the kernel as an operator's (`register_kernel`, torch.library.custom_op).

    Parameters
    ----------
    kernel : Kernel
    args : sequence
        One for each parameter: a tensor, a number, or the bytes of local memory.
    grid, block : int or sequence of up to three int
        The number of blocks, and the number of threads per block. If a dimension of the grid is 0, nothing is launched.
    shared_memory : int
        Bytes of dynamic shared memory per block, for languages in which this memory is not an argument.
    cluster : int or sequence of up to three int, optional
        The number of blocks per cluster.
    cooperative : bool
        Whether all blocks run at once and may wait for each other.
    follows_addresses : bool
        Whether the kernel uses addresses that it reads from memory.
    stream : torch.Stream, optional
        The stream to launch on, instead of the current stream.

    Raises
    ------
    TypeError
        The number of arguments or the kind of an argument is wrong.
    ValueError
        A tensor is on another kind of device, or its dtype or layout differs from the signature. The grid or the block
        is invalid, the stream belongs to another device, or the driver refuses an argument as invalid.
    OverflowError
        A number does not fit its dtype.
    RuntimeError
        The tensors are on two devices.
    NotSupportedError
        The driver launches no kernels, or the device does not follow addresses.
    CaptureError
        The stream's capture has already failed.
    """
    if not isinstance(kernel, Kernel):
        raise TypeError(f"launch takes a kernel from build_kernel, not {type(kernel).__name__}")
    kernel._launch(
        tuple(args),
        _dim3(grid, 1),
        _dim3(block, 1),
        (0, 0, 0) if cluster is None else _dim3(cluster, 1),
        shared_memory,
        cooperative,
        follows_addresses,
        -1 if stream is None else _index_of(stream),
        0 if stream is None else stream.stream_id,
    )


def _dim3(size: _Size, rest: int) -> tuple[int, ...]:
    if isinstance(size, int):
        return (size, rest, rest)
    return (*size, rest, rest, rest)[: max(3, len(size))]


def _index_of(stream: torch.Stream) -> int:
    from torch_outboard import _C

    if not isinstance(stream, torch.Stream):
        raise TypeError(f"launch takes a torch.Stream, not {type(stream).__name__}")
    if stream.device.type != _C.driver_name():
        raise ValueError(f"launch takes a stream of {_C.driver_name()!r}, not a stream of {stream.device}")
    return int(stream.device_index)


def _device_index(device: torch.device | str | int | None) -> int:
    from torch_outboard import _C

    if isinstance(device, int):
        return device
    place = torch.device(_C.driver_name()) if device is None else torch.device(device)
    if place.type != _C.driver_name():
        raise ValueError(f"build_kernel takes a device of {_C.driver_name()!r}, not {place}")
    return _C.current_device() if place.index is None else place.index


def _parameter(text: str, kernel: str) -> ParameterRecord:
    words = text.replace("*", " * ").split()
    is_const, is_strided = "const" in words, "strided" in words
    rest = [word for word in words if word not in ("const", "strided")]
    match rest:
        case ["local"] if words == rest:
            return ParameterRecord("local")
        case [str(name)] if words == rest and name in _BY_VALUE:
            return ParameterRecord("number", getattr(torch, name))
        case ["void", "*"]:
            return ParameterRecord("tensor", None, not is_const, is_strided)
        case [str(name), "*"] if name in _DTYPES:
            return ParameterRecord("tensor", getattr(torch, name), not is_const, is_strided)
    named = next((word for word in rest if word != "*"), "")
    known = [*(_DTYPES if "*" in rest else _BY_VALUE), "void", "local"]
    raise ValueError(
        f"the signature of the kernel {kernel} has an invalid parameter {text.strip()!r}: write 'float32*' or "
        "'const float32*' for a tensor (with 'strided' for any strides, 'void*' for any dtype), 'int32' for a "
        f"number, or 'local' for local memory.{nearest(named, known) if named not in known else ''}"
    )
