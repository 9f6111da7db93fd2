# SPDX-License-Identifier: BSD-3-Clause
"""Proves, on the CPU, that an operator's `out=` kernel may stand in for the functional one.

The core then lets that kernel write its result directly. Otherwise the functional kernel runs and its result is copied.
The proof covers each call of a functional operator by the entries of torch's operator database, forward and backward.
Its tensors are laid out in five ways:

* into a fresh output, with the strides of the functional result or of the meta kernel, the bits must be the same;
* into an output of any other strides the values must be the same, except for the order of roundings;
* all elements of the output are written, and nothing beside them; the output keeps its shape, strides and storage.

`scripts/out_forms` lists the operators that satisfy all of these in csrc/ops/operator/_generated/out_forms.inc.
"""

from __future__ import annotations

import re
import warnings
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from torch_outboard.testing.database.compare import value_difference

LIST = Path(__file__).resolve().parent.parent.parent / "csrc" / "ops" / "operator" / "_generated" / "out_forms.inc"
ROW = re.compile(r'^OUT_FORM\("(?P<op>[^"]+)", "(?P<out>[^"]+)"\)  // (?P<entries>.*)$', re.M)

Rearrange = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Pair:
    """A functional operator and the `out=` overload of the same arguments."""

    functional: torch._ops.OpOverload
    out: torch._ops.OpOverload
    out_names: tuple[str, ...]


def schema_name(op: torch._ops.OpOverload) -> str:
    """Return "aten::add.Tensor", or "aten::relu" for an overload without a name."""
    name = op._schema.name
    return f"{name}.{op._schema.overload_name}" if op._schema.overload_name else name


def _has_cpu_kernel(op: torch._ops.OpOverload) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CPU")


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _is_out_form(functional: torch._C.FunctionSchema, out: torch._C.FunctionSchema) -> bool:
    inputs, arguments = functional.arguments, out.arguments
    if len(arguments) != len(inputs) + len(functional.returns) or len(out.returns) != len(functional.returns):
        return False
    if any(str(r.type) != "Tensor" or r.alias_info is not None for r in functional.returns):
        return False
    same = all(
        a.name == b.name and str(a.type) == str(b.type) and not _is_written(a) and not _is_written(b)
        for a, b in zip(inputs, arguments, strict=False)
    )
    return same and all(_is_written(a) and str(a.type) == "Tensor" for a in arguments[len(inputs) :])


# Proven on some versions of torch; on others that are supported the out= kernel is wrong.
WRONG_ELSEWHERE = frozenset({"aten::_scaled_mm"})  # 2.11 writes beside outputs that are cropped


@cache
def candidates() -> dict[str, Pair]:
    """Return, by name, the functional operators whose forms both have a CPU kernel."""
    overloads = defaultdict(list)
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith("aten::"):
            base, _, overload = name.removeprefix("aten::").partition(".")
            op = getattr(getattr(torch.ops.aten, base, None), overload or "default", None)
            if op is not None and _has_cpu_kernel(op):
                overloads[base].append(op)
    pairs = {}
    for ops in overloads.values():
        for functional in ops:
            for out in ops:
                if functional is not out and functional._schema.returns:
                    inputs = len(functional._schema.arguments)
                    is_out_form = _is_out_form(functional._schema, out._schema)
                    if is_out_form and schema_name(functional) not in WRONG_ELSEWHERE:
                        names = tuple(a.name for a in out._schema.arguments[inputs:])
                        pairs[schema_name(functional)] = Pair(functional, out, names)
    return pairs


# ---- Layouts of inputs and outputs: the same shape, values and type in other memory
# --------------------------------


def _filled(view: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return view.copy_(like) if not like.is_conj() and not like.is_neg() else view.copy_(like.resolve_conj())


def transposed(tensor: torch.Tensor) -> torch.Tensor:
    base = torch.empty(tensor.shape[::-1], dtype=tensor.dtype)
    return _filled(base.permute(list(reversed(range(tensor.dim())))), tensor)


def cropped(tensor: torch.Tensor) -> torch.Tensor:
    base = torch.empty([size + 2 for size in tensor.shape], dtype=tensor.dtype)
    for dim, size in enumerate(tensor.shape):
        base = base.narrow(dim, 1, size)
    return _filled(base, tensor)


def stepped(tensor: torch.Tensor) -> torch.Tensor:
    base = torch.empty([size * 2 for size in tensor.shape], dtype=tensor.dtype)
    return _filled(base[tuple(slice(None, None, 2) for _ in tensor.shape)], tensor)


def expanded(tensor: torch.Tensor) -> torch.Tensor:
    """Repeat the first row, which changes the values; the functional form gets the same tensor."""
    if tensor.dim() == 0 or tensor.shape[0] < 2:
        return tensor
    return tensor.narrow(0, 0, 1).clone().expand(tensor.shape)


def untouched(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


INPUT_LAYOUTS: tuple[Rearrange, ...] = (untouched, transposed, cropped, stepped, expanded)
OUTPUT_LAYOUTS: tuple[Rearrange, ...] = (transposed, cropped, stepped)


def poisoned(tensor: torch.Tensor) -> torch.Tensor:
    """Fill the tensor's whole storage with a byte that no result consists of, and return the tensor."""
    whole = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    whole.fill_(0x01 if tensor.dtype == torch.bool else 0xA5)
    return tensor


def beside(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor's storage outside the tensor."""
    whole = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).clone()
    view = torch.empty(0, dtype=tensor.dtype).set_(
        whole.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride()
    )
    view.zero_()
    return whole


# ---- The proof of one call
# -----------------------------------------------------------------------------------------


@dataclass
class Verdict:
    """The state of one operator's proof."""

    calls: Counter[torch.dtype] = field(default_factory=Counter)
    compared: int = 0
    failure: str | None = None
    entries: dict[str, None] = field(default_factory=dict)  # in the order in which they called it

    @property
    def is_proven(self) -> bool:
        return self.failure is None and self.compared > 0


def _close(ours: torch.Tensor, theirs: torch.Tensor) -> str | None:
    """Return a difference of the values that another order of roundings does not explain, or None."""
    if not (ours.is_floating_point() or ours.is_complex()):
        return value_difference(ours, theirs, None)
    a, b = ours.to(torch.complex128), theirs.to(torch.complex128)
    finite = b.abs().nan_to_num(0, 0, 0)
    allowed = 256 * torch.finfo(ours.dtype).eps * (finite.max().item() if finite.numel() else 0)
    if torch.allclose(a, b, rtol=256 * torch.finfo(ours.dtype).eps, atol=allowed, equal_nan=True):
        return None
    return value_difference(ours, theirs, None) or "values differ"


def _run(op: torch._ops.OpOverload, args: Any, kwargs: Any) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(7)
    result = op(*args, **kwargs)
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def _meta_results(pair: Pair, args: Any, kwargs: Any) -> tuple[torch.Tensor, ...] | None:
    def meta(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
        return torch.device("meta") if isinstance(value, torch.device) else value

    try:
        return _run(pair.functional, *tree_map(meta, (args, kwargs)))
    except Exception:  # without a meta kernel the caller waits, and nothing stands in
        return None


def _fresh_outputs(pair: Pair, args: Any, kwargs: Any, results: tuple[torch.Tensor, ...]) -> Iterator[list[Any]]:
    """Yield outputs with the functional result's strides, and with the meta kernel's if they differ."""

    def laid_out(likes: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
        return [
            torch.empty_strided(r.shape, like.stride(), dtype=r.dtype) for r, like in zip(results, likes, strict=True)
        ]

    yield laid_out(results)
    metas = _meta_results(pair, args, kwargs)
    if metas is not None and len(metas) == len(results):
        agree = all(m.shape == r.shape and m.dtype == r.dtype for m, r in zip(metas, results, strict=True))
        if agree and any(m.stride() != r.stride() for m, r in zip(metas, results, strict=True)):
            yield laid_out(metas)


def _difference(
    pair: Pair, args: Any, kwargs: Any, outputs: list[torch.Tensor], results: tuple[torch.Tensor, ...], exact: bool
) -> str | None:
    """Return an error in the `out=` kernel's work in these outputs, or None."""
    outputs = [poisoned(output) for output in outputs]
    before = [(o.shape, o.stride(), o.data_ptr(), o.untyped_storage().nbytes()) for o in outputs]
    around = [beside(output) for output in outputs]
    try:
        _run(pair.out, args, {**kwargs, **dict(zip(pair.out_names, outputs, strict=True))})
    except Exception as error:  # whatever it is, the functional form did not raise it
        return f"{type(error).__name__}: {str(error)[:200]}"
    for output, result, then, bytes_then in zip(outputs, results, before, around, strict=True):
        if (output.shape, output.stride(), output.data_ptr(), output.untyped_storage().nbytes()) != then:
            return "the output is resized or moved"
        if not torch.equal(beside(output), bytes_then):
            return "memory beside the output is written"
        if output.is_conj() or output.is_neg():
            return "the output is left conjugated or negated lazily"
        text = value_difference(output, result, None) if exact else _close(output, result)
        if text is not None:
            return text
    return None


def prove_call(pair: Pair, args: Any, kwargs: Any) -> tuple[int, str | None]:
    """Return the number of comparisons of one call, and the first difference found."""
    compared = 0
    for layout in INPUT_LAYOUTS:
        these_args, these_kwargs = _laid_out((args, kwargs), layout)
        try:
            results = _run(pair.functional, these_args, these_kwargs)
        except Exception:  # some values are refused, such as a repeated row where a matrix must be invertible
            continue
        if any(not isinstance(r, torch.Tensor) or r.layout != torch.strided or r.is_quantized for r in results):
            return compared, "a result is not a strided tensor"
        if any(r.is_conj() or r.is_neg() for r in results):
            return compared, "a result is conjugated or negated lazily"
        ways = [("fresh", True, o) for o in _fresh_outputs(pair, these_args, these_kwargs, results)]
        ways += [(w.__name__, False, [w(torch.empty_like(r)) for r in results]) for w in OUTPUT_LAYOUTS]
        for way, exact, outputs in ways:
            text = _difference(pair, these_args, these_kwargs, outputs, results, exact)
            compared += 1
            if text is not None:
                return compared, f"{layout.__name__} inputs, {way} output: {text}"
    return compared, None


def _laid_out(arguments: Any, layout: Rearrange) -> Any:
    def place(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.layout == torch.strided and value.dim() > 0:
            return layout(value.detach())
        return value

    return tree_map(place, arguments)


# ---- Every call that the operator database makes
# -------------------------------------------------------------------


class Prover(TorchDispatchMode):
    """A mode that proves each call of the given operators, up to `limit` calls of an operator and element type."""

    def __init__(self, pairs: dict[str, Pair], limit: int, report: Callable[[str], None] = lambda name: None) -> None:
        super().__init__()
        self.pairs = pairs
        self.limit = limit
        self.report = report  # the operator whose proof begins: it may end the process
        self.verdicts: dict[str, Verdict] = defaultdict(Verdict)
        self.entry = ""
        self.seen: set[Any] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        pair = self.pairs.get(schema_name(func))
        if pair is not None:
            self._prove(schema_name(func), pair, args, kwargs)
        return func(*args, **kwargs)

    def _prove(self, name: str, pair: Pair, args: Any, kwargs: Any) -> None:
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if any(t.layout != torch.strided or t.is_quantized or t.device.type != "cpu" for t in tensors):
            return
        verdict = self.verdicts[name]
        verdict.entries[self.entry] = None
        dtype = tensors[0].dtype if tensors else torch.float32
        others = [str(leaf) for leaf in tree_leaves((args, kwargs)) if not isinstance(leaf, torch.Tensor)]
        key = (name, tuple((t.dtype, t.shape, t.stride()) for t in tensors), tuple(others))
        if verdict.failure is not None or verdict.calls[dtype] >= self.limit or key in self.seen:
            return
        self.seen.add(key)
        verdict.calls[dtype] += 1
        self.report(name)
        try:
            compared, failure = prove_call(pair, args, kwargs)
        except Exception as error:  # it would count as the entry's own, which is passed over
            compared, failure = 0, f"the proof failed: {type(error).__name__}: {error}"
        verdict.compared += compared
        if failure is not None:
            shapes = ", ".join(f"{str(t.dtype)[6:]}{list(t.shape)}" for t in tensors)
            verdict.failure = f"{self.entry}, {shapes}: {failure}"


def _backward(output: Any) -> None:
    leaves = [
        leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor) and leaf.requires_grad and leaf.numel()
    ]
    if leaves:
        torch.autograd.backward(leaves, [torch.randn_like(leaf) for leaf in leaves])


def run_entry(prover: Prover, info: OpInfo, dtype: torch.dtype, samples: int) -> None:
    """Run an entry's first samples under the prover, forward and backward."""
    has_gradients = info.supports_autograd and dtype in info.supported_backward_dtypes("cpu")
    prover.entry = info.full_name
    torch.manual_seed(zlib.crc32(info.full_name.encode()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for index, sample in enumerate(info.sample_inputs("cpu", dtype, requires_grad=has_gradients)):
            if index >= samples:
                break
            _run_sample(prover, info, sample, has_gradients)


def _run_sample(prover: Prover, info: OpInfo, sample: SampleInput, has_gradients: bool) -> None:
    try:
        with prover:
            output = info(sample.input, *sample.args, **sample.kwargs)
            if has_gradients:
                _backward(sample.output_process_fn_grad(output))
    except Exception:  # the entry's own business: the operators that it called are proven
        return


def entries_by_name() -> dict[str, OpInfo]:
    return {info.full_name: info for info in op_db}


# ---- The list
# ------------------------------------------------------------------------------------------------------

HEADER = """\
// SPDX-License-Identifier: BSD-3-Clause
// Made by scripts/out_forms; not edited by hand. OUT_FORM(functional operator, its out= overload), sorted by name:
// pairs whose out= kernel was proven on the CPU to do what the functional one does, with the entries of torch's
// operator database that call it. The proof is in tests/operators/out_forms.py, and test_out_forms.py repeats it.
"""


def read_list(text: str | None = None) -> dict[str, tuple[str, list[str]]]:
    """Return the listed operators: their out= overload and the entries that call them."""
    rows = ROW.finditer(LIST.read_text(encoding="utf-8") if text is None else text)
    return {row["op"]: (row["out"], row["entries"].split(", ")) for row in rows}


def render_list(verdicts: dict[str, Verdict]) -> str:
    """Return the list's text: the proven operators, each with the first entries that call it."""
    pairs = candidates()
    rows = [
        f'OUT_FORM("{name}", "{schema_name(pairs[name].out)}")  // {", ".join(list(verdict.entries)[:3])}\n'
        for name, verdict in sorted(verdicts.items())
        if verdict.is_proven
    ]
    return HEADER + "".join(rows)
