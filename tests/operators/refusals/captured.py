# SPDX-License-Identifier: BSD-3-Clause
"""Right calls of operators, as they arrive below autograd.

The calls are recorded while samples of torch's database run on the CPU, or made up for operators that no sample
reaches.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

DTYPES = (torch.float32, torch.int64, torch.complex64)
MAX_ELEMENTS = 4096  # of one tensor: a matrix of thousands of calls has small ones


@dataclass(frozen=True)
class OperatorCall:
    """One call of an operator below autograd. `arguments` are the schema's in order, with defaults filled in."""

    operator: torch._ops.OpOverload
    arguments: tuple[Any, ...]

    @property
    def name(self) -> str:
        return str(self.operator.name())

    def run(self, device: torch.device) -> Any:
        """Run the call on copies of its tensors."""
        return self.on(device).run_here()

    def on(self, device: torch.device) -> OperatorCall:
        """Copy the tensors to the device, and replace the device that the call names."""
        return OperatorCall(
            self.operator, tuple(tree_map(lambda value: _moved(value, device), argument) for argument in self.arguments)
        )

    def run_here(self) -> Any:
        positional, named = [], {}
        for value, declared in zip(self.arguments, self.operator._schema.arguments, strict=True):
            if declared.kwarg_only:
                named[declared.name] = value
            else:
                positional.append(value)
        return self.operator(*positional, **named)


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device, copy=True)
    if isinstance(value, torch.device):
        return device
    return value


class _Recorder(TorchDispatchMode):
    """A mode that stores the first call of each operator and element type, before it runs."""

    def __init__(self, kept: dict[tuple[str, Any], OperatorCall]) -> None:
        super().__init__()
        self.kept = kept

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        leaves = [tensor for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, torch.Tensor)]
        key = (func.name(), leaves[0].dtype if leaves else None)
        if key not in self.kept and is_asked(func) and all(map(_is_plain, leaves)):
            self.kept[key] = OperatorCall(func, tuple(_arguments(func, args, kwargs)))
        return func(*args, **kwargs)


def is_asked(operator: torch._ops.OpOverload) -> bool:
    """Return whether wrong calls of the operator can be compared: views need no kernel."""
    namespace, _, name = operator._schema.name.partition("::")
    return (
        namespace == "aten"
        and not operator.is_view
        and not name.startswith(
            ("empty", "new_empty", "resize", "set_", "_has", "sym_", "_to_copy", "_sparse", "sparse")
        )
        and torch._C._dispatch_has_computed_kernel_for_dispatch_key(operator.name(), "CPU")
    )


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        tensor.layout == torch.strided
        and not tensor.is_quantized
        and tensor.numel() <= MAX_ELEMENTS
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def _arguments(operator: torch._ops.OpOverload, args: Any, kwargs: Any) -> Iterator[Any]:
    for place, declared in enumerate(operator._schema.arguments):
        value = args[place] if place < len(args) else kwargs.get(declared.name, declared.default_value)
        yield tree_map(lambda leaf: leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf, value)


def of_entry(info: OpInfo, kept: dict[tuple[str, Any], OperatorCall]) -> None:
    """Record in `kept` the calls that an entry's first samples make on the CPU, forward and backward."""
    for dtype in DTYPES:
        if dtype not in info.supported_dtypes("cpu"):
            continue
        # Complex gradients of ones are refused by decompositions that are free in phase.
        wants_gradients = (
            not dtype.is_complex and info.supports_autograd and dtype in info.supported_backward_dtypes("cpu")
        )
        torch.manual_seed(1)
        for sample in itertools.islice(info.sample_inputs("cpu", dtype, requires_grad=wants_gradients), 4):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                _run_sample(info, sample, kept)


def _run_sample(info: OpInfo, sample: Any, kept: dict[tuple[str, Any], OperatorCall]) -> None:
    with _Recorder(kept):
        result = info(sample.input, *sample.args, **sample.kwargs)
        outputs = [
            output
            for output in tree_leaves(result)
            if isinstance(output, torch.Tensor) and output.requires_grad and output.numel() > 0
        ]
        if outputs:
            torch.autograd.backward(outputs, [torch.ones_like(output) for output in outputs])


def entries() -> list[OpInfo]:
    return list(op_db)


def all_calls() -> list[OperatorCall]:
    """Return the right calls of all operators that the database reaches."""
    kept: dict[tuple[str, object], OperatorCall] = {}
    for info in entries():
        if not info.name.startswith("jiterator"):  # of CUDA alone
            try:
                of_entry(info, kept)
            except RuntimeError as error:  # the calls before it are kept
                print(f"{info.full_name} does not run on the CPU: {str(error).splitlines()[0][:120]}")
    return list(kept.values())
