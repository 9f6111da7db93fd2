# SPDX-License-Identifier: BSD-3-Clause
"""A compiled graph that captures itself."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch._guards import CompileContext, compile_context
from torch._inductor import config
from torch._inductor.cudagraph_utils import cudagraphs_log, log_cudagraph_skip_and_bump_counter
from torch._logging._internal import trace_structured

from torch_outboard import _C
from torch_outboard._errors import CaptureError
from torch_outboard.compile.capture.recording import Recording

__all__ = ["CapturedFunction"]

_MAX_CAPTURES = 32  # per function; each has its own memory
_MAX_SEEN_KEYS = 128  # sets that were seen once and are remembered

_capturing = threading.Lock()


class CapturedFunction:
    """A compiled graph that is captured at its second call, and replayed from then on.

    Like Inductor's functions, it takes a list of inputs and empties the list. Any thread may call it; concurrent calls
    run without replay. Replays on different streams wait for each other.

    Attributes
    ----------
    saved : int
        The number of trailing outputs that only the backward graph reads; 0 until that graph exists.
    forward : CapturedFunction or None
        For a backward graph, the forward graph whose saved tensors it reads.
    """

    def __init__(
        self, function: Callable[[list[Any]], Sequence[Any]], device: torch.device, static: frozenset[int], kind: str
    ) -> None:
        self.saved = 0
        self.forward: CapturedFunction | None = None
        self.shared: object = None
        self._function = function
        self._device = device
        self._static = static
        self._kind = kind
        self._compile_id = CompileContext.current_compile_id()
        self._captures: dict[tuple[Any, ...], Recording] = {}
        self._seen: set[tuple[Any, ...]] = set()
        self._sizes: Any = config.triton.cudagraph_capture_sizes
        self._is_full = False
        self._has_given_up = False
        self._lock = threading.Lock()

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        if self.forward is not None:
            self.forward.add_reader(torch.accelerator.current_stream(self._device))
        if self._has_given_up:
            return self._function(inputs)
        if torch._C._len_torch_dispatch_stack() > 0:
            return self._generated(inputs, "a dispatch mode is active")
        if _C.is_stream_capturing(self._device.index):
            return self._generated(inputs, "it is being captured in another graph")
        if not self._lock.acquire(blocking=False):
            return self._generated(inputs, "another thread calls it, or it calls itself")
        try:
            key = self._key(inputs)
            capture = None if key is None else self._captures.get(key) or self._capture(key, inputs)
            if capture is None:
                return self._function(inputs)
            if capture.is_held():
                counters["outboard"]["graph_busy"] += 1
                return self._generated(inputs, "the tensors that it saved for a backward pass are in use")
            counters["outboard"]["graph_replays"] += 1
            # Hooks receive the saved tensors, and may read them on any stream.
            hooks = self.saved > 0 and torch._C._autograd._top_saved_tensors_default_hooks(False) is not None
            return capture.replay(inputs, 0 if hooks else self.saved)
        finally:
            self._lock.release()

    def _generated(self, inputs: list[Any], why: str) -> Sequence[Any]:
        """Run the generated code without a replay for this call, and log the reason."""
        cudagraphs_log.debug("the %s graph %s runs without replay: %s", self._kind, self._compile_id, why)
        return self._function(inputs)

    def add_reader(self, stream: torch.Stream) -> None:
        """Make the next replay wait for the work queued on a stream, which reads saved tensors."""
        for capture in tuple(self._captures.values()):
            capture.readers.add(stream)

    def give_up(self, reason: str) -> None:
        """Run without capture from now on, and log why. Raise RuntimeError if triton.cudagraph_or_error is set."""
        self._has_given_up = True
        self._captures.clear()
        self.trace_reason(reason)
        name = "" if self._compile_id is None else f" {self._compile_id}"
        log_cudagraph_skip_and_bump_counter(f"the {self._kind} graph{name} is not captured: {reason}")

    def trace_reason(self, reason: str) -> None:
        """Write a record to torch's structured trace, for the compile report."""
        with compile_context(None if self._compile_id is None else CompileContext(self._compile_id)):
            trace_structured(
                "artifact",
                metadata_fn=lambda: {"name": "outboard_capture", "encoding": "json"},
                payload_fn=lambda: json.dumps({"kind": self._kind, "reason": reason}),
                expect_trace_id=False,
            )

    def _key(self, inputs: list[Any]) -> tuple[Any, ...] | None:
        """Return the key of a capture, or None. Dynamo's guards check the rest."""
        key: list[Any] = []
        for index, value in enumerate(inputs):
            if isinstance(value, Tensor):
                if index in self._static:
                    key.append(value.data_ptr())
            elif value is None or isinstance(value, (int, float)):
                key.append(value)
            else:
                self.give_up(f"an input is a {type(value).__name__}")
                return None
        return tuple(key)

    def _is_wanted(self, inputs: list[Any]) -> bool:
        """Return True if these sizes may be captured: triton.cudagraph_capture_sizes restricts dynamic sizes."""
        sizes = tuple(value for value in inputs if isinstance(value, int))
        return not self._sizes or not sizes or (sizes[0] if len(sizes) == 1 else sizes) in self._sizes

    def _capture(self, key: tuple[Any, ...], inputs: list[Any]) -> Recording | None:
        """Capture a call with known inputs. Return None if the inputs are new or the capture failed."""
        if self._is_full or not self._is_wanted(inputs):
            return None
        if key not in self._seen:
            if len(self._seen) >= _MAX_SEEN_KEYS:
                self._seen.clear()
            self._seen.add(key)
            return None
        if len(self._captures) >= _MAX_CAPTURES:
            self._is_full = True
            cudagraphs_log.warning(
                "the %s graph %s has %d captures for different sizes or addresses, which is the limit",
                *(self._kind, self._compile_id, _MAX_CAPTURES),
            )
            return None
        if not _capturing.acquire(blocking=False):
            return None  # another function is capturing on the shared stream; a later call may capture
        try:
            capture = Recording(self._function, self._device, self._static, inputs)
        except (CaptureError, torch.OutOfMemoryError) as error:
            self.give_up(str(error))
            return None
        finally:
            _capturing.release()
        counters["outboard"]["graph_captures"] += 1
        self._captures[key] = capture
        return capture
