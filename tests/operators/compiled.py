# SPDX-License-Identifier: BSD-3-Clause
"""Runs entries of the operator database under torch.compile, and reports differences from the eager calls."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch._dynamo import config as dynamo_config
from torch._inductor import config as inductor_config
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_leaves

from torch_outboard.testing.database.calls import Call, poison
from torch_outboard.testing.database.lists import UNINITIALISED

from .compiled_lists import CLOSE
from .harness import Failure, Report, seeds_free
from .samples import MAX_SAMPLES, samples_of

SEED = 11


def check_compiled(info: OpInfo, device: torch.device, samples: int | None) -> Report:
    """Try the first samples of an entry, or all, in float32, forward; never raise an error of the entry."""
    report = Report()
    with _compiling():
        chosen = samples_of(info, torch.float32, requires_grad=False, most=samples or MAX_SAMPLES)
        report.samples = len(chosen)
        for index, sample in enumerate(chosen):
            message = _difference(info, sample, device)
            if message is not None:
                report.failures.append(Failure("compiled", str(index), message))
    if not chosen:
        report.failures.append(Failure("no sample", "0", "the entry has no sample in float32"))
    return report


def check_compiled_together(infos: Sequence[OpInfo], device: torch.device) -> Report:
    """Try the first samples of several entries in one graph: starting the compiler once takes a tenth of the time.

    If this fails, the entries are tried one by one to find the failing ones. An entry that cannot share a graph is
    tried alone too: if it raises, has no sample, or takes no tensor that decides the device of its result.
    """
    with _compiling():
        graph = []
        for info in infos:
            samples = samples_of(info, torch.float32, requires_grad=False, most=1)
            if samples and not (call := Call(info, samples[0], device)).is_factory:
                expected, error = _run(Call(info, samples[0], device), info.op)
                graph += [(call, expected)] if error is None else []
        messages = _differences_together(graph)
    known = {call.info.full_name for call, _ in graph} if not messages else set()
    report = Report(samples=len(known))
    for info in infos:
        if info.full_name not in known:
            alone = check_compiled(info, device, 1)
            report.samples += alone.samples
            report.failures += [Failure(f"{info.full_name}: {each.kind}", "0", each.message) for each in alone.failures]
    if messages and not report.failures:
        report.failures = [Failure("together", "0", message) for message in messages]
    return report


@contextlib.contextmanager
def _compiling() -> Iterator[None]:
    with (
        seeds_free(),
        warnings.catch_warnings(),
        # What operators draw and how many elements they find are then the eager ones.
        inductor_config.patch(fallback_random=True, compile_threads=1),
        dynamo_config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True),
    ):
        warnings.simplefilter("ignore")
        yield


def _differences_together(graph: Sequence[tuple[Call, Any]]) -> list[str]:
    ops = [call.info.op for call, _ in graph]

    def together(*arguments: Any) -> list[Any]:
        return [op(value, *args, **kwargs) for op, (value, args, kwargs) in zip(ops, arguments, strict=True)]

    device = graph[0][0].device
    torch._dynamo.reset()
    poison(device)
    try:
        got = torch.compile(together, fullgraph=True)(*((call.input, call.args, call.kwargs) for call, _ in graph))
        torch.accelerator.synchronize(device)
    except Exception as error:  # whatever it is becomes part of the comparison
        return [f"{type(error).__name__}: {str(error).strip()[:600]}"]
    return [
        f"{call.info.full_name}: {message}"
        for (call, expected), result in zip(graph, got, strict=True)
        if (message := _result_difference(call.info, result, expected)) is not None
    ]


def _difference(info: OpInfo, sample: SampleInput, device: torch.device) -> str | None:
    expected, error = _run(Call(info, sample, device), info.op)
    torch._dynamo.reset()
    got, compiled_error = _run(Call(info, sample, device), torch.compile(info.op, fullgraph=True))
    if error is not None or compiled_error is not None:
        if error is None:
            return f"raises {compiled_error}"
        return None if compiled_error is not None else f"gives a result; eager it raises {error}"
    return _result_difference(info, got, expected)


def _result_difference(info: OpInfo, got: Any, expected: Any) -> str | None:
    ours, theirs = tree_leaves(got), tree_leaves(expected)
    if len(ours) != len(theirs):
        return f"{len(ours)} results, eager there are {len(theirs)}"
    for left, right in zip(ours, theirs, strict=True):
        message = _leaf_difference(info.full_name, left, right)
        if message is not None:
            return message
    return None


def _run(call: Call, op: Any) -> tuple[Any, str | None]:
    try:
        if call.device.type != "cpu":
            poison(call.device)
        torch.manual_seed(SEED)
        if call.is_factory:
            with call.device:
                result = op(call.input, *call.args, **call.kwargs)
        else:
            result = op(call.input, *call.args, **call.kwargs)
        if call.device.type != "cpu":
            torch.accelerator.synchronize(call.device)
    except Exception as error:  # whatever it is becomes part of the comparison
        return None, f"{type(error).__name__}: {str(error).strip()[:600]}"
    return result, None


def _leaf_difference(name: str, ours: Any, theirs: Any) -> str | None:
    if not isinstance(theirs, torch.Tensor) or not isinstance(ours, torch.Tensor):
        return None if type(ours) is type(theirs) and ours == theirs else f"{ours!r}, eager it is {theirs!r}"
    for attribute in ("dtype", "shape", "layout", "device"):
        if getattr(ours, attribute) != getattr(theirs, attribute):
            return f"{attribute} is {getattr(ours, attribute)}, eager it is {getattr(theirs, attribute)}"
    if name in UNINITIALISED:
        return None
    tolerance = CLOSE.get(name)
    try:
        torch.testing.assert_close(
            ours.detach().cpu(),
            theirs.detach().cpu(),
            rtol=None if tolerance is None else tolerance.relative,
            atol=None if tolerance is None else tolerance.absolute,
            equal_nan=True,
        )
    except AssertionError as error:
        return " ".join(str(error).split())
    return None
