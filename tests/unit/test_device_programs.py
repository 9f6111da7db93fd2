# SPDX-License-Identifier: BSD-3-Clause
"""Kernels in a driver's language: the calls of the driver, formulas, and torch.compile through them."""

from __future__ import annotations

import pytest
import sympy

BEGIN = """
import threading, pytest, torch, torch_outboard
from torch_outboard import _C
from unit.programs import ProgramDriver
from torch_outboard.codegen.program import KernelRecord

driver = ProgramDriver()
module = torch_outboard.attach(driver)

def kernel(code, letters="rwi", grid=("a2 256 ceildiv", "1", "1"), block=("256", "1", "1"), local_bytes="0", name="k"):
    geometry = (*grid, *block, local_bytes)
    return _C.device_kernel(KernelRecord(name, "python", code.encode(), "-O3", "f", letters, geometry))
"""

VALUES = """
x, y = torch.ones(1000, device="programs"), torch.ones(1000, device="programs")
grid = ("a2 256 ceildiv", "a3 2 add", "a2 a3 max 7 mod")
launcher = kernel("def f(*values): pass", "rwijfd", grid, local_bytes="a2 4 mul")
assert driver.built == []
launcher(x[5:], y, 1000, -1, 0.5, 2)
assert driver.built == [(0, "python", "-O3")]
((name, blocks, threads, shared, args),) = driver.launched
assert (name, blocks, threads, shared) == ("f", (4, 1, 6), (256, 1, 1), 4000)
import struct
assert list(args) == [(0, x.data_ptr() + 20), (0, y.data_ptr()), (1, struct.pack("q", 1000)), (1, struct.pack("i", -1)),
                (1, struct.pack("f", 0.5)), (1, struct.pack("d", 2.0))], args

# Local memory as an argument.
kernel("def f(x, y, n, held): pass", "rwil", local_bytes="a2 4 mul")(x, y, 10)
assert driver.launched[-1][3:] == (0, ((0, x.data_ptr()), (0, y.data_ptr()), (1, struct.pack("q", 10)), (2, 40)))

# Another kernel of the same text and language is of the same program, on another device it is another one.
again = kernel("def f(*values): pass", "rw", grid=("1", "1", "1"))
again(x, y)
assert len(driver.built) == 2
again(x.to("programs:1"), y.to("programs:1"))
assert driver.built[2:] == [(1, "python", "-O3")]
_C.build_kernel(kernel("def f(*values): return 1"), 1)
assert driver.built[3:] == [(1, "python", "-O3")]
with pytest.raises(TypeError, match="a launcher from device_kernel"):
    _C.build_kernel(_C.compiled_kernel("k", 1, "rw"), 0)
with pytest.raises(torch.AcceleratorError, match="out of range"):
    _C.build_kernel(again, 7)

# A program that lacks its kernel goes, unless another kernel of it is there.
count = len(driver.programs)
with pytest.raises(ValueError, match="kernel_get .* has no 'f'"):
    kernel("def g(*values): pass")(x, y, 1)
assert len(driver.programs) == count
with pytest.raises(ValueError, match="kernel_get .* has no 'h'"):
    _C.device_kernel(KernelRecord("k", "python", b"def f(*values): pass", "-O3", "h", "rw", ("1",) * 6 + ("0",)))(x, y)
assert len(driver.programs) == count
again(x, y)

# What fails names the kernel.
with pytest.raises(ValueError, match=r"program_build \\(k\\) on device 0 .*line 1: "):
    kernel("def f(")(x, y, 1)
with pytest.raises(RuntimeError, match=r"kernel_launch \\(k\\) on device 0 .*too much") as caught:
    kernel("def f(*values): raise RuntimeError('too much')")(x, y, 1)
assert (caught.value.entry, caught.value.device) == ("kernel_launch", 0)
for letters, formula, number in (("rwi", "a2", 1 << 32), ("rwi", "a2 a2 mul", 1 << 32), ("rwi", "1 a2 floordiv", 0),
                                 ("rwi", "a2 -1 floordiv", -1 << 63)):
    with pytest.raises(ValueError, match="32 bits|overflows 64 bits|divides by zero"):
        kernel("def f(*values): pass", letters, (formula, "1", "1"))(x, y, number)
for formula, number, blocks in (("a2 3 floordiv 4 add", -7, 1), ("a2 3 ceildiv 3 add", -7, 1), ("a2 3 mod", -7, 2),
                                ("a2 -3 mod 3 add", 7, 1), ("a2 -1 mod 1 add", -1 << 63, 1), ("a2 5 min", 9, 5),
                                ("a2 -2 ceildiv 9 add", 7, 6), ("100 a2 sub", 60, 40), ("a2 -2 floordiv 9 add", 7, 5)):
    kernel("def f(*values): pass", "rwi", (formula, "1", "1"))(x, y, number)
    assert driver.launched[-1][1] == (blocks, 1, 1), (formula, driver.launched[-1])
"""

THREADS = """
x, y = torch.ones(10, device="programs"), torch.ones(10, device="programs")
entered, leave = threading.Semaphore(0), threading.Event()
driver.before_build = lambda: (entered.release(), leave.wait())
driver.failures = [MemoryError("not now")]
launcher = kernel("def f(*values): pass")
raised = []

def launch():
    try:
        launcher(x, y, 1)
    except Exception as error:
        raised.append(error)

threads = [threading.Thread(target=launch) for _ in range(6)]
for thread in threads:
    thread.start()
entered.acquire()  # one builds, the others come, or will
leave.set()
for thread in threads:
    thread.join()
(error,) = raised  # of the build that failed; the next one built for all the others
assert "not now" in str(error), error
assert len(driver.built) == 2 and len(driver.launched) == 5
"""

OWN_MEMORY = """
x = torch.ones(1000, device="programs")
side = torch.Stream("programs:0")
with module.stream(side):
    y = torch.ones(1000, device="programs")
    taken = y.data_ptr()
driver.is_busy = True
kernel("def f(*values): pass")(x, y, 10)
del y
with module.stream(side):
    other = torch.ones(1000, device="programs")
    assert other.data_ptr() != taken, "given again while the launch may write there"
driver.is_busy = False
del other
with module.stream(side):
    again = [torch.ones(1000, device="programs") for _ in range(2)]
assert taken in [tensor.data_ptr() for tensor in again]
"""

COMPILED = """
import sys
from torch._inductor import config
from torch._dynamo.utils import counters
config.compile_threads = 1

def f(x, y, s):
    return torch.nn.functional.gelu(x) * y + s, (x * s).sum(0)

def check(rows, place="cpu", **options):
    x, y, s = torch.randn(rows, 40), torch.randn(rows, 40), torch.tensor(1.5)
    before = len(driver.launched)
    got = torch.compile(f, fullgraph=True, **options)(x.to("programs"), y.to("programs"), s.to(place))
    for ours, theirs in zip(got, f(x, y, s), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, atol=1e-5, rtol=1e-5)
    assert len(driver.launched) > before, "no program ran"
    assert {grid for _, grid, *_ in driver.launched[before:]} == {(1, 1, 1)}

mode = sys.argv[1]
if mode == "reduce-overhead":
    for _ in range(4):
        check(30, "programs", mode="reduce-overhead")
    assert counters["outboard"]["graph_captures"] == 1 and counters["outboard"]["graph_replays"] > 0
elif mode == "aot":
    model = torch.nn.Sequential(torch.nn.Linear(40, 8), torch.nn.GELU()).to("programs")
    x = torch.randn(3, 40)
    with torch.no_grad():
        program = torch.export.export(model, (x.to("programs"),))
        package = torch._inductor.aoti_compile_and_package(program, package_path=sys.argv[2])
        loaded = torch._inductor.aoti_load_package(package, device_index=1)
        torch.testing.assert_close(loaded(x.to("programs:1")).cpu(), model.cpu()(x), atol=1e-5, rtol=1e-5)
    assert {device for device, *_ in driver.built} == {1}, driver.built
else:
    with config.patch({mode: True} if mode != "python" else {}):
        from torch_outboard.compile import report
        with report() as result:
            check(30)
        check(31), check(32)
    if mode == "python":
        assert {kernel.language for graph in result.graphs for kernel in graph.kernels} == {"cpp"}, result
        assert {kernel.name.split("_")[0] for graph in result.graphs for kernel in graph.kernels} == {"program"}
"""


def test_what_the_driver_is_asked(run_python):
    run_python(BEGIN + VALUES)


def test_threads_wait_for_one_build_and_a_failure_is_tried_anew(run_python):
    run_python(BEGIN + THREADS)


def test_memory_is_recorded_as_in_use_on_the_stream(run_python):
    run_python(BEGIN + OWN_MEMORY)


@pytest.mark.database
@pytest.mark.parametrize("mode", ["python", "cpp_wrapper", "fx_wrapper", "reduce-overhead", "aot"])
def test_compiled_code_launches_programs(run_compiler, mode, tmp_path):
    run_compiler(BEGIN + COMPILED, mode, str(tmp_path / "model.pt2"))


def test_formulas_of_expressions():
    from torch.utils._sympy.functions import CeilDiv, FloorDiv, Max, Mod

    from torch_outboard.codegen.formula import formula

    n, m = sympy.symbols("n m", integer=True, positive=True)
    places = {n: 2, m: 5}
    assert formula(sympy.Integer(7), places) == "7"
    assert formula(FloorDiv(n + 255, 256), places) == "255 a2 add 256 floordiv"
    assert formula(CeilDiv(n, m), places).split()[-1] in ("floordiv", "ceildiv")
    assert formula(Max(n, m) * 3, places).split()[-1] == "mul"
    assert formula(n**3, places) == "a2 a2 mul a2 mul"
    assert formula(Mod(n, m), places) == "a2 a5 mod"
    with pytest.raises(ValueError, match="uses k, which is not an argument"):
        formula(sympy.Symbol("k"), places)
    with pytest.raises(ValueError, match="can't be computed from"):
        formula(sympy.sqrt(n), places)
    assert formula(n + 2**63 - 1, places) == "9223372036854775807 a2 add"
    with pytest.raises(ValueError, match="doesn't fit into 64 bits"):
        formula(n + 2**63, places)


def test_a_program_is_written_so_that_python_and_cpp_read_it():
    from torch_outboard.codegen.program import DeviceProgram
    from torch_outboard.compile.cpp.values import text_literal

    def definition(code):
        return DeviceProgram("k", "opencl_c", ("float*", "local"), code, "f", ("1",)).definition(0)

    def device_kernel(name, language, types, code, **rest):
        return code

    for code in ('a\n"b"\\n', "it's '''", "ends with '", "\r\n\0", b"\x7fELF\0\xff", "é"):
        text = eval(definition(code), {"device_kernel": device_kernel})
        assert text.removeprefix("\n") == code if isinstance(code, str) else text == code
    assert text_literal('a"\\\n\té?') == '"a\\042\\134\\012"\n"\\011\\303\\251\\077"'
    with pytest.raises(ValueError, match="has 4 dimensions"):
        DeviceProgram("k", "opencl_c", (), "", "f", ("1",) * 4).geometry()
