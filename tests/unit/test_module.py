# SPDX-License-Identifier: BSD-3-Clause
"""torch.<name>: its contents, and the error of each absent part."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from torch_outboard._compat import vector_math

API_TABLE = str(Path(__file__).resolve().parents[2] / "scripts" / "api_table")
MINOR = int(torch.__version__.split(".")[1])


def _names(text: str) -> list[str]:
    return text.split()


# Names that torch itself, then users of CUDA and XPU, find on a device's module.
TORCH_ASKS_FOR = _names(
    """
    is_available device_count current_device set_device current_stream stream Stream Event synchronize device
    get_rng_state set_rng_state default_generators _get_generator is_initialized _initialized _is_in_bad_fork
    manual_seed_all get_amp_supported_dtype _lazy_init memory_stats memory_allocated memory_reserved empty_cache
    memory_summary _utils
    """
)

CUDA_XPU_AND_MTIA = _names(
    """
    current_device current_stream device device_count empty_cache get_device_capability get_device_properties
    get_rng_state get_rng_state_all graph graph_pool_handle init initial_seed is_available is_bf16_supported
    is_initialized manual_seed manual_seed_all max_memory_allocated memory_allocated memory_stats
    reset_peak_memory_stats seed seed_all set_device set_rng_state set_rng_state_all set_stream stream synchronize
    """
)

CUDA_AND_XPU = _names(
    """
    Event Stream StreamContext can_device_access_peer change_current_allocator default_generators device_of
    get_device_name get_arch_list get_gencode_flags get_stream_from_external get_per_process_memory_fraction
    set_per_process_memory_fraction is_current_stream_capturing is_tf32_supported make_graphed_callables
    max_memory_reserved mem_get_info MemPool use_mem_pool memory_reserved memory_snapshot
    memory_stats_as_nested_dict memory_usage reset_accumulated_memory_stats streams clock_rate device_memory_used
    power_draw temperature utilization
    """
)

CHECK = """
import pickle, sys
import pytest, torch, torch_outboard
from torch_outboard import NotSupportedError
from unit.toys import Toy
module = torch_outboard.attach(Toy)
"""


@pytest.fixture(scope="module")
def names(run_python):
    answer = run_python(
        CHECK
        + "from torch_outboard.device import unsupported\n"
        + "print(*module.__all__, *(name for name in dir(module) if name.startswith('_')), '_initialized')\n"
        + "print(*unsupported.__all__)"
    )
    return [set(line.split()) for line in answer.stdout.splitlines()]


def test_it_has_what_is_expected_of_a_device(names):
    there, _ = names
    for expected in (TORCH_ASKS_FOR, CUDA_XPU_AND_MTIA, CUDA_AND_XPU):
        assert set(expected) <= there


def test_every_difference_from_the_in_tree_devices_has_a_reason(run_python):
    run_python(
        CHECK
        + """
from torch_outboard.device import parity
assert parity.unexplained(module) == []
del parity.ABSENT["CUDAGraph"], parity.OURS["Graph"]
parity.ABSENT["synchronize"] = "a wrong entry"
assert parity.unexplained(module) == [
    "only torch.<name> has Graph, which is not in OURS",
    "synchronize is in ABSENT, but torch.<name> has it",
    "torch.cuda or torch.xpu has CUDAGraph, which is not in ABSENT",
]
"""
    )


@pytest.mark.skipif(not torch.__version__.startswith("2.13"), reason="the page is made with torch 2.13")
def test_the_page_of_names_is_up_to_date(run_python):
    run_python(
        f"import runpy, sys; sys.argv = ['api_table', '--check']; runpy.run_path({API_TABLE!r}, run_name='__main__')"
    )


def test_what_is_not_there_says_so(run_python):
    run_python(
        CHECK
        + """
from torch_outboard.device import unsupported
for name in unsupported.__all__:
    with pytest.raises(NotSupportedError, match=f"torch.toy.{name} is not supported: "):
        getattr(module, name)()
with pytest.raises(AttributeError, match="module 'torch.toy' has no attribute 'nothing'"):
    module.nothing
with pytest.warns(UserWarning, match="Disabling autocast"):
    with torch.autocast("toy"):
        assert not torch.is_autocast_enabled("toy")
with torch.autocast("toy", enabled=False):
    pass
"""
    )


def test_it_is_a_module_proper(run_python):
    run_python(
        CHECK
        + """
import types
assert type(module) is types.ModuleType and module.__name__ == "torch.toy"
assert sys.modules["torch.toy"] is module is torch.get_device_module("toy") is torch.toy
import torch.toy.memory, torch.toy.random
assert torch.toy.memory.memory_allocated is torch.toy.memory_allocated
assert torch._C._get_accelerator().type == "toy"
assert torch.utils.backend_registration._get_custom_mod_func("device_count")() == 2
for owner in (torch.Tensor, torch.UntypedStorage, torch.TypedStorage, torch.nn.utils.rnn.PackedSequence):
    assert hasattr(owner, "toy") and hasattr(owner, "is_toy")
assert hasattr(torch.nn.Module, "toy")
assert "torch._dynamo" not in sys.modules and "sympy" not in sys.modules
"""
    )


def test_devices_and_their_arguments(run_python):
    run_python(
        CHECK
        + """
assert module.get_device_name("toy:1") == module.get_device_name(1) == module.get_device_name(torch.device("toy", 1))
missing = torch.AcceleratorError
for wrong, kind in (("cpu", ValueError), ("toy:7", missing), (7, missing), (300, missing), (1.5, TypeError)):
    with pytest.raises(kind):
        module.get_device_name(wrong)
with pytest.raises(ValueError, match="expected a toy device, got cpu"):
    module.synchronize("cpu")
for wrong in (2, "toy:2"):
    with pytest.raises(torch.AcceleratorError, match="out of range"):
        module.set_device(wrong)
module.set_device(-1)
assert module.current_device() == 0
with module.device("toy:1"):
    assert module.current_device() == 1
    with module.device(None), module.device(-1):
        assert module.current_device() == 1
    with module.device_of(torch.empty(1, device="toy:0")):
        assert module.current_device() == 0
    with module.device_of(torch.empty(1)):
        assert module.current_device() == 1
    with pytest.raises(KeyError), module.device(0):
        raise KeyError
    assert module.current_device() == 1
assert module.current_device() == 0
properties = module.get_device_properties(0)
assert pickle.loads(pickle.dumps(properties)) == properties
with pytest.raises(AttributeError):
    properties.name = "other"
assert module._utils._get_device_index("toy:1") == 1
assert module.can_device_access_peer(0, 1) is False
assert module.get_arch_list() == [] and module.is_tf32_supported() is False
"""
    )


def test_streams_and_events_are_those_of_torch(run_python):
    run_python(
        CHECK
        + """
stream = module.Stream()
assert type(stream) is torch.Stream and isinstance(stream, module.Stream) and stream.device == torch.device("toy:0")
assert module.Stream(1).device_index == module.Stream("toy:1", priority=-1).device_index == 1
assert not isinstance(3, module.Stream) and not isinstance(module.Event(), module.Stream)
event = module.Event(enable_timing=True)
assert type(event) is torch.Event and isinstance(event, module.Event)
assert issubclass(torch.Stream, module.Stream)
with pytest.raises(TypeError, match="unexpected keyword"):
    module.Stream(colour=1)
with pytest.raises(NotSupportedError):
    module.Event(external=True)
default = module.default_stream()
assert default == module.current_stream() and default.stream_id == 0
same = module.Stream(stream_id=stream.stream_id, device_index=0, device_type=stream.device_type)
assert same == stream and hash(same) == hash(stream)
for context in (module.stream(stream), module.StreamContext(stream)):
    with context:
        assert module.current_stream() == stream
        with module.stream(None), module.StreamContext(None):
            assert module.current_stream() == stream
        with module.stream(stream), context:
            assert module.current_stream() == stream
        assert module.current_stream() == stream
    assert module.current_stream() == default
other = module.Stream(1)
with module.StreamContext(other):
    assert module.current_device() == 1 and module.current_stream() == other
assert module.current_device() == 0 and module.current_stream(1) == module.default_stream(1)
module.set_stream(other)
assert module.current_device() == 1
module.set_stream(None)
module._set_stream_by_id(stream.stream_id, 0, stream.device_type)
assert module.current_stream(0) == stream and module._get_current_raw_stream(0) == stream.native_handle
external = module.get_stream_from_external(12345, 0)
assert external.native_handle == 12345 and external == module.ExternalStream(12345, 0) != stream
with pytest.raises(torch.AcceleratorError, match="out of range"):
    module.default_stream(5)
assert module.is_current_stream_capturing() is False
import copy
for thing in (stream, event):
    for refused in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot pickle"):
            refused(thing)
with pytest.raises(NotImplementedError, match="ipc is not supported"):
    module.Event(interprocess=True).ipc_handle()
with pytest.raises(NotImplementedError, match="ipc is not supported"):
    torch.Event.from_ipc_handle(torch.device("toy:0"), bytes(64))
unknown = module.Stream(stream_id=99999, device_index=0, device_type=stream.device_type)
for use in (unknown.synchronize, unknown.query, lambda: module.set_stream(unknown), lambda: event.record(unknown)):
    with pytest.raises(ValueError, match="no stream with id 99999"):
        use()
pool = {module.Stream().stream_id for _ in range(70)}
assert len(pool) == 32
"""
    )


def test_random_states(run_python):
    run_python(
        CHECK
        + """
torch.manual_seed(5)
assert [generator.initial_seed() for generator in module.default_generators] == [5, 5]
assert module.default_generators[1] is module._get_generator(torch.device("toy:1"))
state = module.get_rng_state("toy:1")
assert state.dtype == torch.uint8 and state.numel() == 16 and state.device.type == "cpu"
module.manual_seed_all(6)
module.set_rng_state(state, "toy:1")
assert module.default_generators[1].initial_seed() == 5 and module.initial_seed() == 6
states = module.get_rng_state_all()
module.seed_all()
first, second = (generator.initial_seed() for generator in module.default_generators)
assert first == second
module.seed()
assert module.initial_seed() != second
module.set_rng_state_all(states)
assert [generator.initial_seed() for generator in module.default_generators] == [6, 5]
with torch.random.fork_rng(devices=[0, 1], device_type="toy"):
    torch.manual_seed(9)
assert [generator.initial_seed() for generator in module.default_generators] == [6, 5]
"""
    )


def test_memory_statistics(run_python):
    run_python(
        CHECK
        + """
module.empty_cache()
tensor = torch.empty(1000, device="toy")
assert module.memory_allocated() == module.memory_stats()["allocated_bytes.all.current"] >= 4000
assert module.memory_stats_as_nested_dict()["allocated_bytes"]["all"]["current"] == module.memory_allocated()
assert module.memory_reserved() == module.memory_cached() >= module.memory_allocated()
del tensor
assert module.memory_allocated() == 0 < module.max_memory_allocated()
module.reset_peak_memory_stats()
assert module.max_memory_allocated() == 0
assert module.memory_allocated(1) == 0
free, total = module.mem_get_info()
assert module.device_memory_used() == total - free
summary = module.memory_summary()
assert "Allocated memory" in summary and "small pool" in summary
assert {len(line) for line in summary.splitlines()} == {77}
assert "small pool" not in module.memory_summary(abbreviated=True)
module.empty_cache()
assert module.memory_reserved() == 0
"""
    )


def test_dynamo_captures_streams_and_events_whole(run_python):
    # Up to torch 2.11, Dynamo knows only the constructors of torch's own classes.
    owner = "torch" if MINOR < 13 else "torch.toy"
    run_python(
        CHECK
        + f"""
outer = module.Stream()
def fork(x):
    stream = {owner}.Stream(priority=-1)
    event = {owner}.Event()
    event.record()
    with stream:
        event.wait()
        y = x.view(-1)
    with torch.toy.stream(outer):
        y = y.view(2, 2)
    torch.toy.current_stream().wait_stream(outer)
    torch.toy.synchronize()
    return y if isinstance(outer, torch.toy.Stream) and not isinstance(outer, torch.toy.Event) else x
compiled = torch.compile(fork, backend="eager", fullgraph=True)
x = torch.empty(4, device="toy")
assert compiled(x).shape == (2, 2)
"""
    )


def test_torch_still_needs_help_with_the_dlpack_device(run_python):
    run_python(
        """
import torch, torch_outboard
from torch_outboard._compat import every_torch
assert every_torch.needs_dlpack_device(), "upstream knows renamed devices: remove name_dlpack_device"
"""
    )


def test_torch_still_needs_help_with_shapes_that_depend_on_the_device(run_python):
    run_python(
        """
import torch, torch_outboard
from torch_outboard._compat import every_torch
assert every_torch.needs_hint_cpu(), "upstream asks devices out of tree: remove hint_cpu"
before = torch.linalg.svd(torch.empty(3, 4, device="meta")).Vh.stride()
torch_outboard.attach("sim")
torch.linalg.svd(torch.ones(3, 4, device="sim"))
assert torch.linalg.svd(torch.empty(3, 4, device="meta")).Vh.stride() == before, "meta tensors of others are as before"
"""
    )


@pytest.mark.skipif(MINOR > 13, reason="a later torch may have a later oneMKL")
def test_torch_still_needs_first_calls_on_one_thread():
    assert vector_math.needs_initialize_vector_math(), (
        "no supported torch has oneMKL before 2025: remove vector_math.py"
    )


def test_functions_of_one_number_are_called_once_on_one_thread(run_python):
    run_python(
        """
import torch, torch_outboard
from torch_outboard._compat import vector_math
from torch.utils._python_dispatch import TorchDispatchMode
class Calls(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if args and isinstance(args[0], torch.Tensor):
            made.append((function.overloadpacket.__name__, args[0].dtype, args[0].numel()))
        return function(*args, **(kwargs or {}))
made = []
vector_math.needs_initialize_vector_math = lambda: True
with Calls():
    vector_math.initialize_vector_math()
for dtype in (torch.float32, torch.float64):
    for name in ("exp", "erf", "log", "sqrt", "tanh"):
        assert made.count((name, dtype, 1)) == 1, made
vector_math.needs_initialize_vector_math = lambda: False
made.clear()
with Calls():
    vector_math.initialize_vector_math()
assert not made
"""
    )


def test_the_sanitizer_by_its_variable(run_python):
    code = """
import torch, torch_outboard
module = torch_outboard.attach("sim")
x = torch.ones(4, device="sim")
module.synchronize()
for stream in (module.Stream(), module.Stream()):
    with module.stream(stream):
        x.add_(1)
"""
    assert run_python(code).stderr == ""
    assert run_python(code, env={"OUTBOARD_SANITIZER": "1"}).stderr.count("a possible race") == 1
    raised = run_python(code, env={"OUTBOARD_SANITIZER": "raise"}, status=1).stderr
    assert "StreamRaceError: a possible race" in raised
    wrong = run_python(code, env={"OUTBOARD_SANITIZER": "yes"}, status=1).stderr
    assert "ValueError: OUTBOARD_SANITIZER must be 0, 1 or raise, not 'yes'" in wrong


def test_registered_memory_is_pinned_before_anything_else_is_done(run_python):
    """torch takes no memory for pinned before the device type has been initialised through torch."""
    run_python(
        """
import torch, torch_outboard
module = torch_outboard.attach("sim")
host = torch.arange(10.0)
module.memory.host_register(host)
assert host.is_pinned() and not torch.ones(4).is_pinned()
"""
    )
