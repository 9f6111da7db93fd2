# SPDX-License-Identifier: BSD-3-Clause
"""Work in child processes, so that a crash or a hang loses only one item."""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any

__all__ = ["HANG_SECONDS", "NoAnswer", "run_in_children"]

HANG_SECONDS = 300
_END_SECONDS = 20  # seconds for a child without further work to exit


@dataclass(frozen=True)
class NoAnswer:
    """The result for an item whose process returned nothing; `kind` is "crash" or "hang"."""

    kind: str
    message: str


class _Child:
    """A child process, its current item, and when it received the item."""

    def __init__(self, work: Callable[..., None], arguments: tuple[Any, ...], item: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(theirs, *arguments), daemon=True)
        self.process.start()
        theirs.close()
        self.give(item)

    def give(self, item: Any) -> None:
        self.item = item
        self.since = time.monotonic()
        self.pipe.send(item)

    def end(self, seconds: float = 0) -> None:
        """End the process, immediately or after waiting up to `seconds` for it to exit on its own."""
        if seconds > 0:
            with contextlib.suppress(OSError):  # the process has ended
                self.pipe.send(None)
            self.process.join(seconds)
        self.process.kill()
        self.process.join()
        self.pipe.close()


def run_in_children(
    work: Callable[..., None],
    arguments: tuple[Any, ...],
    items: Sequence[Any],
    jobs: int,
    hang_seconds: float = HANG_SECONDS,
) -> Iterator[tuple[Any, Any]]:
    """Yield each item with its result, or with a `NoAnswer`, in no particular order.

    Parameters
    ----------
    work : function of a Connection and `arguments`
        Runs in each child, a fresh Python process. It receives items until it receives None. For each item, it sends
        (item, result, whether it accepts another item). A new child replaces a child that accepts no more items.
    jobs : int
        The number of children at a time.
    hang_seconds : float
        The time limit per item, after which the item's child is killed.
    """
    todo = list(reversed(items))
    children = [_Child(work, arguments, todo.pop()) for _ in range(min(jobs, len(todo)))]
    try:
        while children:
            ready = wait([child.pipe for child in children], timeout=min(5, hang_seconds))
            for place, child in reversed(list(enumerate(children))):
                goes_on = False
                if child.pipe in ready:
                    try:
                        item, result, goes_on = child.pipe.recv()
                    except (EOFError, ConnectionResetError):
                        child.process.join()
                        item, result = child.item, NoAnswer("crash", f"the process ended with {child.process.exitcode}")
                elif time.monotonic() - child.since > hang_seconds:
                    item, result = child.item, NoAnswer("hang", f"no answer in {hang_seconds:g} s")
                else:
                    continue
                if todo and goes_on:
                    child.give(todo.pop())
                else:
                    child.end(_END_SECONDS if goes_on else 0)
                    children[place : place + 1] = [_Child(work, arguments, todo.pop())] if todo else []
                yield item, result
    finally:
        for child in children:
            child.end()
