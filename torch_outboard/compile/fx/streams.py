# SPDX-License-Identifier: BSD-3-Clause
"""Streams in a torch.fx graph: functions that nodes call and that graph passes must not remove."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx.node import has_side_effect

from torch_outboard.device import streams

__all__ = ["enter_stream", "leave_stream", "record_streams", "restoring_streams"]


@has_side_effect
def enter_stream(stream: torch.Stream) -> torch.Stream:
    """Make a stream the current stream of its device on this thread, and return the previous one."""
    before = torch.accelerator.current_stream(stream.device)
    _make_current(stream)
    return before


@has_side_effect
def leave_stream(before: torch.Stream) -> None:
    """Make the stream current that `enter_stream` returned."""
    _make_current(before)


@has_side_effect
def record_streams(tensor: torch.Tensor, used: Sequence[torch.Stream]) -> None:
    """Delay reuse of a tensor's memory: once freed, it waits for all work queued on `used` until then."""
    for stream in used:
        tensor.record_stream(stream)


def restoring_streams(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wrap a function to restore the current streams if it raises between entering and leaving a stream."""

    def run(arguments: Any) -> Any:
        before = [torch.accelerator.current_stream(index) for index in range(torch.accelerator.device_count())]
        try:
            return function(arguments)
        except BaseException:  # re-raised, also for an interrupt; the caller's streams stay current
            for stream in before:
                _make_current(stream)
            raise

    return run


def _make_current(stream: torch.Stream) -> None:
    # This does not change the current device.
    streams._set_stream_by_id(stream.stream_id, stream.device_index, stream.device_type)
