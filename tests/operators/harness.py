# SPDX-License-Identifier: BSD-3-Clause
"""Shared parts of all checks of the operator database: one call on the device and on the CPU, and the comparisons."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar
from unittest import mock

import torch
from torch.testing._internal import common_methods_invocations
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_leaves

from torch_outboard.testing.database.calls import CPU, Call, all_samples_of, poison, seed
from torch_outboard.testing.database.compare import (
    Bounds,
    TorchBounds,
    metadata_difference,
    sharing,
    storage_difference,
    stride_difference,
    value_difference,
)
from torch_outboard.testing.database.lists import RANDOM, UNINITIALISED

from .lists import COMPLEX_PRODUCTS, NOTHING_TO_COMPARE, PRODUCTS, TOLERANCES
from .outcome import Outcome
from .samples import ALL_SAMPLES, MAX_SAMPLES, broad_samples_of, distinct, dtype_name, dtypes_of, few_dtypes_of

SEED = 11


@dataclass(frozen=True)
class Failure:
    """One difference: its kind, its place, and the details."""

    kind: str
    sample: str
    message: str

    def __str__(self) -> str:
        return f"sample {self.sample}: {self.kind}: {self.message}"


@dataclass
class Report:
    """The results of one check of one entry with one element type."""

    samples: int = 0
    compared: int = 0
    counted: int = 0
    gradients: int = 0
    failures: list[Failure] = field(default_factory=list)


@dataclass
class Side:
    """One of the two runs of a sample: its arguments, which it may have changed, and its outcome."""

    call: Call
    outcome: Outcome

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [*self.call.inputs, *self.outcome.tensors]


class Check:
    """One question about an entry with one element type, asked sample by sample on the device and on the CPU.

    A subclass defines its entries and element types (`dtypes`), and how it tries a sample (`check`).
    """

    # What the check is called in the names of tests and in lists.
    name: ClassVar[str]
    # How many samples `make test` tries, with float32 and with other types.
    first: ClassVar[tuple[int, int]] = (1, 1)
    # Whether an exception may come as late as the wait for the work.
    may_be_late: ClassVar[bool] = False
    # Whether the samples' tensors require gradients where the entry has them.
    wants_gradients: ClassVar[bool] = False
    # Whether a call that both refuse is something compared.
    errors_count: ClassVar[bool] = False
    # Whether entries of one operand are tried with four dimensions too.
    is_broad: ClassVar[bool] = False

    def __init__(self, info: OpInfo, dtype: torch.dtype, device: torch.device) -> None:
        self.info = info
        self.dtype = dtype
        self.device = device
        self.report = Report()
        self.has_gradients = info.supports_autograd and dtype in info.supported_backward_dtypes("cpu")
        # Whether values can be compared: the entry neither draws them nor leaves them unwritten.
        self.values_count = info.full_name not in RANDOM | UNINITIALISED
        self._place = "0"

    @classmethod
    def dtypes(cls, info: OpInfo) -> list[torch.dtype]:
        """Return the element types of the entry to which this check applies."""
        return dtypes_of(info) if ALL_SAMPLES else few_dtypes_of(info)

    def check(self, sample: SampleInput) -> None:
        raise NotImplementedError

    def samples(self) -> list[SampleInput]:
        samples_of = broad_samples_of if self.is_broad else all_samples_of
        return distinct(samples_of(self.info, self.dtype, self.wants_gradients and self.has_gradients), self.most)

    @property
    def most(self) -> int:
        """The number of samples to try."""
        return MAX_SAMPLES if ALL_SAMPLES else self.first[self.dtype != torch.float32]

    def run(self) -> Report:
        """Try all samples; never raise an error of the entry."""
        with seeds_free(), every_warning():
            samples = self.samples()
            for index, sample in enumerate(samples):
                with self.at(str(index)):
                    self.check(sample)
        return self.finish(len(samples))

    def finish(self, samples: int) -> Report:
        """Fail if nothing was compared, except for the entries that are listed for it."""
        self.report.samples = samples
        is_listed = self.info.full_name in NOTHING_TO_COMPARE.get(self.name, ())
        if not self.report.compared and not self.report.failures and not is_listed:
            self.fail("nothing compared", f"none of {samples} samples could be compared")
        if self.report.compared and is_listed:
            self.fail("something compared", "it is listed as an entry without anything to compare")
        return self.report

    @contextlib.contextmanager
    def at(self, place: str) -> Iterator[None]:
        """Set the place of failures in a scope."""
        before, self._place = self._place, place
        yield
        self._place = before

    def fail(self, kind: str, message: str) -> None:
        self.report.failures.append(Failure(kind, self._place, message))

    def side(
        self, sample: SampleInput, device: torch.device, run: Callable[[Call], Any] = Call.forward, number: int = SEED
    ) -> Side | None:
        """Run one sample; return None if its arguments could not even be copied to the device."""
        try:
            call = Call(self.info, sample, device)
            if device.type != "cpu":
                poison(device)
                torch.accelerator.synchronize(device)
        except Exception as error:  # an entry that cannot be set up fails, and the run goes on
            self.fail("exception in the set-up", f"{type(error).__name__}: {str(error)[:600]}")
            return None
        seed(number, device)
        return Side(call, Outcome(lambda: run(call), device))

    def both(self, sample: SampleInput, run: Callable[[Call], Any] = Call.forward) -> tuple[Side, Side] | None:
        """Run a sample on the device and on the CPU, and return both if both have a result to compare.

        The check fails if only one of them raises, raises later or another type, or uses the copy fallback.
        """
        theirs, ours = self.side(sample, CPU, run), self.side(sample, self.device, run)
        if ours is None or theirs is None:
            return None
        if ours.outcome.fallback:
            self.fail("copy fallback", ", ".join(ours.outcome.fallback))
        if ours.outcome.error is not None or theirs.outcome.error is not None:
            self.report.compared += self.errors_count
            self.compare_errors(ours.outcome, theirs.outcome)
            return None
        return ours, theirs

    def compare_errors(self, ours: Outcome, theirs: Outcome) -> None:
        if theirs.error is None:
            self.fail("exception", ours.describe_error())
        elif ours.error is None:
            self.fail("no exception", f"the CPU raises {theirs.describe_error()}")
        elif type(ours.error) is not type(theirs.error):
            self.fail("other exception", f"{ours.describe_error()}; the CPU raises {theirs.describe_error()}")
        elif ours.is_late and not self.may_be_late:
            self.fail("late exception", ours.describe_error())

    def compare(self, ours: Side, theirs: Side, values: bool = True) -> None:
        """Compare the results, the arguments after the call, and the sharing of memory among them."""
        self.report.compared += 1
        self.compare_results("", ours.outcome, theirs.outcome, values)
        if len(ours.tensors) != len(theirs.tensors):
            return
        own_sharing, others = sharing(ours.tensors), sharing(theirs.tensors)
        if own_sharing != others:
            count = len(ours.call.inputs)
            self.fail("sharing", f"{own_sharing}, on the CPU {others}; the first {count} are arguments")
        self.compare_arguments(ours, theirs, values)

    def compare_arguments(self, ours: Side, theirs: Side, values: bool = True) -> None:
        bounds = self.bounds(ours.outcome)
        for number, (a, b) in enumerate(zip(ours.call.inputs, theirs.call.inputs, strict=True)):
            difference = metadata_difference(a, b) or stride_difference(a, b)
            if difference is None and values and self.values_count:
                difference = storage_difference(a, b, bounds)
            if difference is not None:
                self.fail("argument", f"argument {number} afterwards: {difference}")

    def bounds(self, ours: Outcome) -> Bounds | None:
        """Return the allowed difference of values; None, so that values must be equal, if the CPU's own kernels ran."""
        if not ours.is_exact:
            return TorchBounds(self.info)
        allowed = TOLERANCES.get(self.info.full_name)
        if allowed is None and self.dtype.is_complex and any(operator in PRODUCTS for _, operator in ours.calls):
            return COMPLEX_PRODUCTS
        return allowed

    def compare_results(self, prefix: str, ours: Outcome, theirs: Outcome, values: bool = True) -> None:
        """Compare results with the CPU's; `prefix` precedes the kind of a failure."""
        if len(ours.tensors) != len(theirs.tensors):
            self.fail(prefix + "structure", f"{len(ours.tensors)} tensors for {len(theirs.tensors)}")
            return
        if values and self.values_count and not self._same_others(ours.others, theirs.others):
            self.fail(prefix + "values", f"{ours.others!r:.200} for {theirs.others!r:.200}")
        bounds = self.bounds(ours)
        for number, (a, b) in enumerate(zip(ours.tensors, theirs.tensors, strict=True)):
            if a.device != self.device:
                self.fail(prefix + "wrong device", f"result {number} is on {a.device}")
                continue
            difference = metadata_difference(a, b)
            if difference is not None:
                self.fail(prefix + "metadata", f"result {number}: {difference}")
                continue
            difference = stride_difference(a, b)
            if difference is not None:
                self.fail(prefix + "strides", f"result {number}: {difference}")
            if not values or not self.values_count:
                continue
            difference = value_difference(a.detach().cpu(), b.detach(), bounds)
            if difference is not None:
                self.fail(prefix + "values", f"result {number} ({dtype_name(a.dtype)}): {difference}")
        if ours.warnings != theirs.warnings:
            self.fail(prefix + "warnings", f"{ours.warnings}, on the CPU {theirs.warnings}")

    def _same_others(self, ours: list[Any], theirs: list[Any]) -> bool:
        """Compare results that are not tensors, by their text: NaN is then equal to NaN, and a device may differ."""
        return repr(ours).replace(str(self.device), "cpu") == repr(theirs)


def tensors_in(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


@contextlib.contextmanager
def every_warning() -> Iterator[None]:
    """Make torch warn at each call, not once a process; ignore warnings that nothing catches."""
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_warn_always(before)


@contextlib.contextmanager
def seeds_free() -> Iterator[None]:
    """Make seeds effective: the database wraps its random operators so that each call starts from seed 42."""

    def call(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return op(*args, **kwargs)

    with mock.patch.object(common_methods_invocations, "wrapper_set_seed", call):
        yield
