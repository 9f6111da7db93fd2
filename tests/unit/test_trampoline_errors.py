# SPDX-License-Identifier: BSD-3-Clause
"""Errors of entries that are Python methods, interrupts, forks, and streams of another owner."""

from __future__ import annotations

import pytest

from .test_trampolines import START


def test_a_failure_that_was_handled_is_no_cause_of_a_later_error(run_python):
    run_python(
        START
        + """
class Failing(Toy):
    def mem_alloc(self, device, bytes):
        if bytes > 1 << 30:
            raise MemoryError("too large for this chip")
        return super().mem_alloc(device, bytes)
    def stream_synchronize(self, device, stream):
        raise DriverError("the wait failed")
module = torch_outboard.attach(Failing)
with pytest.raises(torch.OutOfMemoryError):
    torch.empty(1 << 31, device="toy")
with pytest.raises(torch_outboard.CaptureError) as caught:
    module.Graph().replay()
assert caught.value.__cause__ is None
with pytest.raises(torch.OutOfMemoryError):
    torch.empty(1 << 31, device="toy")
with pytest.raises(DriverError, match="the wait failed") as caught:
    module.current_stream().native_handle, module.synchronize()
assert isinstance(caught.value.__cause__, DriverError) and str(caught.value.__cause__) == "the wait failed"
"""
    )


def test_an_exception_is_of_its_own_entry_beside_c_functions(run_python):
    run_python(
        START
        + """
@ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32, ctypes.c_uint64)
def wait(self, device, stream):
    return 10

class Mixed(Toy):
    stream_synchronize = ctypes.cast(wait, ctypes.c_void_p).value
    def mem_alloc(self, device, bytes):
        if bytes > 1 << 30:
            raise MemoryError("too large for this chip")
        return super().mem_alloc(device, bytes)
module = torch_outboard.attach(Mixed)
module.current_stream().native_handle
with pytest.raises(torch.OutOfMemoryError):
    torch.empty(1 << 31, device="toy")
with pytest.raises(DriverError, match="stream_synchronize on device 0 failed with ABORTED") as caught:
    module.synchronize()
assert "too large" not in str(caught.value) and caught.value.__cause__ is None
"""
    )


@pytest.mark.parametrize("kind", ["KeyboardInterrupt", "SystemExit"])
def test_an_interrupt_in_an_entry_reaches_the_user_as_itself(run_python, kind):
    run_python(
        START
        + f"""
class Interrupted(Toy):
    is_hit = False
    def stream_synchronize(self, device, stream):
        if self.is_hit:
            raise {kind}
driver = Interrupted()
module = torch_outboard.attach(driver)
ours = torch.ones(4).to("toy")
driver.is_hit = True
for wait in (module.synchronize, module.current_stream().synchronize, ours.cpu):
    with pytest.raises({kind}):
        try:
            wait()
        except Exception as error:
            raise AssertionError("caught as an error") from error
driver.is_hit = False
module.synchronize()
"""
    )


def test_a_fork_beside_a_device_that_opens(run_python):
    run_python(
        START
        + """
opening, go = threading.Event(), threading.Event()
class Slow(Toy):
    def device_open(self, device):
        opening.set()
        assert go.wait(60)
module = torch_outboard.attach(Slow)
thread = threading.Thread(target=lambda: torch.empty(1, device="toy"))
thread.start()
assert opening.wait(60)
pid = os.fork()
if pid == 0:
    status = 1
    try:
        assert module._is_in_bad_fork()
        for use in (lambda: torch.empty(1, device="toy:0"), lambda: torch.empty(1, device="toy:1"), module.synchronize):
            with pytest.raises(RuntimeError, match="was being opened there.*'spawn' start method"):
                use()
        assert torch.ones(2).sum() == 2
        status = 0
    finally:
        os._exit(status)
go.set()
assert os.waitpid(pid, 0)[1] == 0
thread.join()
assert torch.empty(1, device="toy").is_toy
""",
        flags=("-W", "ignore::DeprecationWarning"),
    )


def test_a_fork_after_the_properties_were_asked_for(run_python):
    # They may open the driver's runtime.
    run_python(
        START
        + """
module = torch_outboard.attach(Toy)
module.get_device_properties(0)
pid = os.fork()
if pid == 0:
    status = 1
    try:
        assert module._is_in_bad_fork() and module.get_device_name(0) == "Toy 0"
        with pytest.raises(RuntimeError, match="'spawn' start method"):
            torch.empty(1, device="toy")
        status = 0
    finally:
        os._exit(status)
assert os.waitpid(pid, 0)[1] == 0
""",
        flags=("-W", "ignore::DeprecationWarning"),
    )


EXTERNAL = """
class Owned(Toy):
    gone = set()
    waits = []
    def stream_destroy(self, device, stream):
        self.gone.add(stream)
    def stream_synchronize(self, device, stream):
        self.waits.append(stream)
        if stream in self.gone:
            raise DriverError(f"stream {stream} was destroyed", Status.INVALID_ARGUMENT)
driver = Owned()
module = torch_outboard.attach(driver)
handle = driver.stream_create(0, 0)
external = module.get_stream_from_external(handle)
"""


def test_an_external_stream_whose_owner_destroyed_it_is_reported_once(run_python):
    run_python(
        START
        + EXTERNAL
        + """
module.current_stream().native_handle
external.synchronize()
driver.stream_destroy(0, handle)
driver.waits.clear()
with pytest.raises(ValueError, match="was destroyed"):
    module.synchronize()
assert len(driver.waits) == 2  # the other stream was waited for all the same
module.synchronize()
# Who names it hears of it, and its handle may come again.
with pytest.raises(ValueError, match="was destroyed"):
    external.synchronize()
driver.gone.clear()
assert module.get_stream_from_external(handle) == external
driver.waits.clear()
module.synchronize()
assert handle in driver.waits
"""
    )


@pytest.mark.parametrize("failing", ["stream_synchronize", "event_record, stream_synchronize"])
def test_what_a_destroyed_external_stream_has_used_is_reported_once(run_python, failing):
    """Its memory waits for the stream, which is no use of it: waits for the device still leave the stream out."""
    run_python(
        START
        + EXTERNAL.replace(
            "driver = Owned()",
            """
    def event_record(self, device, stream, event):
        if stream in self.gone and "event_record" in self.failing:
            raise DriverError(f"stream {stream} was destroyed", Status.INVALID_ARGUMENT)
Owned.device_synchronize, Owned.failing = None, FAILING
driver = Owned()
""".replace("FAILING", repr(failing)),
        )
        + """
side = module.Stream()
used, other = (torch.empty(8 << 20, device="toy") for _ in range(2))
used.record_stream(external)
other.record_stream(side)
driver.gone.add(handle)
del used, other
with pytest.raises(ValueError, match="was destroyed"):
    module.synchronize()
for _ in range(3):
    module.synchronize()
    assert module.memory_stats()["active.all.current"] == 1, "only what the lost stream has used is kept"
    module.empty_cache()
    assert module.memory_stats()["segment.all.current"] == 1
# Somebody names its handle, which there is again.
driver.gone.clear()
assert module.get_stream_from_external(handle) == external
module.synchronize()
assert module.memory_stats()["active.all.current"] == 0
module.empty_cache()
assert module.memory_reserved() == 0
"""
    )


def test_an_external_stream_in_a_forked_child(run_python):
    run_python(
        START
        + EXTERNAL
        + """
pid = os.fork()
if pid == 0:
    status = 1
    try:
        event = module.Event()
        uses = external.synchronize, external.query, lambda: event.record(external), lambda: external.native_handle
        for use in uses:
            with pytest.raises(RuntimeError, match="'spawn' start method"):
                use()
        assert not driver.waits
        status = 0
    finally:
        os._exit(status)
assert os.waitpid(pid, 0)[1] == 0
external.synchronize()
""",
        flags=("-W", "ignore::DeprecationWarning"),
    )


def test_a_failing_mem_info_does_not_hide_that_memory_ran_out(run_python):
    run_python(
        START
        + """
class Silent(Toy):
    def mem_alloc(self, device, bytes):
        raise MemoryError
    def mem_info(self, device):
        raise DriverError("the monitor is down")
module = torch_outboard.attach(Silent)
seen = []
module.memory.attach_out_of_memory_observer(lambda *arguments: seen.append(arguments))
with pytest.raises(torch.OutOfMemoryError, match="did not report how much is free.*the monitor is down"):
    torch.empty(1 << 20, device="toy")
assert [arguments[2:] for arguments in seen] == [(0, 0)]
"""
    )
