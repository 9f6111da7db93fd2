# SPDX-License-Identifier: BSD-3-Clause
"""Runs one entry of the operator database under torch.compile, and says where it differs from the eager call."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch._dynamo import config as dynamo_config
from torch._inductor import config as inductor_config
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_leaves

from .compiled_lists import CLOSE
from .harness import Failure, Report, seeds_free
from .lists import UNINITIALISED
from .outcome import poison
from .samples import MAX_SAMPLES, Call, samples_of

SEED = 11


def check_compiled(info: OpInfo, device: torch.device, samples: int | None) -> Report:
    """Tries the first samples of an entry, or all, in float32, forward; never raises for what the entry does."""
    report = Report()
    with (
        seeds_free(),
        warnings.catch_warnings(),
        # What operators draw and how many elements they find are then the eager ones.
        inductor_config.patch(fallback_random=True, compile_threads=1),
        dynamo_config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True),
    ):
        warnings.simplefilter("ignore")
        chosen = samples_of(info, torch.float32, requires_grad=False, most=samples or MAX_SAMPLES)
        report.samples = len(chosen)
        for index, sample in enumerate(chosen):
            message = _difference(info, sample, device)
            if message is not None:
                report.failures.append(Failure("compiled", str(index), message))
    if not chosen:
        report.failures.append(Failure("no sample", "0", "the entry has no sample in float32"))
    return report


def _difference(info: OpInfo, sample: SampleInput, device: torch.device) -> str | None:
    expected, error = _run(Call(info, sample, device), info.op)
    torch._dynamo.reset()
    got, compiled_error = _run(Call(info, sample, device), torch.compile(info.op, fullgraph=True))
    if error is not None or compiled_error is not None:
        if error is None:
            return f"raises {compiled_error}"
        return None if compiled_error is not None else f"gives a result; eager it raises {error}"
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
    for what in ("dtype", "shape", "layout", "device"):
        if getattr(ours, what) != getattr(theirs, what):
            return f"{what} is {getattr(ours, what)}, eager it is {getattr(theirs, what)}"
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
