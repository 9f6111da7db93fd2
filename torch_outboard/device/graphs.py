# SPDX-License-Identifier: BSD-3-Clause
"""Graphs of torch.<name>: work captured once from a stream, replayed many times. See docs/graphs.md."""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils import _pytree as pytree

from torch_outboard import _C
from torch_outboard._errors import CaptureError
from torch_outboard.device import _context

__all__ = ["Graph", "graph", "is_current_stream_capturing", "make_graphed_callables"]

_PoolId: TypeAlias = tuple[int, int]

_MODES = {"default": 0, "global": 1, "thread_local": 2, "relaxed": 3}


def is_current_stream_capturing() -> bool:
    """Return whether a graph is being captured on the current stream of the current device."""
    return _C.is_stream_capturing(torch.accelerator.current_device_index())


class Graph:
    """Captured work of a stream, for replay. Only one thread at a time may use a graph.

    Parameters
    ----------
    keep_graph : bool
        Whether to keep a driver's own graph, which `instantiate` or the first replay then makes executable. Otherwise
        the end of the capture makes it executable. No effect if the core captures.
    """

    def __init__(self, keep_graph: bool = False) -> None:
        self._graph = _C.graph_new(keep_graph)

    def capture_begin(self, pool: _PoolId | Graph | None = None, capture_error_mode: str = "global") -> None:
        """Capture the work queued on the current stream from now on, instead of running it.

        `pool` is the id of a memory pool, or a graph to share one with; the captured work allocates from this pool.

        `capture_error_mode` determines which threads may wait for the whole device meanwhile: none ("global"), all
        except this thread ("thread_local"), or all ("relaxed").

        Raises
        ------
        CaptureError
            The current stream is the default stream, or a capture is under way on it.
        """
        if capture_error_mode not in _MODES:
            raise ValueError(f"capture_error_mode must be one of {', '.join(_MODES)}, not {capture_error_mode!r}")
        _check_optimizers()
        _C.graph_capture_begin(self._graph, _pool_id(pool), _MODES[capture_error_mode])

    def capture_end(self) -> None:
        """End the capture, on the stream that it began on; raise CaptureError if a call could not be captured."""
        _C.graph_capture_end(self._graph)

    def instantiate(self) -> None:
        """Make the captured graph executable, if the driver captures; see `keep_graph`."""
        _C.graph_instantiate(self._graph)

    def replay(self) -> None:
        """Queue the captured work on the current stream and return. Random operators draw fresh numbers."""
        _C.graph_replay(self._graph)

    def reset(self) -> None:
        """Drop the graph and its memory pool, or a capture under way. Waits for the last replay."""
        _C.graph_reset(self._graph)

    def pool(self) -> _PoolId:
        """Return the id of the memory pool, for other graphs to share. Such graphs must not replay at the same time."""
        return _C.graph_pool(self._graph)

    def enable_debug_mode(self) -> None:
        """Do nothing: the data for `debug_dump` is always kept."""

    def debug_dump(self, debug_path: str | os.PathLike[str]) -> None:
        """Write the captured steps to a file, in Graphviz's language.

        Raises
        ------
        NotSupportedError
            The driver captures, not the core.
        """
        text = _C.graph_describe(self._graph)
        with open(debug_path, "w", encoding="utf-8") as file:
            file.write(text)


class graph:
    """Captures a graph in a `with` block, on a separate stream.

    Parameters
    ----------
    cuda_graph : Graph
        The graph to capture into, named like the parameter of `torch.cuda.graph`.
    pool : tuple[int, int] or Graph, optional
        A memory pool to share, from `graph_pool_handle`, `Graph.pool` or a graph.
    stream : torch.Stream, optional
        The stream to capture on; by default a stream that all such blocks share.
    capture_error_mode : str
        As for `Graph.capture_begin`.

    The block waits for the device before it begins. An exception in the block ends the capture and propagates.
    """

    default_capture_stream: torch.Stream | None = None

    def __init__(
        self,
        cuda_graph: Graph,
        pool: _PoolId | Graph | None = None,
        stream: torch.Stream | None = None,
        capture_error_mode: str = "global",
    ) -> None:
        if stream is None:
            index = torch.accelerator.current_device_index()
            default = graph.default_capture_stream
            if default is None or default.device.index != index:
                graph.default_capture_stream = default = torch.Stream(torch.device(_context.name, index))
            stream = default
        self.cuda_graph = cuda_graph
        self.pool = pool
        self.capture_stream = stream
        self.capture_error_mode = capture_error_mode

    def __enter__(self) -> None:
        torch.accelerator.synchronize(self.capture_stream.device)
        if torch.compiler.config.force_cudagraph_gc:
            gc.collect()
        torch.accelerator.memory.empty_cache()
        self.capture_stream.__enter__()
        try:
            self.cuda_graph.capture_begin(self.pool, self.capture_error_mode)
        except BaseException:  # re-raised, also for an interrupt: Python then calls no __exit__
            self.capture_stream.__exit__(None, None, None)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if value is None:
                self.cuda_graph.capture_end()
            else:
                self._give_up(value)
        finally:
            self.capture_stream.__exit__(kind, value, traceback)

    def _give_up(self, reason: BaseException) -> None:
        try:
            self.cuda_graph.reset()
        except Exception as error:  # noqa: BLE001 - added as a note to the first failure
            reason.add_note(f"Giving up the graph failed as well: {error}")


def _refuse_uncapturable(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    if torch.compiler.is_compiling():
        return  # Dynamo traces this hook, but a trace is not a step
    if is_current_stream_capturing() and not all(group.get("capturable", True) for group in optimizer.param_groups):
        raise CaptureError(
            f"{type(optimizer).__name__}.step() cannot be captured in a graph: it counts its steps on the CPU, so "
            "every replay would repeat the same step. Create the optimizer with capturable=True"
        )


@functools.cache
def _check_optimizers() -> None:
    # torch does this for its own devices only. Until the first capture, optimizer steps do not pay
    # for the hook.
    register_optimizer_step_pre_hook(_refuse_uncapturable)


def _pool_id(pool: _PoolId | Graph | None) -> _PoolId:
    if pool is None:
        return (0, 0)
    return pool.pool() if isinstance(pool, Graph) else pool


def make_graphed_callables(
    callables: Callable[..., Any] | Sequence[Callable[..., Any]],
    sample_args: Sequence[Any],
    num_warmup_iters: int = 3,
    allow_unused_input: bool = False,
    pool: _PoolId | None = None,
) -> Any:
    """Return callables whose forward and backward passes replay graphs.

    Parameters
    ----------
    callables : a callable or module, or several
        They share a memory pool, so call them in this order; the backward passes run in the reverse order.
    sample_args : tuple, or a tuple of tuples
        Tensors with the shapes, dtypes and `requires_grad` of every call; one tuple for each callable.
    num_warmup_iters : int
        Eager runs before the capture.
    allow_unused_input : bool
        Whether an input may have no gradient; otherwise such an input raises RuntimeError.
    pool : tuple[int, int], optional
        A memory pool to share.

    A graphed callable takes the tensors of `sample_args` and nothing else. It returns the same static tensors each
    time: clone a result that must outlive the next call. A module is changed in place. It replays in the mode (training
    or evaluation) in which it was captured, and runs eagerly in the other mode.

    Raises
    ------
    RuntimeError
        A module has hooks, or buffers that require grad, or autocast is on with its cache.
    """
    if torch.is_autocast_enabled(_context.name) and torch.is_autocast_cache_enabled():
        raise RuntimeError(
            "make_graphed_callables does not support autocast's cache, which would keep weights that were cast during "
            "the capture. Use torch.autocast(…, cache_enabled=False)"
        )
    many: tuple[Callable[..., Any], ...]
    samples: tuple[tuple[Any, ...], ...]
    if callable(callables):
        many, samples = (callables,), (tuple(sample_args),)
    else:
        many, samples = tuple(callables), tuple(tuple(args) for args in sample_args)
    if len(samples) != len(many):
        raise ValueError(f"sample_args must have arguments for {len(many)} callables, but has them for {len(samples)}")
    for function in many:
        _check_callable(function)
    sections = [_Section(function, args) for function, args in zip(many, samples, strict=True)]

    torch.accelerator.synchronize()
    with torch.Stream(torch.device(_context.name, torch.accelerator.current_device_index())):
        for section in sections:
            section.warm_up(num_warmup_iters, allow_unused_input)
    torch.accelerator.synchronize()

    # Forward passes run in call order and backward passes in reverse order, so they can share a
    # pool.
    shared = _C.new_mempool_id() if pool is None else pool
    for section in sections:
        section.capture_forward(shared)
    for section in reversed(sections):
        section.capture_backward(shared, allow_unused_input)
    graphed = tuple(section.install() for section in sections)
    return graphed[0] if callable(callables) else graphed


def _check_callable(function: Callable[..., Any]) -> None:
    if isinstance(function, torch.nn.Module):
        if function._forward_hooks or function._forward_pre_hooks or function._backward_hooks:
            raise RuntimeError("make_graphed_callables does not support modules with hooks: register hooks afterwards")
        if any(buffer.requires_grad for buffer in function.buffers()):
            raise RuntimeError("make_graphed_callables does not support modules whose buffers require grad")


class _Section:
    """One callable with its static tensors and its two graphs."""

    def __init__(self, function: Callable[..., Any], sample_args: tuple[Any, ...]) -> None:
        self.function = function
        self.sample_args = sample_args
        flat, self.spec = pytree.tree_flatten(sample_args)
        if not all(isinstance(arg, Tensor) for arg in flat):
            raise TypeError("sample_args must contain only tensors, or lists, tuples and dicts of tensors")
        self.arguments: list[Tensor] = flat
        is_module = isinstance(function, torch.nn.Module)
        self.parameters = tuple(function.parameters()) if is_module else ()  # type: ignore[attr-defined]
        self.inputs = (*self.arguments, *self.parameters)
        self.forward = Graph()
        self.backward = Graph()

    def warm_up(self, count: int, allow_unused: bool) -> None:
        for _ in range(count):
            outputs = pytree.tree_leaves(self.function(*self.sample_args))
            wanted = tuple(output for output in outputs if output.requires_grad)
            if wanted:
                self._gradients(wanted, tuple(torch.empty_like(output) for output in wanted), allow_unused)

    def capture_forward(self, pool: _PoolId) -> None:
        with graph(self.forward, pool=pool):
            result = self.function(*self.sample_args)
        outputs, self.output_spec = pytree.tree_flatten(result)
        if not all(isinstance(output, Tensor) for output in outputs):
            raise TypeError("a graphed callable must return only tensors, or lists, tuples and dicts of tensors")
        self.outputs: tuple[Tensor, ...] = tuple(outputs)

    def capture_backward(self, pool: _PoolId, allow_unused: bool) -> None:
        wanted = tuple(output for output in self.outputs if output.requires_grad)
        self.has_grad = tuple(output.requires_grad for output in self.outputs)
        self.output_gradients = tuple(
            torch.empty_like(output) if output.requires_grad else None for output in self.outputs
        )
        self.input_gradients: tuple[Tensor | None, ...] = tuple(None for _ in self.inputs)
        if not wanted:
            return
        given_gradients = tuple(gradient for gradient in self.output_gradients if gradient is not None)
        with graph(self.backward, pool=pool):
            gradients = iter(self._gradients(wanted, given_gradients, allow_unused))
        self.input_gradients = tuple(next(gradients) if tensor.requires_grad else None for tensor in self.inputs)

    def _gradients(
        self, outputs: tuple[Tensor, ...], gradients: tuple[Tensor, ...], allow_unused: bool
    ) -> tuple[Tensor | None, ...]:
        inputs = tuple(tensor for tensor in self.inputs if tensor.requires_grad)
        if not inputs:
            return ()
        return torch.autograd.grad(outputs, inputs, grad_outputs=gradients, only_inputs=True, allow_unused=allow_unused)

    def install(self) -> Callable[..., Any]:
        """Return the callable for the user: the module itself with a new forward, or a function."""
        # Drop the autograd graph, which would keep the parameters' AccumulateGrad nodes on the
        # capture's stream.
        self.outputs = tuple(output.detach() for output in self.outputs)
        apply = _make_function(self)

        def replay(*args: Any) -> Any:
            flat, spec = pytree.tree_flatten(args)
            if spec != self.spec:
                raise TypeError("the arguments of a graphed callable must have the same structure as its sample_args")
            return pytree.tree_unflatten(list(apply(*flat, *self.parameters)), self.output_spec)

        module = self.function
        if not isinstance(module, torch.nn.Module):
            return replay
        eager, captured_mode = module.forward, module.training

        def forward(*args: Any, **kwargs: Any) -> Any:
            if module.training != captured_mode:
                return eager(*args, **kwargs)
            if kwargs:
                raise TypeError("a graphed module takes positional arguments only")
            return replay(*args)

        module.forward = forward
        return module


def _make_function(section: _Section) -> Callable[..., tuple[Tensor, ...]]:
    class Graphed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Tensor) -> tuple[Tensor, ...]:
            for static, tensor in zip(section.arguments, inputs[: len(section.arguments)], strict=True):
                if static.data_ptr() != tensor.data_ptr():
                    static.copy_(tensor)
            section.forward.replay()
            # Mark the returned tensor objects themselves.
            results = tuple(output.detach() for output in section.outputs)
            ctx.mark_non_differentiable(
                *(result for result, has_grad in zip(results, section.has_grad, strict=True) if not has_grad)
            )
            return results

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
            for static, gradient in zip(section.output_gradients, gradients, strict=True):
                if static is not None and static.data_ptr() != gradient.data_ptr():
                    static.copy_(gradient)
            section.backward.replay()
            # Return these tensors, not detached ones: `.grad` would take over the memory of a
            # tensor without other references, and the next replay would overwrite it.
            return section.input_gradients

    return Graphed.apply
