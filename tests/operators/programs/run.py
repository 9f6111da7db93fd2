# SPDX-License-Identifier: BSD-3-Clause
"""A program, drawn from a seed and run on a device: its tensors, and how they differ from the CPU's."""

from __future__ import annotations

import random
import warnings
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from torch_outboard.testing.database.compare import sharing, stride_difference, value_difference

from . import steps
from .steps import DIFFERENTIABLE, DTYPES, FUNCTIONS, IN_PLACE, VIEWS, Kind, Step

CPU = torch.device("cpu")
MAX_ELEMENTS = 4096
MAX_TENSORS = 24

_NEW = Kind("new", 0, steps.made)


@dataclass
class Bounds:
    """How far values of other kernels than the CPU's may differ."""

    def of(self, dtype: torch.dtype) -> tuple[float, float]:
        return (2e-2, 1e-2) if dtype == torch.bfloat16 else (1e-3, 1e-4)


@dataclass
class Machine:
    """The tensors of a running program on one device, by the number of the step that made each."""

    device: torch.device
    tensors: dict[int, torch.Tensor] = field(default_factory=dict)

    def run(self, number: int, step: Step) -> BaseException | None:
        """Run a step, and wait. Return its exception."""
        operands = [self.tensors[place] for place in step.places]
        try:
            result = _call(step, operands, self.device)
            if self.device.type != "cpu":
                torch.accelerator.synchronize(self.device)
        except Exception as error:  # it is compared
            return error
        if isinstance(result, torch.Tensor) and not step.kind.in_place and result.numel() <= MAX_ELEMENTS:
            self.tensors[number] = result
        return None


def _call(step: Step, operands: list[torch.Tensor], device: torch.device) -> Any:
    if step.kind is _NEW:
        seed, shape, dtype, layout = step.numbers
        return _copied(steps.made(seed, shape, dtype, layout), device)
    if step.kind.name == "gradient":
        return _gradient(operands, *step.numbers)
    return step.kind.function(*operands, *step.numbers)


def _copied(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return the tensor with its whole storage on a device."""
    storage = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).to(device, copy=True).untyped_storage()
    result = torch.empty(0, dtype=tensor.dtype, device=device)
    return result.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())


def _gradient(args: list[torch.Tensor], names: tuple[str, ...], dims: tuple[int, ...], compiled: bool) -> torch.Tensor:
    """Return the gradient of a chain of functions with respect to the first tensor."""
    kinds = {kind.name: kind for kind in DIFFERENTIABLE}

    def chain(leaf: torch.Tensor, others: list[torch.Tensor]) -> torch.Tensor:
        value = leaf
        for name, dim in zip(names, dims, strict=True):
            kind = kinds[name]
            arguments = [value, *(others[: kind.count - 1])]
            value = kind.function(*arguments, *((dim,) if kind.draw is not steps.nothing else ()))
        return value

    leaf = args[0].detach().requires_grad_()
    others = [tensor.detach() for tensor in args[1:]]
    if compiled:
        torch._dynamo.reset()  # each program has other functions, of which one code object keeps a few
    function = torch.compile(chain, dynamic=False) if compiled else chain
    result = function(leaf, others)
    weights = torch.arange(result.numel(), device=leaf.device).reshape(result.shape) % 5 + 1
    return torch.autograd.grad((result * weights).sum(), leaf)[0]


def drawn(seed: int, length: int, compiled: float) -> list[Step]:
    """Draw a program. It runs on the CPU meanwhile, so that steps fit the tensors that are there."""
    generator = random.Random(seed)
    machine, program = Machine(CPU), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(length):
            step = _drawn_step(generator, machine, compiled)
            program.append(step)
            machine.run(number, step)
            if len(machine.tensors) > MAX_TENSORS:
                machine.tensors.pop(generator.choice(list(machine.tensors)))
    return program


def _drawn_step(generator: random.Random, machine: Machine, compiled: float) -> Step:
    live = list(machine.tensors)
    if len(live) < 3 or generator.random() < 0.1:
        layout = generator.choice(("plain", "transposed", "gaps", "last", "offset"))
        numbers = generator.randrange(1 << 20), steps.shape_of(generator), generator.choice(DTYPES), layout
        return Step(_NEW, (), numbers)
    chance = generator.random()
    floats = [place for place in live if machine.tensors[place].dtype == torch.float32]
    if chance < 0.08 and len(floats) > 2:
        names = [generator.choice(DIFFERENTIABLE) for _ in range(generator.randint(1, 3))]
        places = tuple(generator.choice(floats) for _ in range(3))
        dims = tuple(generator.choice((0, -1)) for _ in names)
        kind = Kind("gradient", 3, _gradient)
        return Step(kind, places, (tuple(function.name for function in names), dims, generator.random() < compiled))
    kind = generator.choice(VIEWS if chance < 0.35 else IN_PLACE if chance < 0.6 else FUNCTIONS)
    places = tuple(generator.choice(live[-8:] if generator.random() < 0.7 else live) for _ in range(kind.count))
    return Step(kind, places, kind.draw(generator, [machine.tensors[place] for place in places]))


def difference(program: list[Step], device: torch.device, is_exact: bool) -> tuple[int, str] | None:
    """Return the number of the first step after which the device differs from the CPU, and how; None if none does."""
    ours, theirs = Machine(device), Machine(CPU)
    for number, step in enumerate(program):
        if any(place not in theirs.tensors or place not in ours.tensors for place in step.places):
            continue
        written = step.places[:1] if step.kind.in_place else ()
        before = (
            [theirs.tensors[place]._version for place in written],
            [ours.tensors[place]._version for place in written],
        )
        expected, result = theirs.run(number, step), ours.run(number, step)
        if type(expected) is not type(result) and not _is_allowed(expected, result):
            return number, f"raises {_text(result)}, the CPU {_text(expected)}"
        if expected is not None:
            _forget_partly_written(ours, theirs, written)
        if (text := _compare(ours, theirs, number, written, is_exact)) is not None:
            return number, text
        grown = [
            machine.tensors[place]._version - was
            for machine, versions in ((theirs, before[0]), (ours, before[1]))
            for place, was in zip(written, versions, strict=True)
            if place in machine.tensors
        ]
        if expected is None and len(set(grown)) > 1:
            return number, f"the version grows by {grown[1]}, on the CPU by {grown[0]}"
        if not is_exact:
            _resynchronise(ours, theirs)
    return None


def _is_allowed(expected: BaseException | None, ours: BaseException | None) -> bool:
    # Divisions by zero and indices are other exceptions of generated kernels.
    kinds = (IndexError, RuntimeError)
    return isinstance(expected, kinds) and isinstance(ours, kinds)


def _text(error: BaseException | None) -> str:
    return "nothing" if error is None else f"{type(error).__name__}: {str(error)[:300]}"


def _forget_partly_written(ours: Machine, theirs: Machine, written: tuple[int, ...]) -> None:
    """Drop the tensors that a failed call may have written in part, and all that share their memory."""
    for place in written:
        storages = {machine.tensors[place].untyped_storage().data_ptr() for machine in (theirs,)}
        sharing_it = [key for key, tensor in theirs.tensors.items() if tensor.untyped_storage().data_ptr() in storages]
        for key in sharing_it:
            theirs.tensors.pop(key, None)
            ours.tensors.pop(key, None)


def _compare(ours: Machine, theirs: Machine, number: int, written: tuple[int, ...], is_exact: bool) -> str | None:
    if ours.tensors.keys() != theirs.tensors.keys():
        return "another number of tensors"
    places = [*written, *([number] if number in ours.tensors else [])]
    for place in places:
        if place not in ours.tensors:
            continue
        tensor, reference = ours.tensors[place], theirs.tensors[place]
        for name in ("shape", "dtype", "requires_grad"):
            if getattr(tensor, name) != getattr(reference, name):
                return f"t{place}: {name} is {getattr(tensor, name)}, the CPU's is {getattr(reference, name)}"
        if (text := stride_difference(tensor, reference)) is not None and _lie_apart(tensor, reference):
            return f"t{place}: {text}"
    values = list(ours.tensors)
    if sharing([ours.tensors[place] for place in values]) != sharing([theirs.tensors[place] for place in values]):
        return "other tensors share memory"
    for place in places:
        if place in ours.tensors:
            text = _storages_differ(ours.tensors[place], theirs.tensors[place], is_exact)
            if text is not None:
                return f"t{place}: {text}"
    return None


def _lie_apart(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Return whether elements lie in other places: strides of dimensions of size 1 have no meaning."""
    if ours.storage_offset() != theirs.storage_offset():
        return True
    strides = zip(ours.shape, ours.stride(), theirs.stride(), strict=True)
    return any(size > 1 and a != b for size, a, b in strides)


def _storages_differ(ours: torch.Tensor, theirs: torch.Tensor, is_exact: bool) -> str | None:
    """Compare the values, and what lies around them in the storage."""
    bounds = None if is_exact else Bounds()
    text = value_difference(ours.detach().cpu(), theirs.detach(), bounds)
    size = min(ours.untyped_storage().nbytes(), theirs.untyped_storage().nbytes()) // theirs.element_size()
    if text is not None or size == 0:
        return text
    whole = [tensor.detach().as_strided((size,), (1,), 0).cpu() for tensor in (ours, theirs)]
    text = value_difference(whole[0], whole[1], bounds)
    return None if text is None else f"around it: {text}"


def _resynchronise(ours: Machine, theirs: Machine) -> None:
    """Give the device the CPU's values, so that small differences do not grow. It changes no version."""
    seen = set()
    for place, tensor in theirs.tensors.items():
        storage = tensor.untyped_storage()
        if storage.data_ptr() in seen or storage.nbytes() == 0:
            continue
        seen.add(storage.data_ptr())
        whole = torch.empty(0, dtype=torch.uint8).set_(storage)
        own_storage = ours.tensors[place].untyped_storage()
        if own_storage.nbytes() >= storage.nbytes():
            here = torch.empty(0, dtype=torch.uint8, device=ours.device)
            here.set_(own_storage, 0, (storage.nbytes(),)).copy_(whole)


def minimised(program: list[Step], device: torch.device, is_exact: bool) -> list[Step]:
    """Remove the steps that a difference does not need. A removed step becomes one that does nothing."""
    last = difference(program, device, is_exact)
    assert last is not None
    program = program[: last[0] + 1]
    for number in reversed(range(len(program) - 1)):
        fewer = [*program]
        fewer[number] = replace(program[number], places=(-1,))  # a place that no tensor has
        if difference(fewer, device, is_exact) is not None:
            program = fewer
    return program


def text(program: list[Step]) -> str:
    kept = [(number, step) for number, step in enumerate(program) if -1 not in step.places]
    return "\n".join(f"  t{number} = {step}" for number, step in kept)
