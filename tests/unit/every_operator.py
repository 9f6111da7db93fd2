# SPDX-License-Identifier: BSD-3-Clause
"""Call every operator of torch that takes a tensor, in forked children, and count those that a signal ends.

python -m tests.unit.every_operator sim prints the operators, and the number of the arguments that ended the process.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import struct
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch

__all__ = ["ended_by_signals", "operators"]

BATCH = 300
SECONDS = 10  # of a call
# Empty, or compiled by the call, or of a test of torch's own; they take no tensor's memory.
SKIPPED = ("_test::", "debugprims::", "profiler::", "prim::", "inductor::", "c10d::", "_c10d_functional")
# Faults of torch: with sizes that do not fit, these CPU kernels leave their tensors.
UNDEFINED = frozenset(
    {
        *("aten::_batch_norm_no_update", "aten::_native_batch_norm_legit", "aten::native_batch_norm"),
        *("aten::_fft_r2c", "aten::_nnpack_spatial_convolution", "aten::_sobol_engine_initialize_state_"),
        *("aten::_thnn_differentiable_gru_cell_backward", "aten::_thnn_differentiable_lstm_cell_backward"),
        *("onednn::qlinear_pointwise", "quantized::embedding_bag_byte_unpack"),
    }
)
SIZES: tuple[tuple[tuple[int, ...], torch.dtype, bool], ...] = (
    ((), torch.float32, False),
    ((4,), torch.float32, False),
    ((4,), torch.uint8, True),
    ((2, 8), torch.int64, False),
    ((4, 8), torch.float32, True),
    ((8, 8), torch.int8, True),
    ((2, 3, 4), torch.float32, False),
    ((2, 3, 4), torch.float16, True),
    ((1, 2, 4, 4), torch.float32, False),
)


def operators() -> list[Any]:
    """Return the schemas, in an order that does not change.

    The operators that only TorchScript's interpreter has are left out: they do not ask the dispatcher. Of these,
    `aten::_tensor_to_list` and `onnx::Reshape` read the memory of any device on the host.
    """
    names = set(torch._C._dispatch_get_all_op_names())
    schemas = {}
    for schema in torch._C._jit_get_all_schemas():
        name = f"{schema.name}.{schema.overload_name}".rstrip(".")
        takes_tensors = any("Tensor" in str(argument.type) for argument in schema.arguments)
        is_asked = schema.name not in UNDEFINED and not name.startswith(SKIPPED)
        if name in names and takes_tensors and is_asked:
            schemas[name] = schema
    return [schemas[name] for name in sorted(schemas)]


def _value(kind: Any, like: torch.Tensor, fills: bool) -> Any:
    """Return an argument of a type. Optional ones are missing unless `fills`."""
    name = kind.kind()
    if name == "TensorType":
        return like.clone()
    if name == "OptionalType":
        return _value(kind.getElementType(), like, fills) if fills else None
    if name == "ListType":
        element = kind.getElementType()
        count = max(like.dim(), 1) if element.kind() in ("IntType", "SymIntType") else 2
        return [_value(element, like, fills) for _ in range(count)]
    if name == "GeneratorType":
        return torch.Generator(like.device)
    others = {"FloatType": 1.0, "BoolType": fills, "StringType": "mean", "DeviceObjType": like.device}
    return others.get(name, 1)


def _call(schema: Any, like: torch.Tensor, fills: bool) -> None:
    positional, named = [], {}
    for argument in schema.arguments:
        is_given = fills or not argument.has_default_value()
        value = _value(argument.type, like, fills) if is_given else argument.default_value
        if argument.kwarg_only:
            named[argument.name] = value
        else:
            positional.append(value)
    function, *_ = torch._C._get_operation_overload(schema.name, schema.overload_name)
    function(*positional, **named)


def _run(schemas: Sequence[Any], first: int, note: mmap.mmap, device: str) -> None:
    """Call each operator, in a child, and note the one under way."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if device != "cpu":
        import torch_outboard

        torch_outboard.attach(device)
    likes = [(torch.ones(sizes, dtype=dtype, device=device), fills) for sizes, dtype, fills in SIZES]

    def give_up(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, give_up)
    for place, schema in enumerate(schemas, first):
        for which, (like, fills) in enumerate(likes):
            note[:8] = struct.pack("ii", place, which)
            # Most calls are wrong, and raise. The question is whether they end the process.
            with contextlib.suppress(Exception):
                signal.alarm(SECONDS)
                _call(schema, like, fills)
            with contextlib.suppress(Exception):
                if device != "cpu":
                    torch.accelerator.synchronize()
            signal.alarm(0)


def ended_by_signals(schemas: Sequence[Any], device: str) -> Iterator[tuple[Any, int, int]]:
    """Yield each operator that ended a process, the signal, and the number of the arguments in SIZES."""
    note = mmap.mmap(-1, 8)
    first = 0
    while first < len(schemas):
        last = min(first + BATCH, len(schemas))
        child = os.fork()
        if child == 0:
            status = 1
            try:
                _run(schemas[first:last], first, note, device)
                status = 0
            finally:
                os._exit(status)
        status = os.waitpid(child, 0)[1]
        place, which = struct.unpack("ii", note[:8])
        if os.WIFSIGNALED(status):
            yield schemas[place], os.WTERMSIG(status), which
            first = place + 1
            continue
        assert os.WEXITSTATUS(status) == 0, f"{schemas[place]} ended the process with {os.WEXITSTATUS(status)}"
        first = last


if __name__ == "__main__":
    device, rest = sys.argv[1], [operator for operator in operators() if sys.argv[2:3] in ([], [operator.name])]
    for schema, number, which in ended_by_signals(rest, device):
        print(f"{schema.name}.{schema.overload_name}".rstrip("."), signal.Signals(number).name, which, flush=True)
