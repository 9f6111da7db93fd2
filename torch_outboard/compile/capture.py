# SPDX-License-Identifier: BSD-3-Clause
"""mode="reduce-overhead": what Inductor has generated for a graph is captured once and replayed.

One capture for each set of sizes, and for each set of addresses of what does not move: weights, buffers, and what a
forward pass has saved for its backward pass. Other inputs are copied into the capture's own memory. The first call with
such a set runs as generated, the second one is captured.

What a replay writes stays in the capture's memory, and the next replay writes there again. So whatever the caller may
keep is copied out. What only the backward pass reads stays where it is: there it is counted who holds the memory, and
while anybody does the forward pass runs as generated.
"""

from __future__ import annotations

import json
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch._guards import CompileContext, compile_context
from torch._inductor import config
from torch._inductor.compiler_bisector import CompilerBisector
from torch._inductor.cudagraph_utils import cudagraphs_log, log_cudagraph_skip_and_bump_counter
from torch._inductor.utils import get_first_incompatible_cudagraph_node
from torch._inductor.virtualized import V
from torch._logging._internal import trace_structured

from torch_outboard import _C
from torch_outboard._errors import CaptureError
from torch_outboard.device import graphs

__all__ = ["CapturedFunction", "install", "why_not"]

_MOST_CAPTURES = 32  # of one function: each has memory of its own
_MOST_SEEN = 128  # sets that were met once and are remembered

_alias = torch._C._dynamo.guards._reinterpret_tensor  # type: ignore[attr-defined]


def why_not(nodes: dict[torch.device, torch.fx.Node]) -> str | None:
    """Says why the graph that Inductor is lowering can't be captured; None if nothing speaks against it.

    `nodes` has a node of the graph for each device that it uses.
    """
    ours = [device for device in nodes if device.type == _C.driver_name()]
    others = [device for device in nodes if device.type not in (_C.driver_name(), "meta")]
    if len(ours) > 1:
        return f"it uses several devices: {', '.join(map(str, ours))}"
    if others:
        return f"it uses the device {others[0]}, in {nodes[others[0]].name}{_where(nodes[others[0]])}"
    unsafe = get_first_incompatible_cudagraph_node(V.graph.module)  # type: ignore[arg-type]
    if unsafe is not None:
        return f"the operator {unsafe.target} needs its values on the host, or may not be captured{_where(unsafe)}"
    # Dynamo hands the current stream over before the call, so that within it would not be the capture's.
    for node in V.graph.module.graph.nodes:  # type: ignore[union-attr]
        if isinstance(node.target, torch._ops.OpOverload) and node.target.namespace == "streams":
            return f"it uses streams or events{_where(node)}"
    if any(getattr(V.graph.scheduler, "node_to_stream", {}).values()):
        return "it uses several streams"
    return None


def _where(node: torch.fx.Node) -> str:
    trace = node.meta.get("stack_trace")
    return f". Found from:\n{trace}" if trace else ""


_capturing = threading.Lock()
_streams: dict[int, torch.Stream] = {}  # to capture on, by device; under the lock

# By the id of what Inductor hands to a forward graph and to its backward graph alike; the function keeps that alive.
_forwards: weakref.WeakValueDictionary[int, CapturedFunction] = weakref.WeakValueDictionary()


def install(graph: Any, example_inputs: Sequence[Any], options: Mapping[str, Any], is_wanted: bool) -> None:
    """Makes a compiled graph, a CompiledFxGraph, replay captures, or logs why it doesn't.

    `example_inputs` and `options` are those of its post_compile. `is_wanted` says whether Inductor is asked for graphs
    and has found no reason against one.
    """
    is_backward = bool(options["is_backward"])
    kind = "backward" if is_backward else "inference" if graph.fx_kwargs.get("is_inference") else "forward"
    reason = graph.disabled_cudagraphs_reason
    static = frozenset(graph.fx_kwargs.get("static_input_idxs") or ())
    if reason is None:
        if not is_wanted or CompilerBisector.disable_subsystem("inductor", "cudagraphs"):
            return
        moved = [index for index in graph.mutated_input_idxs if index not in static]
        if moved:
            reason = f"it changes {len(moved)} of its inputs in place, and they are neither parameters nor buffers"
        elif config.triton.cudagraph_skip_dynamic_graphs and _has_symbols(example_inputs):
            reason = "its sizes are dynamic, and triton.cudagraph_skip_dynamic_graphs is set"
    function = CapturedFunction(graph.current_callable, torch.device(_C.driver_name(), _index(graph)), static, kind)
    if reason is not None:
        function.give_up(reason)
        return
    function.tell("")
    graph.current_callable = function
    shared = options.get("boxed_forward_device_index")
    if shared is None:
        return
    if is_backward:
        forward = _forwards.get(id(shared))
        if forward is not None:
            # The last outputs of a forward graph are the first inputs of its backward one.
            forward.saved = len(static)
            function.forward = forward
    else:
        function.shared = shared
        _forwards[id(shared)] = function


def _index(graph: Any) -> int:
    return next((index for index in graph.device_idxs if index is not None), 0)


def _has_symbols(inputs: Sequence[Any]) -> bool:
    return any(isinstance(value, torch.SymInt) for value in inputs)


class CapturedFunction:
    """A compiled graph that is captured when it is called a second time, and replayed from then on.

    It takes a list of inputs, which it empties, as Inductor's functions do. Any thread may call it; calls that meet run
    as generated. Replays on different streams wait for each other.

    Attributes
    ----------
    saved : int
        How many of the last outputs only the backward graph reads. 0 until that graph is there.
    forward : CapturedFunction or None
        Of a backward graph, the one whose saved tensors it reads.
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
        self._captures: dict[tuple[Any, ...], _Capture] = {}
        self._seen: set[tuple[Any, ...]] = set()
        self._sizes: Any = config.triton.cudagraph_capture_sizes
        self._is_full = False
        self._has_given_up = False
        self._lock = threading.Lock()

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        if self.forward is not None:
            self.forward.note_reader(torch.accelerator.current_stream(self._device))
        if self._has_given_up:
            return self._function(inputs)
        if torch._C._len_torch_dispatch_stack() > 0:
            return self._generated(inputs, "a dispatch mode wants to see operators")
        if _C.is_stream_capturing(self._device.index):
            return self._generated(inputs, "it is captured in another graph")
        if not self._lock.acquire(blocking=False):
            return self._generated(inputs, "another thread calls it, or it calls itself")
        try:
            key = self._key(inputs)
            capture = None if key is None else self._captures.get(key) or self._capture(key, inputs)
            if capture is None:
                return self._function(inputs)
            if capture.is_held():
                counters["outboard"]["graph_busy"] += 1
                return self._generated(inputs, "what it has saved for a backward pass is in use")
            counters["outboard"]["graph_replays"] += 1
            # Hooks see what is saved, and may read it on any stream.
            hooks = self.saved > 0 and torch._C._autograd._top_saved_tensors_default_hooks(False) is not None
            return capture.replay(inputs, 0 if hooks else self.saved)
        finally:
            self._lock.release()

    def _generated(self, inputs: list[Any], why: str) -> Sequence[Any]:
        """Runs without a replay, this once."""
        cudagraphs_log.debug("the %s graph %s runs as generated: %s", self._kind, self._compile_id, why)
        return self._function(inputs)

    def note_reader(self, stream: torch.Stream) -> None:
        """Makes the next replays wait for what is being queued on a stream, which reads what was saved."""
        for capture in tuple(self._captures.values()):
            capture.readers.add(stream)

    def give_up(self, reason: str) -> None:
        """Runs as generated from now on, and logs why. RuntimeError if triton.cudagraph_or_error is set."""
        self._has_given_up = True
        self._captures.clear()
        self.tell(reason)
        name = "" if self._compile_id is None else f" {self._compile_id}"
        log_cudagraph_skip_and_bump_counter(f"the {self._kind} graph{name} is not captured: {reason}")

    def tell(self, reason: str) -> None:
        """Tells whoever reads torch's structured trace: the compile report does."""
        with compile_context(None if self._compile_id is None else CompileContext(self._compile_id)):
            trace_structured(
                "artifact",
                metadata_fn=lambda: {"name": "outboard_capture", "encoding": "json"},
                payload_fn=lambda: json.dumps({"kind": self._kind, "reason": reason}),
                expect_trace_id=False,
            )

    def _key(self, inputs: list[Any]) -> tuple[Any, ...] | None:
        """Gives what a capture is made for; Dynamo's guards see to the rest."""
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
        """Whether triton.cudagraph_capture_sizes, which lists sizes where they are dynamic, has these."""
        sizes = tuple(value for value in inputs if isinstance(value, int))
        return not self._sizes or not sizes or (sizes[0] if len(sizes) == 1 else sizes) in self._sizes

    def _capture(self, key: tuple[Any, ...], inputs: list[Any]) -> _Capture | None:
        """Captures what was met before; None if the inputs are new, or the capture failed."""
        if self._is_full or not self._is_wanted(inputs):
            return None
        if key not in self._seen:
            if len(self._seen) >= _MOST_SEEN:
                self._seen.clear()
            self._seen.add(key)
            return None
        if len(self._captures) >= _MOST_CAPTURES:
            self._is_full = True
            cudagraphs_log.warning(
                "the %s graph %s has %d captures, of as many sizes or addresses, and gets no more",
                *(self._kind, self._compile_id, _MOST_CAPTURES),
            )
            return None
        if not _capturing.acquire(blocking=False):
            return None  # another function captures on the stream that all share; the next call may
        try:
            capture = _Capture(self._function, self._device, self._static, inputs)
        except (CaptureError, torch.OutOfMemoryError) as error:
            self.give_up(str(error))
            return None
        finally:
            _capturing.release()
        counters["outboard"]["graph_captures"] += 1
        self._captures[key] = capture
        return capture


@dataclass(frozen=True)
class _Output:
    """How one output is made after a replay: a number or None as it is, a tensor as a view.

    Without a size it is the very input: that goes back as the object that it is, since autograd checks whether it is
    changed before the backward pass.
    """

    constant: Any = None
    input_index: int = -1
    memory: int = -1
    size: tuple[int, ...] | None = None
    stride: tuple[int, ...] = ()
    offset: int = 0  # from the beginning of the input, or of the memory

    def view(self, base: Tensor) -> Tensor:
        if self.size is None:
            return base
        return _alias(base, self.size, self.stride, self.offset)  # type: ignore[no-any-return]


class _Capture:
    """One captured graph with its memory."""

    def __init__(
        self,
        function: Callable[[list[Any]], Sequence[Any]],
        device: torch.device,
        static: frozenset[int],
        inputs: list[Any],
    ) -> None:
        self._device = device
        self._graph = graphs.Graph()
        self.readers: set[torch.Stream] = set()  # where what the last replay has left may be read
        self._users: set[torch.Stream] = set()  # that the memory of the copied inputs is recorded on
        # Not made in inference mode, so that they can be written to outside it.
        with torch.inference_mode(False), torch.no_grad():
            given = [
                _buffer(value) if isinstance(value, Tensor) and index not in static else value
                for index, value in enumerate(inputs)
            ]
        self._copied = [
            (index, value, _overlaps(value))
            for index, value in enumerate(given)
            if isinstance(value, Tensor) and index not in static and value.numel() > 0
        ]
        outputs = self._run(function, list(given))
        # Nothing is kept of the inputs that don't move: others count who holds their memory.
        storages = {
            value.untyped_storage()._cdata: index for index, value in enumerate(given) if isinstance(value, Tensor)
        }
        self._memory: list[Tensor] = []
        self._outputs = [self._output(value, given, storages) for value in outputs]
        # What was saved may be an input: then it is our copy, which the next replay overwrites as well.
        self._buffers = {index: buffer for index, buffer, _ in self._copied}
        del given, outputs
        held = [memory.untyped_storage()._cdata for memory in (*self._memory, *self._buffers.values())]
        self._holders = [(storage, torch._C._storage_Use_Count(storage)) for storage in held]

    def _run(self, function: Callable[[list[Any]], Sequence[Any]], inputs: list[Any]) -> Sequence[Any]:
        """Captures a call. Waits for nothing, as the caller's thread may be all that other captures need."""
        stream = _streams.get(self._device.index)
        if stream is None:
            stream = _streams[self._device.index] = torch.Stream(self._device)
        with stream:
            self._graph.capture_begin(capture_error_mode="thread_local")
            try:
                outputs = function(inputs)
            except BaseException:
                self._graph.reset()
                raise
            self._graph.capture_end()
        # Graphs of torch.fx give a single output as it is.
        return outputs if isinstance(outputs, (list, tuple)) else [outputs]

    def _output(self, value: Any, given: list[Any], storages: dict[int, int]) -> _Output:
        if not isinstance(value, Tensor):
            return _Output(value)
        for index, one in enumerate(given):
            if value is one:
                return _Output(input_index=index)
        size, stride = tuple(value.size()), tuple(value.stride())
        storage = value.untyped_storage()._cdata
        if storage in storages:
            index = storages[storage]
            if value.dtype != given[index].dtype:
                raise CaptureError("an output is an input's memory as another type")
            offset = int(value.storage_offset() - given[index].storage_offset())
            return _Output(input_index=index, size=size, stride=stride, offset=offset)
        known = [memory.untyped_storage()._cdata for memory in self._memory]
        if storage not in known:
            known.append(storage)
            count = value.untyped_storage().nbytes() // value.element_size()
            whole = _alias(value, (count,), (1,), -value.storage_offset())
            self._memory.append(whole)
        memory = known.index(storage)
        if value.dtype != self._memory[memory].dtype:
            raise CaptureError("outputs of different types share memory")
        return _Output(memory=memory, size=size, stride=stride, offset=int(value.storage_offset()))

    def is_held(self) -> bool:
        """Whether anybody still holds what an earlier replay has left in the capture's memory."""
        return any(torch._C._storage_Use_Count(storage) > count for storage, count in self._holders)

    def replay(self, inputs: list[Any], saved: int) -> list[Any]:
        """Runs on the current stream. All outputs but the last `saved` are given in memory of their own."""
        current = torch.accelerator.current_stream(self._device)
        for reader in self.readers:
            if reader != current:
                current.wait_stream(reader)
        self.readers = {current}
        if current not in self._users:
            # The function may be dropped while this replay reads them.
            self._users.add(current)
            for _, buffer, _ in self._copied:
                buffer.record_stream(current)
        with torch.no_grad():
            for index, buffer, overlaps in self._copied:
                value = inputs[index]
                if overlaps:
                    buffer, value = _flat(buffer), _flat(value)
                buffer.copy_(value)
            self._graph.replay()
            copies: dict[int, Tensor] = {}
            first_saved = len(self._outputs) - saved
            results = [
                self._saved(one, inputs) if number >= first_saved else self._kept(one, inputs, copies)
                for number, one in enumerate(self._outputs)
            ]
        inputs.clear()
        return results

    def _kept(self, one: _Output, inputs: list[Any], copies: dict[int, Tensor]) -> Any:
        """Gives an output that the caller may keep: of `copies`, which share memory as the outputs do."""
        if one.input_index >= 0:
            return one.view(inputs[one.input_index])
        if one.memory < 0:
            return one.constant
        if one.memory not in copies:
            memory = self._memory[one.memory]
            copies[one.memory] = torch.empty_like(memory).copy_(memory)
        return one.view(copies[one.memory])

    def _saved(self, one: _Output, inputs: list[Any]) -> Any:
        """Gives an output that only the backward graph reads: where the replay has left it."""
        if one.input_index >= 0:
            buffer = self._buffers.get(one.input_index)
            return one.view(inputs[one.input_index] if buffer is None else buffer.detach())
        return one.constant if one.memory < 0 else one.view(self._memory[one.memory])


def _buffer(like: Tensor) -> Tensor:
    if like.is_conj() or like.is_neg():
        raise CaptureError("an input is a conjugated or negated view")
    return torch.empty_strided(like.size(), like.stride(), dtype=like.dtype, device=like.device)


def _overlaps(tensor: Tensor) -> bool:
    """Whether elements may share memory, so that they can't be written to one by one."""
    extent = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.size(), strict=True)):
        if size > 1 and stride < extent:
            return True
        extent += (size - 1) * stride
    return False


def _flat(tensor: Tensor) -> Tensor:
    """Gives the memory from the first element to the last one."""
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True))
    return _alias(tensor, (extent,), (1,), 0)  # type: ignore[no-any-return]
