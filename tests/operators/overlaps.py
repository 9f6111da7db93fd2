# SPDX-License-Identifier: BSD-3-Clause
"""The operators that refuse arguments that overlap in memory, found by trials with the CPU's kernels.

An operator that writes is called with arguments from the operator database: unchanged, then with a written argument
whose elements share memory, then with a written argument that shares memory with another argument.
"""

from __future__ import annotations

import contextlib
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from .samples import samples_of

# What torch says (ATen/MemoryOverlap.cpp).
INTERNAL = "more than one element of the written-to tensor refers to a single memory location"
BETWEEN = "some elements of the input tensor and the written-to tensor refer to a single memory location"
# An operator's samples that are tried: kernels take other paths for other arguments.
EXAMPLES = 8
SAMPLES = 12
CALLS = 24

# With `out=` these crash the CPU, whatever the arguments.
CRASHING = ("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training")

Outcome = str  # "accepted", "refused" or "failed": the last for another reason than overlap


@dataclass(frozen=True)
class Example:
    """A call of an overload that its CPU kernel accepts: one value for each argument of the schema."""

    op: torch._ops.OpOverload
    values: tuple[Any, ...]

    def run(self, values: tuple[Any, ...]) -> Any:
        names = [argument.name for argument in self.op._schema.arguments]
        keyword_only = [argument.kwarg_only for argument in self.op._schema.arguments]
        args = [value for value, by_name in zip(values, keyword_only, strict=True) if not by_name]
        kwargs = {name: value for name, value, by_name in zip(names, values, keyword_only, strict=True) if by_name}
        return self.op(*args, **kwargs)

    @property
    def written(self) -> list[int]:
        """Indices of the arguments that are written tensors."""
        arguments = enumerate(self.op._schema.arguments)
        return [i for i, argument in arguments if is_written(argument) and isinstance(self.values[i], torch.Tensor)]


@dataclass(frozen=True)
class Probe:
    """One overlap of arguments: `how` is "internal", "partial" or "full"; `other` is -1 for the first."""

    written: int
    other: int
    how: str


def is_written(argument: torch._C.Argument) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


class Recorder(TorchDispatchMode):
    """A mode that stores the arguments of calls, by the operator's name without overload."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, list[tuple[torch._ops.OpOverload, dict[str, Any]]]] = defaultdict(list)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kept = self.calls[func._schema.name.removeprefix("aten::")]
        if func.namespace == "aten" and sum(op is func for op, _ in kept) < CALLS:
            by_name = {argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)}
            kept.append((func, tree_map(copied, {**by_name, **(kwargs or {})})))
        return func(*args, **(kwargs or {}))


def copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def plain_calls() -> None:
    """Call operators that the database does not reach, or only with arguments of unequal shapes or sizes."""
    a, b, c = torch.tensor([2, 1, 0]), torch.tensor([1, 0, 2]), torch.tensor([0, 2, 1])
    mask, x, square = torch.tensor([True, False, True]), torch.rand(3), torch.rand(3, 3)
    for method in ("index_add_", "index_copy_", "scatter_", "scatter_add_"):
        getattr(a.clone(), method)(0, b, c)
    a.clone().scatter_reduce_(0, b, c, "sum"), a.clone().index_reduce_(0, b, c, "prod"), a.clone().put_(b, c)
    a.clone().scatter_(0, b, 1), a.clone().index_fill_(0, b, 1), a.clone().index_fill_(0, b, torch.tensor(1))
    a.clone().scatter_(0, b, c, reduce="add"), a.clone().scatter_(0, b, 1, reduce="add")
    a.scatter(0, b, c, reduce="add"), a.scatter(0, b, 1, reduce="add"), a.scatter(0, b, 1)
    a.gather(0, b), a.index_select(0, b), a.take(b), a.index_add(0, b, c), a.index_copy(0, b, c)
    torch.ops.aten._index_put_impl_(a.clone(), [b], c), torch.ops.aten.index(a, [b]), x.clone().masked_scatter_(mask, x)
    mask.clone().masked_fill_(mask, True), mask.clone().masked_fill_(mask, torch.tensor(True)), mask.masked_select(mask)
    x.clone().bernoulli_(x), a.clone().random_(), a.clone().random_(3), a.clone().random_(1, 3)
    x.clone().fill_(torch.tensor(1.0)), torch.conj_physical(torch.rand(3, dtype=torch.complex64))
    torch.normal(0.0, x), x.clone().clamp_max_(0.5), x.clamp_max(0.5), x.lt(0.5), x.gt(0.5), x.clone().lt_(0.5)
    x.clone().gt_(0.5), torch.div(x, x, rounding_mode="floor"), torch.pow(x, x), torch.nansum(square, 0)
    square.amin(0), square.all(0), square.any(0), torch.all(square, (0,)), torch.any(square, (0,))
    torch.norm(square, 2, (0,), False, dtype=torch.float64), torch.eye(3, 3), torch.logspace(0, 1, 3)
    torch.isin(x, 0.5), torch.isin(a, b), torch.searchsorted(x.sort()[0], x), torch.randperm(3, generator=None)
    a.clone().__ilshift__(b), a.clone().__ilshift__(1), a.clone().__irshift__(b), a.clone().__irshift__(1)
    torch.embedding_renorm_(square.clone(), b, 0.5, 2.0), torch.linalg.eigvals(square), torch.mm(square, square)


def recorded_calls(samples: int = SAMPLES) -> Recorder:
    """Run the operator database on the CPU, forward and backward, in float32 or an entry's replacement of it.

    `samples` limits the samples of each entry and element type; the first few reach nearly all operators.
    """
    recorder = Recorder()
    with quiet(), recorder:
        plain_calls()
    for info in op_db:
        supported = info.supported_dtypes("cpu")
        dtypes = [dtype for dtype in (torch.float32, torch.int64, torch.bool, torch.complex64) if dtype in supported]
        for dtype in dtypes[:2]:
            with contextlib.suppress(Exception):  # an entry that makes no samples has nothing to try
                requires_grad = info.supports_autograd and dtype == torch.float32
                for sample in samples_of(info, dtype, requires_grad, most=samples):
                    record(info, sample, recorder)
    return recorder


def record(info: Any, sample: Any, recorder: Recorder) -> None:
    inplace = info.get_inplace()
    with contextlib.suppress(Exception), recorder:  # what torch refuses is no example
        leaves = tree_leaves(info(sample.input, *sample.args, **sample.kwargs))
        results = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        if results:
            torch.autograd.backward(results, [torch.randn_like(result) for result in results])
    if inplace is not None and isinstance(sample.input, torch.Tensor):
        with contextlib.suppress(Exception), torch.no_grad(), recorder:
            inplace(sample.input.clone(), *sample.args, **sample.kwargs)


def writing_overloads() -> list[torch._ops.OpOverload]:
    """Return torch's overloads that write arguments and have their own CPU kernel."""
    result = []
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        if not name.startswith("aten::") or not torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU"):
            continue
        base, _, overload = name.removeprefix("aten::").partition(".")
        op = getattr(getattr(torch.ops.aten, base), overload or "default")
        if base not in CRASHING and any(is_written(argument) for argument in op._schema.arguments):
            result.append(op)
    return result


def examples_of(op: torch._ops.OpOverload, recorder: Recorder) -> Iterator[Example]:
    """Yield accepted calls of an overload, built from recorded calls of it or of its functional form."""
    name = op._schema.name.removeprefix("aten::")
    count = 0
    for source in dict.fromkeys([name, name.removesuffix("_")]):
        for recorded, values in recorder.calls.get(source, []):
            example = make_example(op, recorded, values)
            if example is not None:
                yield example
                count += 1
            if count == EXAMPLES:
                return


def make_example(op: torch._ops.OpOverload, recorded: torch._ops.OpOverload, named: dict[str, Any]) -> Example | None:
    values: list[Any] = []
    missing = []
    for index, argument in enumerate(op._schema.arguments):
        if argument.name in named:
            values.append(named[argument.name])
        elif argument.has_default_value():
            values.append(argument.default_value)
        elif argument.is_out or is_written(argument):
            missing.append(index)
            values.append(None)
        else:
            return None
    try:
        if missing:
            with quiet():
                results = recorded(**{k: copied(v) for k, v in named.items()})
            outs = list(results) if isinstance(results, (tuple, list)) else [results]
            for index, out in zip(missing, outs, strict=True):
                values[index] = tree_map(lambda leaf: leaf.clone(memory_format=torch.contiguous_format), out)
        example = Example(op, tuple(values))
        with quiet():
            example.run(tree_map(copied, example.values))
    except Exception:  # the overload takes other arguments than its functional form
        return None
    return example if any(big_enough(values[i]) for i in example.written) else None


def big_enough(tensor: Any) -> bool:
    return tensor.layout == torch.strided and tensor.numel() > 1


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        yield


def probes_of(example: Example) -> Iterator[Probe]:
    """Yield the possible overlaps of an example's arguments."""
    for written in example.written:
        out = example.values[written]
        if not big_enough(out):
            continue
        yield Probe(written, -1, "internal")
        for read, value in enumerate(example.values):
            tensor = first_tensor(value)
            if read == written or tensor is None or tensor.layout != torch.strided or tensor.numel() < 2:
                continue
            yield Probe(written, read, "partial")
            if tensor.shape == out.shape and tensor.itemsize == out.itemsize:
                yield Probe(written, read, "full")


def first_tensor(value: Any) -> torch.Tensor | None:
    if isinstance(value, (list, tuple)):
        return next((element for element in value if isinstance(element, torch.Tensor)), None)
    return value if isinstance(value, torch.Tensor) else None


def overlapping(example: Example, probe: Probe, device: torch.device) -> tuple[Any, ...]:
    """Return the example's arguments on a device, two of them with memory in common."""
    values = [on_device(value, device) for value in example.values]
    out = values[probe.written]
    if probe.how == "internal":
        dim = next(i for i, size in enumerate(out.shape) if size > 1)
        # Memory for all elements, so that a kernel which takes them to be apart stays within it.
        storage = torch.zeros(out.nbytes, dtype=torch.uint8, device=device)
        strides = list(torch.empty([*out.shape[:dim], 1, *out.shape[dim + 1 :]], device="meta").stride())
        strides[dim] = 0
        shared = torch.empty(0, dtype=out.dtype, device=device)
        values[probe.written] = shared.set_(storage.untyped_storage(), 0, out.shape, strides)
        return tuple(values)
    tensor = first_tensor(values[probe.other])
    assert tensor is not None
    offset = 0 if probe.how == "full" else shift(tensor, out)
    storage = torch.zeros(max(tensor.nbytes, offset * out.itemsize + out.nbytes) + 16, dtype=torch.uint8, device=device)
    shared = dense_in(storage, tensor, 0)
    shared.copy_(tensor)
    values[probe.written] = dense_in(storage, out, offset)
    if isinstance(values[probe.other], (list, tuple)):
        values[probe.other] = [shared if element is tensor else element for element in values[probe.other]]
    else:
        values[probe.other] = shared
    return tuple(values)


def on_device(value: Any, device: torch.device) -> Any:
    return tree_map(lambda leaf: leaf.detach().clone().to(device) if isinstance(leaf, torch.Tensor) else leaf, value)


def shift(tensor: torch.Tensor, out: torch.Tensor) -> int:
    """Return the offset of `out`, in its elements, at which the last bytes of `tensor` are the first of `out`."""
    return max((tensor.nbytes - 1) // out.itemsize, 0) or (1 if tensor.nbytes > out.itemsize else 0)


def dense_in(storage: torch.Tensor, like: torch.Tensor, offset: int) -> torch.Tensor:
    result = torch.empty(0, dtype=like.dtype, device=storage.device)
    return result.set_(storage.untyped_storage(), offset, like.shape, torch.empty(like.shape, device="meta").stride())


def outcome(call: Callable[[], Any]) -> Outcome:
    try:
        with quiet():
            call()
    except Exception as error:
        return "refused" if INTERNAL in str(error) or BETWEEN in str(error) else "failed"
    return "accepted"


def writes_outside(arguments: tuple[Any, ...], probe: Probe) -> bool:
    """Return whether a kernel ignored the overlap of a tensor's elements, and wrote outside of them."""
    out = arguments[probe.written]
    span = 1 + sum((size - 1) * stride for size, stride in zip(out.shape, out.stride(), strict=True))
    bytes_of_storage = torch.empty(0, dtype=torch.uint8, device=out.device).set_(out.untyped_storage())
    return bool(bytes_of_storage[span * out.itemsize :].any())


def refusals_of(op: torch._ops.OpOverload, recorder: Recorder) -> dict[Probe, bool]:
    """Find the overlaps that the CPU's kernel always refuses, or accepts by corrupting memory."""
    outcomes: dict[Probe, set[bool]] = defaultdict(set)
    for example in examples_of(op, recorder):
        for probe in probes_of(example):
            arguments = overlapping(example, probe, torch.device("cpu"))
            came = outcome(lambda example=example, arguments=arguments: example.run(arguments))
            if came != "failed":
                corrupts = came == "accepted" and probe.how == "internal" and writes_outside(arguments, probe)
                outcomes[probe].add(came == "refused" or corrupts)
    return {probe: refused == {True} for probe, refused in outcomes.items()}


def patterns_of(op: torch._ops.OpOverload, refusals: dict[Probe, bool]) -> list[str]:
    """Return a pattern for each written argument that may not overlap in some way: a letter for each argument.

    W: the written argument, if its elements may not share memory; w: if they may. Of the others, f may not overlap it
    at all, p not partially.
    """
    patterns = []
    for written in sorted({probe.written for probe in refusals}):
        letters = ["."] * len(op._schema.arguments)
        letters[written] = "W" if refusals.get(Probe(written, -1, "internal")) else "w"
        for probe in refusals:
            if probe.written == written and probe.how == "partial" and refusals[probe]:
                letters[probe.other] = "f" if refusals.get(Probe(written, probe.other, "full")) else "p"
        if set(letters) - {".", "w"}:
            patterns.append("".join(letters))
    return patterns
