# SPDX-License-Identifier: BSD-3-Clause
"""Two processes that share tensors of a device, run by test_storage.py: `python share.py DRIVER`."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from multiprocessing.reduction import ForkingPickler

import torch
import torch.multiprocessing as mp

import torch_outboard

NAME = sys.argv[1] if __name__ == "__main__" else os.environ["SHARE_DRIVER"]
MIB = 1 << 20
module = torch_outboard.attach(NAME, ipc=True)
device = torch.device(NAME, 0)


def receive(inbox, outbox):
    """Run the other process: it gets a command, then the command's arguments."""
    kept = []
    while True:
        command, *values = inbox.get(timeout=60)
        if command == "stop":
            return
        if command == "die":
            os._exit(7)
        if command == "sum":
            outbox.put([value.sum().item() for value in values])
        if command == "fill":
            values[0].fill_(values[1])
            module.synchronize(device)
            outbox.put(None)
        if command == "keep":
            kept = values
            outbox.put(
                (
                    [value.untyped_storage().data_ptr() for value in kept],
                    [(type(value).__name__, value.requires_grad) for value in kept],
                )
            )
        if command == "resend":
            try:
                ForkingPickler.dumps(values[0])
                outbox.put("nothing was raised")
            except ValueError as error:
                outbox.put(str(error))
        if command == "resize":
            try:
                values[0].resize_(10 * MIB)
                outbox.put("nothing was raised")
            except RuntimeError as error:
                outbox.put(str(error))
        if command == "drop":
            kept = []
        if command == "make":
            kept = [torch.arange(5.0, device=device)]
            outbox.put(kept[0])
        del values
        if command == "drop":
            gc.collect()
            torch.accelerator.memory.empty_cache()
            module.ipc_collect()
            outbox.put(None)


def main() -> None:
    os.environ["SHARE_DRIVER"] = NAME
    context = mp.get_context("spawn")
    to, back = context.Queue(), context.Queue()
    process = context.Process(target=receive, args=(to, back))
    process.start()

    def ask(*command, is_answered=True):
        to.put(command)
        return back.get(timeout=60) if is_answered else None

    before = module.memory_allocated(device)
    # Written a moment ago, at an offset in a segment, as a view at an offset in a storage.
    fives = torch.full((100,), 5.0, device=device)
    ours = torch.arange(1000.0, device=device)
    view = ours[10:20:2]
    assert ask("sum", ours, view, fives[:0], fives) == [499500.0, 70.0, 0.0, 500.0]
    # It is the same memory.
    ask("fill", view, -1.0)
    assert ours.sum().item() == 499500.0 - 70 - 5
    # Tensors of one storage share one there too, in one message or in several.
    parameter = torch.nn.Parameter(torch.ones(4, device=device))
    addresses, kinds = ask("keep", ours, view, parameter)
    assert addresses[0] == addresses[1] != addresses[2]
    assert kinds == [("Tensor", False), ("Tensor", False), ("Parameter", True)]
    # The sender keeps what the receiver uses, and nothing more.
    del ours, view, parameter
    gc.collect()
    module.ipc_collect()
    assert module.memory_allocated(device) >= before + 4096
    ask("drop")
    module.ipc_collect()
    del fives
    assert module.memory_allocated(device) == before, module.memory_allocated(device) - before
    # Many messages under way at once, their tensors dropped by the sender before they arrive.
    count = 200
    for number in range(count):
        to.put(("sum", torch.full((number + 1,), 1.0, device=device)))
    assert [back.get(timeout=60) for _ in range(count)] == [[number + 1.0] for number in range(count)]
    ask("drop")
    module.ipc_collect()
    assert module.memory_allocated(device) == before, module.memory_allocated(device) - before
    # What is received belongs to its sender.
    large = torch.ones(3 * MIB, dtype=torch.uint8, device=device)
    assert "clone" in ask("resend", large)
    assert "resizable" in ask("resize", large)
    assert ask("sum", large) == [3 * MIB]
    # The other way round.
    theirs = ask("make")
    assert theirs.device == device and theirs.tolist() == [0, 1, 2, 3, 4]
    total = theirs + 1
    assert total.sum().item() == 15
    assert len(files_of_senders()) == 2
    del theirs, total
    module.ipc_collect()
    assert len(files_of_senders()) == 1  # our own
    # To oneself.
    again = ForkingPickler.loads(ForkingPickler.dumps(large))
    assert again.untyped_storage().data_ptr() == large.untyped_storage().data_ptr()
    del again
    # A receiver that dies releases its storages.
    ask("keep", large)
    del large
    module.ipc_collect()
    assert module.memory_allocated(device) >= before + 3 * MIB
    ask("die", is_answered=False)
    process.join()
    assert process.exitcode == 7
    module.ipc_collect()
    assert module.memory_allocated(device) == before, module.memory_allocated(device) - before
    # A sender that has ended.
    gone = torch.ones(10, device=device)
    reply = context.Queue()
    sender = context.Process(target=send_and_end, args=(reply,))
    sender.start()
    message = reply.get(timeout=60)
    sender.join()
    try:
        ForkingPickler.loads(message)
    except (RuntimeError, ValueError) as error:
        assert "ended" in str(error) or "gone" in str(error), error
    else:
        raise AssertionError("nothing was raised")
    del gone
    torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
    try:
        ForkingPickler.dumps(torch.ones(8 * MIB, device=device))
    except torch_outboard.NotSupportedError as error:
        assert "expandable" in str(error)
    else:
        raise AssertionError("nothing was raised")
    print("shared")


def files_of_senders() -> list[str]:
    """Return the files of sending processes that this process has open."""
    links = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing itself
            links.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return [path for path in links if "torch_outboard-sent-" in path]


def send_and_end(reply):
    reply.put(bytes(ForkingPickler.dumps(torch.ones(3, device=device))))


if __name__ == "__main__":
    main()
