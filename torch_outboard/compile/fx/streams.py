# SPDX-License-Identifier: BSD-3-Clause
"""Streams in a graph of torch.fx: functions that its nodes call, and that passes leave where they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx.node import has_side_effect

from torch_outboard.device import streams

__all__ = ["enter_stream", "leave_stream", "record_streams", "restoring_streams"]


@has_side_effect
def enter_stream(stream: torch.Stream) -> torch.Stream:
    """Makes a stream its device's current one on this thread, and gives the one that it was before."""
    before = torch.accelerator.current_stream(stream.device)
    _make_current(stream)
    return before


@has_side_effect
def leave_stream(before: torch.Stream) -> None:
    """Makes the stream current again that `enter_stream` has given."""
    _make_current(before)


@has_side_effect
def record_streams(tensor: torch.Tensor, used: Sequence[torch.Stream]) -> None:
    """Makes the tensor's memory, once it is freed, wait for what was queued on the streams by then."""
    for stream in used:
        tensor.record_stream(stream)


def restoring_streams(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Gives the function with the current streams put back if it raises between entering and leaving one."""

    def run(arguments: Any) -> Any:
        before = [torch.accelerator.current_stream(index) for index in range(torch.accelerator.device_count())]
        try:
            return function(arguments)
        except BaseException:
            for stream in before:
                _make_current(stream)
            raise

    return run


def _make_current(stream: torch.Stream) -> None:
    streams._set_stream_by_id(stream.stream_id, stream.device_index, stream.device_type)  # and not its device
