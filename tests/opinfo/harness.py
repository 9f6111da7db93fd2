# SPDX-License-Identifier: BSD-3-Clause
"""Runs one entry of the operator database on a device and on the CPU, and says what differs."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch.testing._internal import common_methods_invocations
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import torch_outboard

from .compare import metadata_difference, value_difference
from .lists import NO_MEAN, OTHER_KERNELS, RANDOM, TOLERANCES, UNCOUNTED_OPERATORS, UNINITIALISED
from .samples import Call, Copier, dtype_name, samples_of

CPU = torch.device("cpu")
SEEDS = (11, 12)
MEAN_SEEDS = tuple(range(40, 56))


@dataclass(frozen=True)
class Failure:
    """One thing that differed: its kind, where, and the details."""

    kind: str
    sample: int
    message: str

    def __str__(self) -> str:
        return f"sample {self.sample}: {self.kind}: {self.message}"


@dataclass
class Report:
    """What came of one entry with one element type."""

    samples: int = 0
    compared: int = 0
    counted: int = 0
    gradients: int = 0
    failures: list[Failure] = field(default_factory=list)
    # Results whose strides differ from the CPU's: told, but no failure.
    strides: list[str] = field(default_factory=list)


class Outcome:
    """The result of one call: the tensors or the exception, and which providers ran how many calls for it."""

    def __init__(self, run: Callable[[], Any], device: torch.device) -> None:
        self._device = device
        self.error: Exception | None = None
        self.value: Any = None
        before = Counter() if device.type == "cpu" else calls_by_operator()
        try:
            self.value = run()
            if device.type != "cpu":
                torch.accelerator.synchronize(device)
        except Exception as error:  # whatever it is becomes part of the comparison
            self.error = error
        self.calls = Counter() if device.type == "cpu" else calls_by_operator() - before
        self.tensors = [leaf for leaf in tree_leaves(self.value) if isinstance(leaf, torch.Tensor)]
        self.others = [leaf for leaf in tree_leaves(self.value) if not isinstance(leaf, torch.Tensor)]

    @property
    def fallback(self) -> list[str]:
        """The operators that went through the copy fallback, on a device whose memory the host reaches."""
        copied = sorted(op for provider, op in self.calls if provider == "fallback")
        return copied if copied and reaches_memory(self._device) else []

    @property
    def is_exact(self) -> bool:
        """Says whether only the CPU's own kernels ran, on memory laid out as the CPU's: results agree bit for bit."""
        return all(provider == "host" for provider, _ in self.calls)

    def describe_error(self) -> str:
        return f"{type(self.error).__name__}: {str(self.error).strip()[:600]}"


class OperatorNames(TorchDispatchMode):
    """Notes the operators that run below autograd, but for views."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view:
            self.names.add(func._schema.name)
        return func(*args, **(kwargs or {}))


def calls_by_operator() -> Counter[tuple[str, str]]:
    """Gives how many calls of each operator each provider has run so far."""
    return Counter({(row.provider, row.op): row.calls for row in torch_outboard.coverage()})


@functools.cache
def reaches_memory(device: torch.device) -> bool:
    """Says whether the host reaches the device's memory: else all that the driver has no kernel for runs on copies."""
    x = torch.ones(2, device=device)
    before = calls_by_operator()
    x.lgamma()
    return ("fallback", "aten::lgamma") not in calls_by_operator() - before


def poison(device: torch.device) -> None:
    """Leaves 0xFF in the cached memory that small results will get, so that no stale result can look right."""
    torch.full((1 << 20,), 0xFF, dtype=torch.uint8, device=device)


def same_values(ours: Outcome, theirs: Outcome) -> bool:
    pairs = zip(ours.tensors, theirs.tensors, strict=True)
    return all(value_difference(a.detach().cpu(), b.detach().cpu(), None) is None for a, b in pairs)


@contextlib.contextmanager
def seeds_free() -> Iterator[None]:
    """Lets seeds count: the database wraps its random operators so that each call starts from seed 42."""

    def call(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return op(*args, **kwargs)

    with mock.patch.object(common_methods_invocations, "wrapper_set_seed", call):
        yield


class EntryCheck:
    """Checks one entry with one element type, sample by sample."""

    def __init__(self, info: OpInfo, dtype: torch.dtype, device: torch.device) -> None:
        self.info = info
        self.dtype = dtype
        self.device = device
        self.name = info.full_name
        self.report = Report()
        self.tolerance = TOLERANCES.get(self.name)
        self.has_gradients = info.supports_autograd and dtype in info.supported_backward_dtypes("cpu")
        self._index = 0

    def run(self) -> Report:
        torch.get_device_module(self.device).empty_cache()
        with seeds_free(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            samples = samples_of(self.info, self.dtype, self.has_gradients)
            for self._index, sample in enumerate(samples):
                self._check(sample)
        self.report.samples = len(samples)
        if not self.report.compared and not self.report.failures:
            self._fail("no sample", f"none of {len(samples)} samples gave a result on both devices")
        return self.report

    def _fail(self, kind: str, message: str) -> None:
        self.report.failures.append(Failure(kind, self._index, message))

    def _call(self, sample: SampleInput, device: torch.device, seed: int) -> tuple[Call | None, Outcome]:
        """Runs one sample; without a call if its arguments could not even be copied to the device."""
        try:
            call = Call(self.info, sample, device)
            if device.type != "cpu":
                poison(device)
                torch.accelerator.synchronize(device)
        except Exception as error:  # an entry that cannot be set up fails, and the run goes on
            self._fail("exception in the set-up", f"{type(error).__name__}: {str(error)[:600]}")
            return None, Outcome(lambda: None, CPU)
        torch.manual_seed(seed)
        return call, Outcome(call.forward, device)

    def _check(self, sample: SampleInput) -> None:
        reference_call, reference = self._call(sample, CPU, SEEDS[0])
        call, ours = self._call(sample, self.device, SEEDS[0])
        if call is None or reference_call is None:
            return
        if ours.fallback:
            self._fail("copy fallback", ", ".join(ours.fallback))
        if reference.error is not None or ours.error is not None:
            self._check_errors(ours, reference)
            return
        self.report.compared += 1
        if ours.calls:
            self.report.counted += 1
        elif reaches_memory(self.device) and (missing := self._operators_that_count(sample)):
            self._fail("not run by the device", f"no provider counted a call, the CPU ran {', '.join(missing)}")
        if self.name in RANDOM and self._depends_on_seed(sample, reference):
            self._check_random(sample, ours, reference)
            if self.has_gradients:
                self._check_random_gradients(sample)
            return
        self._compare("", ours, reference)
        if self.has_gradients:
            self._check_gradients(call, ours, reference_call, reference)

    def _operators_that_count(self, sample: SampleInput) -> list[str]:
        """Gives the operators of a sample, run once more on the CPU, that a provider must run."""
        call = Call(self.info, sample, CPU)
        with OperatorNames() as seen:
            call.forward()
        return sorted(seen.names - UNCOUNTED_OPERATORS)

    def _check_errors(self, ours: Outcome, reference: Outcome) -> None:
        if reference.error is None:
            self._fail("exception", ours.describe_error())
        elif ours.error is None:
            self._fail("no exception", f"the CPU raises {reference.describe_error()}")
        elif type(ours.error) is not type(reference.error):
            self._fail("other exception", f"{ours.describe_error()}; the CPU raises {reference.describe_error()}")

    def _compare(self, prefix: str, ours: Outcome, reference: Outcome, values: bool = True) -> None:
        """Compares results with the CPU's; `prefix` is put before the kind of a failure."""
        if len(ours.tensors) != len(reference.tensors):
            self._fail(prefix + "structure", f"{len(ours.tensors)} tensors for {len(reference.tensors)}")
            return
        tolerance = self.tolerance if ours.is_exact else OTHER_KERNELS
        if values and not self._same_others(ours.others, reference.others):
            self._fail(prefix + "values", f"{ours.others!r:.200} for {reference.others!r:.200}")
        for number, (a, b) in enumerate(zip(ours.tensors, reference.tensors, strict=True)):
            if a.device != self.device:
                self._fail(prefix + "wrong device", f"result {number} is on {a.device}")
                continue
            difference = metadata_difference(a, b)
            if difference is not None:
                self._fail(prefix + "metadata", f"result {number}: {difference}")
                continue
            if a.layout == torch.strided and a.stride() != b.stride():
                self.report.strides.append(f"{prefix}result {number}: {a.stride()} for {b.stride()}, {tuple(a.shape)}")
            if not values or self.name in UNINITIALISED:
                continue
            difference = value_difference(a.detach().cpu(), b.detach(), tolerance)
            if difference is not None:
                self._fail(prefix + "values", f"result {number} ({dtype_name(a.dtype)}): {difference}")

    def _same_others(self, ours: list[Any], theirs: list[Any]) -> bool:
        """Compares what is no tensor, by its text: NaN is then equal to NaN, and a device may differ."""
        return repr(ours).replace(str(self.device), "cpu") == repr(theirs)

    def _gradients(self, call: Call, outcome: Outcome) -> Outcome | None:
        """Takes the gradients of every input from fixed gradients of every output; None if there is nothing to take."""
        results = tree_leaves(call.process(outcome.value)) if call.process else outcome.tensors
        results = [
            tensor
            for tensor in results
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad and tensor.layout == torch.strided
        ]
        inputs = [tensor for tensor in call.inputs if tensor.requires_grad]
        if not results or not inputs:
            return None
        generator = torch.Generator().manual_seed(7)
        copy = Copier(call.device)
        try:
            seeds = [copy(torch.randn(tensor.shape, dtype=tensor.dtype, generator=generator)) for tensor in results]
            if call.device.type != "cpu":
                poison(call.device)
        except Exception as error:  # as above
            self._fail("gradient: exception in the set-up", f"{type(error).__name__}: {str(error)[:600]}")
            return None
        return Outcome(lambda: torch.autograd.grad(results, inputs, seeds, allow_unused=True), call.device)

    def _check_gradients(self, call: Call, ours: Outcome, reference_call: Call, reference: Outcome) -> None:
        theirs = self._gradients(reference_call, reference)
        mine = self._gradients(call, ours)
        if theirs is None or mine is None:
            if theirs is not mine:
                self._fail("gradient: structure", "only one of the two has gradients")
            return
        self.report.gradients += 1
        if mine.fallback:
            self._fail("gradient: copy fallback", ", ".join(mine.fallback))
        if theirs.error is not None or mine.error is not None:
            if theirs.error is None:
                self._fail("gradient: exception", mine.describe_error())
            elif mine.error is None:
                self._fail("gradient: no exception", f"the CPU raises {theirs.describe_error()}")
            return
        self._compare("gradient: ", mine, theirs)

    def _depends_on_seed(self, sample: SampleInput, reference: Outcome) -> bool:
        # Few elements of few values may agree by chance, so several seeds are asked.
        others = (self._call(sample, CPU, seed)[1] for seed in (SEEDS[1], *MEAN_SEEDS))
        return not all(same_values(other, reference) for other in others)

    def _check_random(self, sample: SampleInput, ours: Outcome, reference: Outcome) -> None:
        self._compare("", ours, reference, values=False)
        _, again = self._call(sample, self.device, SEEDS[0])
        if again.error is not None:
            self._fail("exception", again.describe_error())
            return
        if not same_values(ours, again):
            self._fail("not reproducible", "the same seed gave other numbers")
        others = (self._call(sample, self.device, seed)[1] for seed in MEAN_SEEDS)
        if all(same_values(ours, other) for other in others):
            self._fail("seed ignored", "every seed gave the same numbers")
        if self.name not in NO_MEAN:
            self._check_mean(sample)

    def _check_mean(self, sample: SampleInput) -> None:
        """Compares the mean over several seeds with the CPU's; six standard errors apart is a failure."""
        pools = []
        for device in (self.device, CPU):
            values = []
            for seed in MEAN_SEEDS:
                _, outcome = self._call(sample, device, seed)
                values += [tensor.detach().cpu().reshape(-1) for tensor in outcome.tensors]
            pool = torch.cat([torch.view_as_real(v).reshape(-1) if v.is_complex() else v for v in values]).double()
            pools.append(pool[pool.isfinite()])
        ours, theirs = pools
        if min(len(ours), len(theirs)) < 100:
            return
        error = (ours.var() / len(ours) + theirs.var() / len(theirs)).sqrt().item()
        distance = abs(ours.mean() - theirs.mean()).item()
        if distance > 6 * error:
            self._fail("distribution", f"mean {ours.mean():.4g}, the CPU's is {theirs.mean():.4g}")

    def _check_random_gradients(self, sample: SampleInput) -> None:
        outcomes = []
        for _ in range(2):
            call, outcome = self._call(sample, self.device, SEEDS[0])
            gradients = self._gradients(call, outcome)
            if gradients is None:
                return
            if gradients.error is not None:
                self._fail("gradient: exception", gradients.describe_error())
                return
            outcomes.append(gradients)
        self.report.gradients += 1
        pairs = zip(outcomes[0].tensors, outcomes[1].tensors, strict=True)
        for a, b in pairs:
            if a.device != self.device:
                self._fail("gradient: wrong device", f"a gradient is on {a.device}")
            elif value_difference(a.cpu(), b.cpu(), None) is not None:
                self._fail("gradient: not reproducible", "the same seed gave other numbers")


def check(info: OpInfo, dtype: torch.dtype | None, device: torch.device) -> Report:
    """Tries an entry with one element type on `device` and on the CPU; never raises for what the entry does."""
    if dtype is None:
        return Report(failures=[Failure("no dtype", 0, "the entry supports no element type on the CPU")])
    return EntryCheck(info, dtype, device).run()
