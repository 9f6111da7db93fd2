# SPDX-License-Identifier: BSD-3-Clause
"""Failures of torch.compile raise errors that say what to do."""

from __future__ import annotations

import pytest
import torch

import torch_outboard
from torch_outboard import _C
from torch_outboard.compile import CodeGenerator
from torch_outboard.testing.plugin import RunPython

NO_GENERATOR = """
import sys, torch, torch_outboard
from torch_outboard._discovery import find_driver

class Bare(find_driver(sys.argv[1])):
    code_generator = None

torch_outboard.attach(Bare)
x = torch.ones(2, device=Bare.name)
compiled = torch.compile(lambda x: x.cos() + 1)
try:
    compiled(x)
except Exception as error:
    assert f"the driver '{Bare.name}' has no code generator" in str(error), error
    assert "code_generator" in str(error)
    assert type(error.inner_exception) is torch_outboard.NotSupportedError
else:
    raise AssertionError("it compiled")
assert (x + 1).tolist() == [2, 2]
assert torch.compile(lambda x: x + 1)(torch.ones(2)).tolist() == [2, 2]
torch._dynamo.reset()
assert torch.compile(lambda x: x + 1, backend="aot_eager")(x).tolist() == [2, 2]
"""

OUT_OF_REACH = """
import torch, torch_outboard
from examples.pure_python_driver import PythonDriver

class Far(PythonDriver):
    code_generator = "cpp"

    def host_address(self, device, address, bytes):
        return 0 if device == 1 else super().host_address(device, address, bytes)

torch_outboard.attach(Far)
near, far = (torch.ones(2, device=f"{Far.name}:{index}") for index in range(2))
compiled = torch.compile(lambda x: x.cos() + 1)
torch.testing.assert_close(compiled(near).cpu(), torch.ones(2).cos() + 1)
try:
    compiled(far)
except Exception as error:
    assert f"cannot reach the memory of {Far.name}:1" in str(error) and "aot_eager" in str(error), error
    assert type(error.inner_exception) is torch_outboard.NotSupportedError
else:
    raise AssertionError("it compiled")
assert (far + 1).tolist() == [2, 2]
"""

UNKNOWN_GENERATOR = """
import sys, torch_outboard
from torch_outboard._discovery import find_driver

class Odd(find_driver(sys.argv[1])):
    code_generator = "ccp"

try:
    torch_outboard.attach(Odd)
except torch_outboard.RegistrationError as error:
    assert "'ccp'" in str(error) and "cpp" in str(error), error
else:
    raise AssertionError("it was attached")
assert torch_outboard.attached_driver() is None
"""

NO_COMPILER = """
import sys, torch, torch_outboard
from torch._inductor import config
torch_outboard.attach(sys.argv[1])
config.cpp.cxx = (None, "/nonexistent/compiler")
config.compile_threads = 1
x = torch.ones(2, device=torch_outboard.attached_driver().name)
compiled = torch.compile(lambda x: x.cos() + 41)
try:
    compiled(x)
except Exception as error:
    print(type(error).__name__, error)
else:
    raise AssertionError("it compiled")
torch._dynamo.reset()
torch._dynamo.config.suppress_errors = True
torch.testing.assert_close(compiled(x).cpu(), torch.ones(2).cos() + 41)
"""


def test_a_driver_without_a_code_generator(run_python: RunPython, driver_target: str) -> None:
    run_python(NO_GENERATOR, driver_target)


def test_memory_that_the_host_cannot_reach(run_python: RunPython) -> None:
    """The compilation detects it, for each device separately; attach opens no device."""
    run_python(OUT_OF_REACH)


def test_a_code_generator_that_there_is_not(run_python: RunPython, driver_target: str) -> None:
    run_python(UNKNOWN_GENERATOR, driver_target)


@pytest.mark.parametrize(("kind", "setting"), [("cpp_wrapper", "cpp_wrapper"), ("fx_wrapper", "fx_wrapper")])
def test_a_code_generator_without_a_wrapper(kind: str, setting: str) -> None:
    driver = torch_outboard.attached_driver()
    assert driver is not None
    with pytest.raises(torch_outboard.NotSupportedError, match=f"{driver.name}.*without {setting}"):
        getattr(CodeGenerator(driver), kind)()


@pytest.mark.usefixtures("builds_cpp")
def test_no_compiler(run_python: RunPython, driver_target: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Inductor's own error names the compiler, and with suppress_errors the eager function runs."""
    empty = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path_factory.mktemp("empty"))}
    output = run_python(NO_COMPILER, driver_target, env=empty).stdout
    assert "compiler" in output.lower()


@pytest.mark.core
def test_a_failure_in_a_kernel_is_raised_at_the_wait(device: torch.device) -> None:
    if torch.__version__ < (2, 13):
        pytest.skip("the kernels of torch 2.12 don't check divisors: a zero ends the process, on the CPU too")
    compiled = torch.compile(lambda x, y: torch.ops.aten.div(x, y, rounding_mode="floor"), fullgraph=True)
    x = torch.tensor([1, 2, 3], device=device)
    assert compiled(x, torch.ones_like(x)).tolist() == [1, 2, 3]
    with pytest.raises(RuntimeError, match=r"(?s)ZeroDivisionError.*in the compiled kernel cpp_fused_"):
        compiled(x, torch.zeros_like(x)).cpu()
    torch.accelerator.synchronize()


def _kernel() -> object:
    # Never called: each test passes arguments that the core refuses. Any address except 0 will do.
    return _C.compiled_kernel("k", 1, "rwi")


def test_arguments_of_a_kernel(device: torch.device) -> None:
    if not _C.reaches_memory(device.index):
        pytest.skip("capability: host_address, without which no kernel in C++ runs")
    here = torch.ones(2, device=device)
    kernel = _kernel()
    with pytest.raises(TypeError, match="takes 3 arguments"):
        kernel(here)
    with pytest.raises(TypeError, match="argument 1 of the compiled kernel k must be a tensor, not int"):
        kernel(here, 3, 3)
    with pytest.raises(ValueError, match="reads a tensor of 2 elements on cpu"):
        kernel(torch.ones(2), here, 3)
    with pytest.raises(ValueError, match=r"writes a tensor of \d+ elements on cpu"):
        kernel(here, torch.ones(()), 3)
    with pytest.raises(ValueError, match="no tensor of"):
        kernel(torch.ones(()), torch.ones(()), 3)
    with pytest.raises(TypeError):
        kernel(here, here, "3")


def test_tensors_of_two_devices(device: torch.device, second_device: torch.device) -> None:
    with pytest.raises(ValueError, match="tensors on devices 0 and 1"):
        _kernel()(torch.ones(2, device=device), torch.ones(2, device=second_device), 3)


def test_a_kernel_needs_an_address() -> None:
    with pytest.raises(ValueError, match="the entry of the kernel k has the address 0"):
        _C.compiled_kernel("k", 0, "rw")


@pytest.mark.parametrize("letter", ["x", "j", "t", "l"])  # unknown, and of programs only
def test_a_kernel_on_the_host_takes_no_other_letter(letter: str) -> None:
    with pytest.raises(
        ValueError, match=r"argument 1 of the kernel k has the unknown letter .*on the host are: r \(the addr"
    ):
        _C.compiled_kernel("k", 1, "r" + letter)


def test_the_allocation_of_generated_code(device: torch.device) -> None:
    tensor = _C.empty_strided((2, 3), (1, 2), torch.float16, device.index)
    assert (tensor.device, tensor.dtype, tensor.stride()) == (device, torch.float16, (1, 2))
    with pytest.raises(TypeError, match="tuples of int"):
        _C.empty_strided([2], (1,), torch.float16, 0)
    with pytest.raises(TypeError, match="torch.dtype"):
        _C.empty_strided((2,), (1,), "float16", 0)
    with pytest.raises(torch.AcceleratorError, match="out of range"):
        _C.empty_strided((2,), (1,), torch.float16, 99)


BROKEN = """
import sys, torch, torch_outboard
from torch_outboard.compile import generators
torch_outboard.attach(sys.argv[1])

def scheduling(self):
    raise ImportError("torch moved something")

type(generators.generators().of(0)).scheduling = scheduling
name = torch_outboard.attached_driver().name
function = torch.compile(lambda x: x.cos() + 1)
for _ in range(2):
    assert function(torch.zeros(2)).tolist() == [2, 2]
    torch._dynamo.reset()
    try:
        function(torch.zeros(2, device=name))
    except Exception as error:
        assert f"does not work for {name!r}" in str(error) and "ImportError: torch moved something" in str(error), error
    else:
        raise AssertionError("it compiled")
    torch._dynamo.reset()
assert (torch.zeros(2, device=name) + 1).tolist() == [1, 1]
"""


@pytest.mark.core
def test_a_failure_to_register_leaves_the_cpu_alone(run_python: RunPython, driver_target: str) -> None:
    run_python(BROKEN, driver_target, imports=())  # after the driver was attached
