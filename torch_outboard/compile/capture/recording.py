# SPDX-License-Identifier: BSD-3-Clause
"""A captured graph and its memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torch_outboard._errors import CaptureError
from torch_outboard.device import graphs

__all__ = ["Recording"]

_alias = torch._C._dynamo.guards._reinterpret_tensor  # type: ignore[attr-defined]

_streams: dict[int, torch.Stream] = {}  # the capture streams by device; only one function captures at a time


@dataclass(frozen=True)
class _Output:
    """How to build one output after a replay: a number or None is returned unchanged, a tensor as a view.

    An output without a size is itself an input. The replay returns the same object, because autograd checks before the
    backward pass that saved tensors are unchanged.
    """

    constant: Any = None
    input_index: int = -1
    memory: int = -1
    size: tuple[int, ...] | None = None
    stride: tuple[int, ...] = ()
    offset: int = 0  # from the start of the input or of the memory

    def view(self, base: Tensor) -> Tensor:
        if self.size is None:
            return base
        return _alias(base, self.size, self.stride, self.offset)  # type: ignore[no-any-return]


class Recording:
    """A captured graph and its memory."""

    def __init__(
        self,
        function: Callable[[list[Any]], Sequence[Any]],
        device: torch.device,
        static: frozenset[int],
        inputs: list[Any],
    ) -> None:
        self._device = device
        self._graph = graphs.Graph()
        self.readers: set[torch.Stream] = set()  # streams that may read the results of the last replay
        self._users: set[torch.Stream] = set()  # streams on which the memory of the copied inputs is recorded
        # Do not create them in inference mode: they must be writable outside it.
        with torch.inference_mode(False), torch.no_grad():
            sources = [
                _buffer(value) if isinstance(value, Tensor) and index not in static else value
                for index, value in enumerate(inputs)
            ]
        self._copied = [
            (index, value, _overlaps(value))
            for index, value in enumerate(sources)
            if isinstance(value, Tensor) and index not in static and value.numel() > 0
        ]
        outputs = self._run(function, list(sources))
        # Keep no reference to the static inputs: other captures count the references to their
        # memory.
        storages = {
            value.untyped_storage()._cdata: index for index, value in enumerate(sources) if isinstance(value, Tensor)
        }
        self._memory: list[Tensor] = []
        self._outputs = [self._output(value, sources, storages) for value in outputs]
        # A saved tensor may be an input. Then it is this capture's copy, which the next replay
        # overwrites too.
        self._buffers = {index: buffer for index, buffer, _ in self._copied}
        del sources, outputs
        referenced = [memory.untyped_storage()._cdata for memory in (*self._memory, *self._buffers.values())]
        self._holders = [(storage, torch._C._storage_Use_Count(storage)) for storage in referenced]

    def _run(self, function: Callable[[list[Any]], Sequence[Any]], inputs: list[Any]) -> Sequence[Any]:
        """Capture a call. The capture does not wait, because other captures may need the caller's thread."""
        stream = _streams.get(self._device.index)
        if stream is None:
            stream = _streams[self._device.index] = torch.Stream(self._device)
        with stream:
            self._graph.capture_begin(capture_error_mode="thread_local")
            try:
                outputs = function(inputs)
            except BaseException:  # re-raised, also for an interrupt: otherwise the stream would stay in capture
                self._graph.reset()
                raise
            self._graph.capture_end()
        # Graphs of torch.fx return a single output without a list.
        return outputs if isinstance(outputs, (list, tuple)) else [outputs]

    def _output(self, value: Any, inputs: list[Any], storages: dict[int, int]) -> _Output:
        if not isinstance(value, Tensor):
            return _Output(value)
        for index, tensor in enumerate(inputs):
            if value is tensor:
                return _Output(input_index=index)
        size, stride = tuple(value.size()), tuple(value.stride())
        storage = value.untyped_storage()._cdata
        if storage in storages:
            index = storages[storage]
            if value.dtype != inputs[index].dtype:
                raise CaptureError("an output shares an input's memory but has another dtype")
            offset = int(value.storage_offset() - inputs[index].storage_offset())
            return _Output(input_index=index, size=size, stride=stride, offset=offset)
        known = [memory.untyped_storage()._cdata for memory in self._memory]
        if storage not in known:
            known.append(storage)
            count = value.untyped_storage().nbytes() // value.element_size()
            whole = _alias(value, (count,), (1,), -value.storage_offset())
            self._memory.append(whole)
        memory = known.index(storage)
        if value.dtype != self._memory[memory].dtype:
            raise CaptureError("outputs of different dtypes share memory")
        return _Output(memory=memory, size=size, stride=stride, offset=int(value.storage_offset()))

    def is_held(self) -> bool:
        """Return True if a result of an earlier replay, in the capture's memory, is still referenced."""
        return any(torch._C._storage_Use_Count(storage) > count for storage, count in self._holders)

    def replay(self, inputs: list[Any], saved: int) -> list[Any]:
        """Replay on the current stream. All outputs except the last `saved` are returned in their own memory."""
        current = torch.accelerator.current_stream(self._device)
        for reader in self.readers:
            if reader != current:
                current.wait_stream(reader)
        self.readers = {current}
        if current not in self._users:
            # The function may be freed while this replay reads the inputs' copies.
            self._users.add(current)
            for _, buffer, _ in self._copied:
                buffer.record_stream(current)
        with torch.no_grad():
            for index, buffer, overlaps in self._copied:
                value = inputs[index]
                if overlaps:
                    buffer, value = _flat_view(buffer), _flat_view(value)
                buffer.copy_(value)
            self._graph.replay()
            copies: dict[int, Tensor] = {}
            first_saved = len(self._outputs) - saved
            results = [
                self._saved_output(output, inputs)
                if number >= first_saved
                else self._user_output(output, inputs, copies)
                for number, output in enumerate(self._outputs)
            ]
        inputs.clear()
        return results

    def _user_output(self, output: _Output, inputs: list[Any], copies: dict[int, Tensor]) -> Any:
        """Return an output that the caller may keep: a view of `copies`, which share memory like the outputs."""
        if output.input_index >= 0:
            return output.view(inputs[output.input_index])
        if output.memory < 0:
            return output.constant
        if output.memory not in copies:
            memory = self._memory[output.memory]
            copies[output.memory] = torch.empty_like(memory).copy_(memory)
        return output.view(copies[output.memory])

    def _saved_output(self, output: _Output, inputs: list[Any]) -> Any:
        """Return an output that only the backward graph reads: a view of the capture's memory."""
        if output.input_index >= 0:
            buffer = self._buffers.get(output.input_index)
            return output.view(inputs[output.input_index] if buffer is None else buffer.detach())
        return output.constant if output.memory < 0 else output.view(self._memory[output.memory])


def _buffer(like: Tensor) -> Tensor:
    if like.is_conj() or like.is_neg():
        raise CaptureError("an input is a conjugated or negated view")
    return torch.empty_strided(like.size(), like.stride(), dtype=like.dtype, device=like.device)


def _overlaps(tensor: Tensor) -> bool:
    """Return True if elements may share memory, so that a copy cannot write them one by one."""
    extent = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.size(), strict=True)):
        if size > 1 and stride < extent:
            return True
        extent += (size - 1) * stride
    return False


def _flat_view(tensor: Tensor) -> Tensor:
    """Return a view of the memory from the first element to the last one."""
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True))
    return _alias(tensor, (extent,), (1,), 0)  # type: ignore[no-any-return]
