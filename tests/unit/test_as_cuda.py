# SPDX-License-Identifier: BSD-3-Clause
"""Programs that say "cuda", on a driver's devices."""

from __future__ import annotations

import pytest

START = """
import io, sys, threading, warnings
import torch
import torch_outboard
cuda = torch_outboard.as_cuda("sim", capability=(8, 6))
"""


def test_training_has_the_cpus_numbers(run_python):
    """A step with a side stream, pinned memory, checkpoints, autocast and a scaler, written for CUDA."""
    run_python(
        START
        + """
from torch import nn
from torch.utils.checkpoint import checkpoint
found = []
for device in ("cpu", "cuda"):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, fused=device == "cuda")
    scaler = torch.amp.GradScaler(device)
    x, y = torch.randn(8, 16), torch.randint(4, (8,))
    if device == "cuda":
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x, y = (tensor.pin_memory().to(device, non_blocking=True) for tensor in (x, y))
        torch.cuda.current_stream().wait_stream(side)
        x.record_stream(torch.cuda.current_stream())
    losses = []
    for _ in range(3):
        with torch.autocast(device_type=device, dtype=torch.bfloat16):
            assert torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == torch.bfloat16
            loss = nn.functional.cross_entropy(checkpoint(net, x, use_reentrant=False).float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item())
    found.append(losses)
torch.testing.assert_close(*found, atol=2e-2, rtol=2e-2)
assert torch.cuda.memory_allocated() > 0 and torch.cuda.max_memory_allocated("cuda:0") > 0
"""
    )


def test_streams_events_and_what_stands_below_torch_cuda(run_python):
    run_python(
        START
        + """
stream, (start, end) = torch.cuda.current_stream(), (torch.cuda.Event(enable_timing=True) for _ in range(2))
stream.record_event(start)
torch.cuda._sleep(50_000_000)
stream.record_event(end)
assert not end.query() and stream.wait_event(start) is None
end.synchronize()
assert start.elapsed_time(end) >= 45
other = torch.Event("cuda", enable_timing=True)
other.record()
other.synchronize()
assert start.elapsed_time(other) > 0 and isinstance(other, torch.Event) and isinstance(start, torch.cuda.Event)

side = torch.cuda.Stream()
torch._C._cuda_setStream(stream_id=side.stream_id, device_index=side.device_index, device_type=side.device_type)
assert torch.cuda.current_stream() == side

assert not torch.is_autocast_enabled()
torch.set_autocast_enabled(True)
assert torch.is_autocast_enabled() and torch.is_autocast_enabled("cuda")
torch.set_autocast_enabled("cuda", False)
assert not torch.is_autocast_enabled() and torch.cuda.get_allocator_backend() == "native"

storage = torch.UntypedStorage(16, device="cuda")
assert storage.nbytes() == 16 and type(storage) is torch.UntypedStorage and torch.UntypedStorage([1, 2])[1] == 2
torch.save(torch.ones(2), file := io.BytesIO())
file.seek(0)
try:
    torch.load(file, "cuda0")
except RuntimeError as error:
    assert "Invalid device string: 'cuda0'" in str(error)
else:
    raise AssertionError("cuda0 is no device")
torch.cuda.memory._record_memory_history()
kept = torch.ones(1 << 10, device="cuda")
assert any(entry["action"] == "alloc" for entry in torch.cuda.memory._snapshot()["device_traces"][0])
cuda.close()
assert hasattr(torch._C, "_cuda_setStream") == (torch.version.cuda is not None)
assert torch.UntypedStorage(4).nbytes() == 4
assert "__new__" not in vars(torch.UntypedStorage)
"""
    )


def test_devices_are_called_cuda(run_python):
    run_python(
        START
        + """
assert torch.cuda.is_available() and torch.cuda.get_device_capability() == (8, 6)
x = torch.ones(2, 3, device="cuda:1")
assert x.device == torch.device("cuda", 1) and x.device.type == "cuda" and x.is_cuda and x.get_device() == 1
assert x.cuda().device.index == 0 and x.cuda(1).device.index == 1 and x.cpu().cuda("cuda:1").device.index == 1
assert not x.cpu().is_cuda and x.to("cpu").device.type == "cpu"
assert "device='cuda:1'" in repr(x) and x.type() == "torch.cuda.FloatTensor"
assert isinstance(x, torch.cuda.FloatTensor) and not isinstance(x.half(), torch.cuda.FloatTensor)
assert not isinstance(x.cpu(), torch.cuda.FloatTensor) and torch.cuda.HalfTensor([1, 2]).dtype == torch.float16
assert torch.accelerator.current_accelerator().type == "cuda"
with torch.device("cuda"):
    assert torch.zeros(1).is_cuda
with torch.cuda.device(1):
    assert torch.cuda.current_device() == 1 and torch.ones(1).cuda().device.index == 1
generator = torch.Generator(device="cuda").manual_seed(3)
assert generator.device.type == "cuda" and isinstance(torch.cuda.default_generators[0], torch.Generator)
first = torch.randn(3, device="cuda", generator=generator)
assert torch.equal(first, torch.randn(3, device="cuda", generator=generator.manual_seed(3)))
event = torch.cuda.Event(enable_timing=True)
event.record()
stream = torch.cuda.Stream("cuda:1")
assert isinstance(torch.cuda.current_stream(), torch.cuda.Stream) and isinstance(stream, torch.Stream)
assert stream.device == torch.device("cuda:1") and not isinstance(event, torch.cuda.Stream)
graph, static = torch.cuda.CUDAGraph(), torch.zeros(2, device="cuda")
with torch.cuda.graph(graph):
    result = static + 1
static.fill_(4)
graph.replay()
assert result.tolist() == [5, 5]
file = io.BytesIO()
torch.save({"x": x}, file)
for where, index in ((None, 1), ("cuda:0", 0), (torch.device("cuda:0"), 0), ({"cuda:1": "cuda:0"}, 0)):
    file.seek(0)
    assert torch.load(file, map_location=where)["x"].device == torch.device("cuda", index), where
file.seek(0)
assert torch.load(file, map_location="cpu")["x"].device.type == "cpu"
with torch.random.fork_rng(device_type="cuda"):
    torch.manual_seed(1)
"""
    )


def test_threads_hooks_and_workers(run_python):
    run_python(
        START
        + """
seen = []
x = torch.ones(2, device="cuda", requires_grad=True)
x.register_hook(lambda grad: seen.append(grad.is_cuda and torch.ones(1, device="cuda").device.type))
thread = threading.Thread(target=lambda: seen.append(torch.ones(1, device="cuda").device.type))
thread.start()
thread.join()
(x * 2).sum().backward()
assert seen == ["cuda", "cuda"], seen
rows = torch.utils.data.TensorDataset(torch.arange(8.0))
for batch, in torch.utils.data.DataLoader(rows, 4, num_workers=1, pin_memory=True):
    assert batch.is_pinned() and batch.cuda(non_blocking=True).is_cuda
"""
    )


def test_all_is_undone(run_python):
    run_python(
        """
import threading, warnings
import pytest, torch, torch_outboard
before = {name: value for name, value in vars(torch.cuda).items()}
registry = torch.serialization._package_registry
others = torch.load, torch.Generator, torch.autocast.__init__, threading.Thread.start, list(registry)
with torch_outboard.as_cuda("sim") as running:
    patches = running.patches()
    assert {"torch.cuda.memory_allocated", "Thread.start"} <= {*patches}
    assert torch_outboard.as_cuda.patches() == patches
    assert torch.ones(1, device="cuda").is_cuda
    with pytest.warns(UserWarning, match="nvtx does nothing"):
        torch.cuda.nvtx.range_push("step")
    with pytest.raises(torch_outboard.NotSupportedError, match="close it"):
        torch_outboard.as_cuda()
    with pytest.raises(torch_outboard.NotSupportedError, match="cudaDeviceReset"):
        torch.cuda.cudart().cudaDeviceReset()
    with pytest.raises(torch_outboard.NotSupportedError, match="torch.cuda.current_blas_handle"):
        torch.cuda.current_blas_handle()
assert {name: value for name, value in vars(torch.cuda).items()} == before
assert others == (torch.load, torch.Generator, torch.autocast.__init__, threading.Thread.start, registry)
assert torch_outboard.as_cuda.patches() == {}
with pytest.raises((AssertionError, RuntimeError)):
    torch.ones(1, device="cuda")
with pytest.raises(torch_outboard.RegistrationError, match="is already attached"):
    torch_outboard.as_cuda("null")
torch.cuda.is_available = lambda: True
torch.version.cuda = "13.0"
with pytest.raises(torch_outboard.NotSupportedError, match="beside_cuda"):
    torch_outboard.as_cuda()
torch_outboard.as_cuda(beside_cuda=True).close()
"""
    )


def test_a_driver_must_be_known(run_python):
    run_python(
        """
import pytest, torch, torch_outboard
with pytest.raises(torch_outboard.RegistrationError, match="no driver is attached: name one"):
    torch_outboard.as_cuda()
with pytest.raises(torch_outboard.RegistrationError, match="no driver is called 'nope'"):
    torch_outboard.as_cuda("nope")
assert torch_outboard.as_cuda.patches() == {} and not torch.cuda.is_available()
"""
    )


@pytest.mark.parametrize("backend", ["nccl", "cpu:gloo,cuda:nccl"])
def test_distributed(run_python, tmp_path, backend):
    run_python(
        START
        + f"""
import torch.distributed as dist
dist.init_process_group({backend!r}, init_method="file://{tmp_path}/store", rank=0, world_size=1)
assert dist.get_backend() == "nccl" or "," in {backend!r}
x = torch.ones(3, device="cuda")
dist.all_reduce(x)
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2).cuda(), device_ids=[0])
net(x).sum().backward()
assert all(parameter.grad.is_cuda for parameter in net.parameters())
dist.destroy_process_group()
"""
    )


PROGRAM = """
import sys, torch
from torch.cuda import memory_allocated
x = torch.ones(4, device="cuda:1")
assert memory_allocated(1) > 0 and torch.cuda.get_device_capability(x.device) == (7, 5)
print(sys.argv[1:], x.device)
sys.exit(int(sys.argv[1]))
"""


def test_the_command(run_python, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    words = "run", "--driver", "sim", "--as-cuda", "--capability", "7", "5", str(program), "3"
    done = run_python("from torch_outboard_command import main; main()", *words, status=3, fresh=True)
    assert done.stdout == "['3'] cuda:1\n" and " s in total." in done.stderr
    wrong = run_python(
        "from torch_outboard_command import main; main()", "run", "--driver", "nope", str(program), status=1, fresh=True
    )
    assert "no driver is called 'nope'" in wrong.stderr


def test_pytest_takes_the_option(run_python, tmp_path):
    (tmp_path / "conftest.py").write_text(
        "from torch.cuda import is_available\nassert is_available()\n", encoding="utf-8"
    )
    (tmp_path / "test_it.py").write_text(
        "import torch\ndef test_it():\n    assert torch.ones(1).cuda().is_cuda\n", encoding="utf-8"
    )
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:outboard_race", "-p", "torch_outboard_pytest", str(tmp_path)]
    code = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
    for workers in ((), ("-n1",)):
        assert "1 passed" in run_python(code, *options, *workers, "--outboard-as-cuda=sim").stdout
    wrong = run_python(code, *options, "--outboard-as-cuda=nope", status=4)
    assert "no driver is called 'nope'" in wrong.stdout + wrong.stderr


def test_a_driver_may_be_named_by_its_class(run_python):
    run_python(
        """
import torch, torch_outboard
torch_outboard.attach("unit.toys:Toy")
torch_outboard.as_cuda("unit.toys:Toy").close()
assert torch_outboard.as_cuda().device_name == torch_outboard.attached_driver().name
"""
    )


def test_compiled_programs(run_python):
    """Dynamo compares devices as the program does, and Inductor compiles for the driver's devices."""
    run_python(
        START
        + """
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)).cuda()
x = torch.randn(4, 8)

def function(x):
    y = net(x)
    if x.is_cuda and y.is_cuda:
        y = y + 1
    if x.device.type == "cuda" and y.device == torch.device("cuda:0") and torch.cuda.is_available():
        y = y * torch.full((4,), 3.0, device=y.device)
    return y + torch.arange(4).cuda() + torch.zeros(4, device="cuda")

found = []
for run in (function, torch.compile(function, fullgraph=True)):
    net.zero_grad()
    result = run(x.cuda())
    result.sum().backward()
    assert result.is_cuda
    found.append((result.detach().cpu(), net[0].weight.grad.cpu()))
torch.testing.assert_close(*found)
before = torch._dynamo.variables.tensor.TensorVariable.method_attr_device
cuda.close()
assert torch._dynamo.variables.tensor.TensorVariable.method_attr_device is not before
"""
    )


def test_an_index_alone_is_a_cuda_device(run_python):
    run_python(
        START
        + """
assert torch.device(1) == torch.device("cuda:1") and torch.ones(1, device=torch.device(1)).device.index == 1
assert torch.ones(1, device=1).is_cuda and torch.device("cpu").type == "cpu"
"""
    )


def test_processes_that_are_started_afresh(run_python, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import subprocess, sys\n"
        "code = 'import torch; print(torch.ones(1).cuda().device, torch.cuda.get_device_capability())'\n"
        "print(subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True).stdout)\n",
        encoding="utf-8",
    )
    words = "run", "--driver", "sim", "--as-cuda", "--capability", "7", "5", str(program)
    done = run_python("from torch_outboard_command import main; main()", *words, fresh=True)
    assert "cuda:0 (7, 5)" in done.stdout
    code = "import torch; assert not torch.cuda.is_available()"
    wrong = run_python(code, fresh=True, env={"OUTBOARD_DRIVER": "sim", "OUTBOARD_AS_CUDA": "fast"})
    assert "OUTBOARD_AS_CUDA=fast has no effect" in wrong.stderr


def test_objects_are_torch_cudas(run_python):
    """What libraries ask of streams, graphs, properties, storages, and the functions below torch.cuda."""
    run_python(
        START
        + """
import ctypes, uuid
import pytest
stream = torch.cuda.Stream(priority=-1)
for one in (stream, torch.cuda.current_stream(), torch.cuda.default_stream(), torch.cuda.Stream(device="cuda:1")):
    assert type(one) is torch.cuda.Stream and torch.Stream in type(one).mro() and "torch.cuda.Stream" in repr(one)
assert torch.cuda.default_stream().cuda_stream == 0 != stream.cuda_stream
assert torch.cuda.ExternalStream(stream.cuda_stream).cuda_stream == stream.cuda_stream
same = torch.cuda.Stream(stream_id=stream.stream_id, device_index=0, device_type=stream.device_type)
assert same == stream and hash(same) == hash(stream) and not isinstance(torch.Stream("cuda"), torch.cuda.Stream)
with torch.cuda.stream(stream):
    assert torch.cuda.current_stream() == stream
    x = torch.ones(3, device="cuda")
    event = stream.record_event()
assert torch.Event in type(event).mro() and isinstance(event, torch.cuda.Event)
x.record_stream(torch.cuda.current_stream())
event.wait(torch.cuda.current_stream())
class Own(torch.cuda.Stream):
    pass
assert type(Own()) is Own and isinstance(Own(), torch.cuda.Stream) and not isinstance(stream, Own)

found = torch.cuda.get_device_properties(0)
assert (found.major, found.minor) == (8, 6) == torch.cuda.get_device_capability()
assert isinstance(found.uuid, uuid.UUID) and len(str(found.uuid)) == 36 and len(found.uuid.bytes) == 16

graph = torch.cuda.CUDAGraph()
with pytest.warns(UserWarning, match="The CUDA Graph is empty"), torch.cuda.graph(graph):
    pass
graph.reset()
with warnings.catch_warnings(), torch.cuda.graph(graph):
    warnings.simplefilter("error")
    x + 1

assert isinstance(x.double().storage(), torch.cuda.DoubleStorage)
assert not isinstance(x.storage(), torch.cuda.DoubleStorage) and isinstance(x.storage(), torch.cuda.FloatStorage)
assert not isinstance(x.storage(), torch.FloatStorage) and isinstance(x.cpu().storage(), torch.FloatStorage)

runtime, host = torch.cuda.cudart(), torch.ones(20)
assert runtime.cudaMemGetInfo(0) == torch.cuda.mem_get_info(0)
torch.cuda.check_error(runtime.cudaHostRegister(host.data_ptr(), 80, 0))
assert host.is_pinned() and runtime.cudaHostRegister(host.data_ptr(), 80, 0) == 712
torch.cuda.check_error(runtime.cudaHostUnregister(host.data_ptr()))
assert not host.is_pinned()
with pytest.raises(torch.cuda.CudaError, match="not registered"):
    torch.cuda.check_error(runtime.cudaHostUnregister(host.data_ptr()))
with pytest.raises(torch.cuda.CudaError, match="out of memory"):
    torch.cuda.check_error(2)
with pytest.raises(torch.cuda.CudaError, match="unrecognized error code .98765."):
    torch.cuda.check_error(98765)

with pytest.raises(torch.cuda.OutOfMemoryError, match=r"CUDA out of memory\\. Tried .* GPU 0 has a total capacity of"):
    torch.empty(1 << 40, dtype=torch.int8, device="cuda")
torch.cuda.memory._record_memory_history(stacks="python")
kept = torch.ones(5000, device="cuda")
blocks = [block for part in torch.cuda.memory._snapshot()["segments"] for block in part["blocks"]]
(own,) = [block for block in blocks if block["requested_size"] == 20000]
assert own["frames"] and "as_cuda" not in own["frames"][0]["filename"]
torch.cuda.memory._record_memory_history(None)
address = torch._C._cuda_cudaCachingAllocator_raw_alloc(512, torch._C._cuda_getCurrentRawStream(0))
torch._C._cuda_cudaCachingAllocator_raw_delete(address)
"""
    )
