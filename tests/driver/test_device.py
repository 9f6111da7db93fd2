# SPDX-License-Identifier: BSD-3-Clause
"""The device module, guards, `torch.accelerator`, and use from a forked child."""

from __future__ import annotations

import os
import select
import signal
import threading
import warnings

import pytest
import torch

from .support import module_of

CHILD_SECONDS = 120


def test_the_module_describes_the_device(device, driver_name):
    module = module_of(device)
    assert module is getattr(torch, driver_name)
    assert module.is_available()
    assert module.device_count() == torch.accelerator.device_count() >= 1
    assert module.current_device() == 0
    assert isinstance(module.get_device_name(device), str) and module.get_device_name(device)
    assert module.get_device_properties(device).name == module.get_device_name(device)
    torch.empty(1, device=device)
    assert module.is_initialized()


def test_the_accelerator_is_this_device(device, driver_name):
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator().type == driver_name
    assert torch._C._get_accelerator().type == driver_name


def test_guards_switch_and_restore(device, second_device):
    module = module_of(device)
    with module.device(second_device):
        assert module.current_device() == second_device.index
        assert torch.ones(1, device=device.type).device == second_device
        with pytest.raises(KeyError), module.device(device):
            assert module.current_device() == device.index
            raise KeyError
        assert module.current_device() == second_device.index
    assert module.current_device() == device.index
    with torch.accelerator.device_index(second_device.index):
        assert torch.accelerator.current_device_index() == second_device.index
    with module.device_of(torch.ones(1, device=second_device)):
        assert module.current_device() == second_device.index
    module.set_device(second_device)
    assert module.current_device() == second_device.index
    module.set_device(device)
    with module.device(-1), module.device(None):
        assert module.current_device() == device.index


def test_an_operator_runs_on_its_tensors_device(device, second_device):
    theirs = torch.arange(4.0, device=second_device)
    assert module_of(device).current_device() == device.index
    result = (theirs * 2).sum() + torch.nn.functional.relu(theirs).max()
    assert result.device == second_device and result.item() == 15
    assert module_of(device).current_device() == device.index


def test_the_current_device_belongs_to_a_thread(device, second_device):
    seen = []
    with module_of(device).device(second_device):
        thread = threading.Thread(target=lambda: seen.append(module_of(device).current_device()))
        thread.start()
        thread.join()
    assert seen == [0]


def test_a_device_out_of_range_is_refused(device):
    module = module_of(device)
    count = module.device_count()
    for call in (module.set_device, module.synchronize, module.get_device_properties):
        with pytest.raises(torch.AcceleratorError, match=str(count)):
            call(count)
    assert module.current_device() == device.index


def test_a_device_of_another_type_is_refused(device):
    with pytest.raises((RuntimeError, ValueError), match="(?i)cpu"):
        module_of(device).set_device(torch.device("cpu"))


def in_forked_child(work):
    """Run `work` in a forked child and return its text; fail if the child dies or hangs."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Python 3.12 warns of a fork with threads, which is the subject of this test.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        # A CUDA build of torch warns here where it has a GPU of its own.
        warnings.simplefilter("ignore", UserWarning)
        try:
            os.write(writing, work().encode()[:4000])
        except BaseException as error:
            os.write(writing, f"child failed: {type(error).__name__}: {error}".encode()[:4000])
        finally:
            os._exit(0)
    os.close(writing)
    try:
        if not select.select([reading], [], [], CHILD_SECONDS)[0]:
            os.kill(child, signal.SIGKILL)
            pytest.fail("the forked child hangs")
        return os.read(reading, 4096).decode()
    finally:
        os.close(reading)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) in (0, -signal.SIGKILL)


# In a process of its own: torch's autograd refuses to run in a child of a process in which a
# backward pass has run on a device.
FORK = """
import os, sys, warnings, torch, torch_outboard
warnings.simplefilter("ignore")
device = torch_outboard.attach(sys.argv[1]).__name__.rpartition(".")[2]
ours = torch.ones(4, device=device)
child = os.fork()
if child == 0:
    messages = []
    for use in (
        lambda: torch.ones(2, device=device),
        lambda: ours + 1,
        lambda: ours.cpu(),
        lambda: torch.accelerator.synchronize(device),
    ):
        try:
            use()
        except RuntimeError as error:
            messages.append(str(error))
    host = torch.arange(4.0, requires_grad=True)
    (host * host).sum().backward()
    is_reported = len(messages) == 4 and all("spawn" in message for message in messages)
    print(messages, host.grad.tolist(), flush=True)
    os._exit(0 if is_reported and host.grad.tolist() == [0, 2, 4, 6] else 3)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
assert (ours + 1).tolist() == [2] * 4
"""


def test_a_forked_child_is_advised_to_spawn_and_goes_on_with_the_cpu(run_python, request):
    run_python(FORK, request.config.getoption("--driver"), env={"OUTBOARD_FALLBACK": "silent"})


def test_a_forked_child_may_drop_the_parents_tensors(device):
    kept = [torch.ones(1 << 12, device=device) for _ in range(4)]
    pinned = torch.ones(1 << 12).pin_memory()

    def work():
        nonlocal pinned
        kept.clear()
        pinned = None
        torch.manual_seed(3)
        return "fine"

    assert in_forked_child(work) == "fine"
    assert sum(tensor.sum().item() for tensor in kept) == 4 << 12
    assert pinned.sum().item() == 1 << 12
