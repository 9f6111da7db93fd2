# SPDX-License-Identifier: BSD-3-Clause
"""The tests that need a device, once for each driver, each in a separate process."""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import ledger
import pytest
import shares

from torch_outboard._discovery import find_driver, found_drivers
from torch_outboard.testing.fork_server import COMPILER, ForkServer

TESTS = Path(__file__).resolve().parent

# What the package itself offers, and the drivers of the examples.
OWN = [name for name, entry in found_drivers().items() if entry.target.startswith("torch_outboard.")]
EXAMPLES = ["examples.pure_python_driver:PythonDriver"]
# Those whose order of work a test chooses. What is long and the same for all
# that generate C++ runs on them.
SCHEDULED = [name for name in OWN if "schedule" in find_driver(name).options]


# What `python -m pytest` does.
PYTEST = "import runpy; runpy.run_module('pytest', run_name='__main__', alter_sys=True)"
# What suites of generated kernels and of torch's databases import at any rate, for five seconds.
# Other suites import the compiler late, as programs do.
DATABASES = (*COMPILER, "torch.testing._internal.common_methods_invocations")
# Longer than any suite takes: a test that hangs ends by its own limit.
SUITE_LIMIT = 3600.0


SERVERS: dict[tuple[str, ...], ForkServer] = {}


def fork_server(imports: tuple[str, ...] = ()) -> ForkServer:
    """Return the process that has imported these modules of torch, once for thirty suites, and forks suites."""
    if imports not in SERVERS:
        SERVERS[imports] = ForkServer(environment(), TESTS.parent, imports)
    return SERVERS[imports]


@pytest.fixture(autouse=True, scope="session")
def _closes_the_fork_servers() -> Iterator[None]:
    yield
    for server in SERVERS.values():
        server.close()


@pytest.fixture(autouse=True)
def _charges_suites(request: pytest.FixtureRequest) -> Iterator[None]:
    """Charge the time of the suites that a test starts to their folders."""
    with tempfile.NamedTemporaryFile() as file, pytest.MonkeyPatch.context() as patch:
        patch.setenv(ledger.LEDGER_VARIABLE, file.name)
        yield
        ledger.charge_suite(request.config.pluginmanager.get_plugin("outboard-ledger"), Path(file.name))


def run_python(*arguments: str, env: dict[str, str] | None = None) -> str:
    """Run Python and return its output."""
    command = [sys.executable, *arguments]
    env = environment() | (env or {})
    return check(subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True, env=env), " ".join(command))


def run_pytest(*arguments: str, imports: tuple[str, ...] = (), env: dict[str, str] | None = None) -> str:
    """Run tests and return their output."""
    words = ("-q", "-p", "no:cacheprovider", *arguments)
    done = fork_server(imports).run(PYTEST, words, environment() | (env or {}), SUITE_LIMIT)
    return check(done, f"pytest {' '.join(words)}")


def learn_digits(*arguments: str, **variables: str) -> str:
    """Run the example on the tested package, also an installed one, ahead of the source tree's."""
    path = os.pathsep.join([*(entry for entry in sys.path if entry), str(TESTS.parent)])
    return run_python(str(TESTS.parent / "examples" / "digits.py"), *arguments, env={"PYTHONPATH": path, **variables})


def check(answer: subprocess.CompletedProcess[str], command: str) -> str:
    print(answer.stdout[-20_000:], answer.stderr[-20_000:], sep="\n")
    if answer.returncode != 0:
        pytest.fail(f"{command} ended with status {answer.returncode}; its output stands above", pytrace=False)
    return answer.stdout


def environment() -> dict[str, str]:
    # A worker of pytest-xdist must not hand its own identity down to the pytest that it starts.
    return {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}


# Whether operators run on the device's memory and in its streams, which only a
# process with the driver can see.
QUEUES_HOST_CALLS = """
import sys, torch, torch_outboard
from torch_outboard import _C
name = torch_outboard.attach(sys.argv[1]).__name__.rpartition(".")[2]
torch.ones(2, device=name) + 1
sys.exit(0 if _C.host_counters()[0] > 0 else 3)
"""


# Whether there is a device, and if not why.
HAS_DEVICE = """
import sys, torch_outboard
from torch_outboard import _C
if torch_outboard.attach(sys.argv[1]).device_count() == 0:
    print(_C.probe_error())
    sys.exit(3)
"""


def run_snippet(code: str, driver: str) -> subprocess.CompletedProcess[str]:
    """Run a snippet that answers a question with its status: 0 for yes, 3 for no."""
    # The drivers of the examples lie beside the tests.
    code = f"import sys; sys.path.append({str(TESTS.parent)!r})\n{code}"
    answer = fork_server().run(code, (driver,), {**environment(), "OUTBOARD_FALLBACK": "silent"}, SUITE_LIMIT)
    assert answer.returncode in (0, 3), answer.stderr
    return answer


@functools.cache
def queues_host_calls(driver: str) -> bool:
    return run_snippet(QUEUES_HOST_CALLS, driver).returncode == 0


@functools.cache
def lack_of_device(driver: str) -> str:
    """Return why the driver has no device here, or an empty string."""
    answer = run_snippet(HAS_DEVICE, driver)
    return "" if answer.returncode == 0 else answer.stdout.strip() or "it counts none"


@pytest.fixture(autouse=True)
def _has_device(driver: str) -> None:
    if lack := lack_of_device(driver):
        pytest.skip(f"capability: a device. {driver} has none here: {lack}")


def workers() -> list[str]:
    """Return the options that spread a long run over the cores, unless this process is itself a worker."""
    if importlib.util.find_spec("xdist") is None or "PYTEST_XDIST_WORKER" in os.environ:
        return []
    return ["-n", str(os.cpu_count() or 1)]


# The longest first: workers of pytest-xdist take them in this order.

NO_HOST_CALLS = "{} has no host_address, or no host_callback: its operators run through copies or wait"


# Of the compiler's tests those whose launches and graphs reach the driver; kernels, wrappers,
# caches, errors, reports are above it.
RUNS = ("random", "streams", "reduce_overhead")


def _needs_compiler(driver: str) -> None:
    if find_driver(driver).code_generator is None:
        pytest.skip(f"capability: a code generator. {driver} names none")
    if not queues_host_calls(driver):
        pytest.skip(NO_HOST_CALLS.format(driver))


@pytest.mark.parametrize("driver", OWN)
def test_compile(driver: str, request: pytest.FixtureRequest) -> None:
    """All tests for the drivers that are made for tests, which have schedules; for others the possible ones."""
    _needs_compiler(driver)
    paths = [TESTS / "compile"] if driver in SCHEDULED else [TESTS / "compile" / f"test_{name}.py" for name in RUNS]
    is_core = request.config.getoption("--core") or driver not in SCHEDULED
    run_pytest(*map(str, paths), f"--driver={driver}", *(["-m", "core"] if is_core else []), *workers())


@pytest.mark.parametrize("driver", OWN)
def test_operator_database(driver: str) -> None:
    """Every check on the drivers that are made for tests; one check on others, whose operators run by the same code."""
    if not queues_host_calls(driver):
        pytest.skip(NO_HOST_CALLS.format(driver))
    if driver in SCHEDULED:
        paths = [str(TESTS / "operators"), f"--ignore={TESTS / 'operators' / 'test_compiled.py'}"]
    else:
        paths = [str(TESTS / "operators" / "test_opinfo.py"), "-k", "forward and float32"]
    run_pytest(*paths, f"--driver={driver}", *workers(), imports=DATABASES)


@pytest.mark.parametrize("driver", SCHEDULED)
def test_compiled_operator_database(driver: str) -> None:
    _needs_compiler(driver)
    run_pytest(str(TESTS / "operators" / "test_compiled.py"), f"--driver={driver}", *workers(), imports=DATABASES)


@pytest.mark.parametrize("driver", [*OWN, *EXAMPLES])
def test_driver(driver: str, request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--core") and driver not in SCHEDULED:
        pytest.skip("what lies between a driver and torch is the same for all of them on every torch")
    run_pytest(str(TESTS / "driver"), f"--driver={driver}")


def has_validation_layer() -> bool:
    """Return True if Vulkan's loader finds the layer that checks each call."""
    folders = os.environ.get("VK_LAYER_PATH", "/usr/share/vulkan/explicit_layer.d").split(os.pathsep)
    return any(Path(folder, "VkLayer_khronos_validation.json").exists() for folder in folders)


@pytest.mark.parametrize("driver", [f"tests.vulkan_drivers:{name}" for name in ("Programs", "Least", "Wide")])
def test_vulkan_devices_whose_memory_the_host_cannot_reach(driver: str, request: pytest.FixtureRequest) -> None:
    """Discrete GPUs, on a CPU: copies through mapped memory, and programs; with less than lavapipe has.

    The validation layer, if it is installed, finds no wrong use of Vulkan.
    """
    if request.config.getoption("--core"):
        pytest.skip("what lies between a driver and torch is the same for all of them on every torch")
    files = [str(TESTS / "driver" / f"test_{name}.py") for name in ("copies", "launch", "memory", "streams")]
    env = {"VK_INSTANCE_LAYERS": "VK_LAYER_KHRONOS_validation"} if has_validation_layer() else {}
    output = run_pytest(*files, "-s", f"--driver={driver}", "--driver-option=host_access=0", env=env)
    assert "Validation Error" not in output


@pytest.mark.parametrize("driver", [*OWN, *EXAMPLES])
def test_mixed_precision(driver: str, request: pytest.FixtureRequest) -> None:
    """All tests once. Regions and policies are the same for all drivers; the scaler's kernels are not."""
    is_core = request.config.getoption("--core")
    if driver in SCHEDULED:
        run_pytest(str(TESTS / "amp"), f"--driver={driver}", *(["-k", "not digits"] if is_core else []))
    elif is_core:
        pytest.skip("the kernels of the scaler are the same on every torch")
    else:
        run_pytest(str(TESTS / "amp" / "test_grad_scaler.py"), f"--driver={driver}")


# Where the host can't reach the devices' memory.
GENERATED = "tests.simt_drivers:DiscreteOpenCL"
DATABASE = str(TESTS / "kernels" / "test_operator_database.py")
REDUCTIONS = str(TESTS / "kernels" / "test_reductions.py")
MATRIX_UNITS = str(TESTS / "kernels" / "test_matrix_units.py")
CONVOLUTIONS = str(TESTS / "kernels" / "test_convolutions.py")
WITHOUT_DOUBLES = str(TESTS / "kernels" / "test_without_doubles.py")
SMALL_CHIPS = str(TESTS / "kernels" / "test_small_chips.py")
# Of the tests of generated kernels what Inductor's lowerings, and what torch decomposes, decide.
# The other kernels are written here, and each of them is in the database.
LOWERED = ["gradients", "lowerings", "numbers", "random", "sparse", "transforms"]
OF_LISTS = str(TESTS / "kernels" / "test_lists.py") + "::test_reductions"


# Workers of pytest-xdist share what would be the longest suite.
PARTS = 2


@pytest.mark.parametrize("driver", [GENERATED])
@pytest.mark.parametrize("part", range(PARTS))
def test_generated_kernels(driver: str, part: int, request: pytest.FixtureRequest) -> None:
    """All except the reductions: the database has those of a CPU, the next test those of a GPU."""
    if request.config.getoption("--core"):
        files = [str(TESTS / "kernels" / f"test_{name}.py") for name in LOWERED]
    else:
        others = (DATABASE, REDUCTIONS, MATRIX_UNITS, WITHOUT_DOUBLES, SMALL_CHIPS)
        files = [file for file in sorted(map(str, (TESTS / "kernels").glob("test_*.py"))) if file not in others]
    run_pytest(*files[part::PARTS], f"--driver={driver}", imports=DATABASES)


@pytest.mark.parametrize("driver", ["tests.simt_drivers:Groups"])
def test_reductions_by_groups(driver: str, request: pytest.FixtureRequest) -> None:
    """The kernels of a GPU, on a CPU."""
    if request.config.getoption("--core"):
        pytest.skip("groups do what a loop does, and the database has the reductions of every torch")
    run_pytest(REDUCTIONS, OF_LISTS, f"--driver={driver}", imports=DATABASES)


@pytest.mark.parametrize("driver", ["tests.simt_drivers:LateStores"])
def test_reductions_that_store_late(driver: str, request: pytest.FixtureRequest) -> None:
    """Those that store more than a row's result."""
    if request.config.getoption("--core"):
        pytest.skip("the mappings are the same on every torch")
    run_pytest(REDUCTIONS, f"--driver={driver}", "-k", "softmax or norms or in_place", imports=DATABASES)


@pytest.mark.parametrize("driver", ["tests.simt_drivers:Units"])
def test_products_by_matrix_units(driver: str, request: pytest.FixtureRequest) -> None:
    """Units in plain C, on a CPU."""
    if request.config.getoption("--core"):
        pytest.skip("the templates are the same on every torch")
    run_pytest(MATRIX_UNITS, f"--driver={driver}", imports=DATABASES)


@pytest.mark.parametrize("driver", ["tests.warp_drivers:Warps", "tests.warp_drivers:OpenCLWarps"])
def test_products_by_the_units_of_warps(driver: str, request: pytest.FixtureRequest) -> None:
    """NVIDIA's units, emulated; of the second language a part, because the texts differ in words alone."""
    if request.config.getoption("--core"):
        pytest.skip("the templates are the same on every torch")
    wanted = "any_way and dtype0"
    if driver.endswith(":Warps"):
        wanted = "any_way or pairs or of_masks or rounded or (schedule or attention) and dtype0"
    run_pytest(MATRIX_UNITS, f"--driver={driver}", "-k", wanted, imports=DATABASES)
    if driver.endswith(":Warps"):  # which refuse 16 bytes that are not aligned, as GPUs do and CPUs don't
        run_pytest(CONVOLUTIONS, f"--driver={driver}", "-k", "not_aligned", imports=DATABASES)


@pytest.mark.parametrize("driver", ["tests.vulkan_drivers:Units"])
def test_products_by_matrix_units_in_slang(driver: str, request: pytest.FixtureRequest) -> None:
    """Units in plain Slang, on lavapipe: rows that begin anywhere, whose elements are shifted out of aligned ones."""
    if request.config.getoption("--core"):
        pytest.skip("the templates are the same on every torch")
    run_pytest(MATRIX_UNITS, f"--driver={driver}", "-k", "begin_anywhere or any_way", imports=DATABASES)


@pytest.mark.parametrize("driver", ["tests.simt_drivers:Floats"])
def test_devices_without_doubles(driver: str, request: pytest.FixtureRequest) -> None:
    run_pytest(WITHOUT_DOUBLES, f"--driver={driver}", imports=DATABASES)
    if request.config.getoption("--core"):
        return  # they are learned compiled on every torch
    learn_digits(f"--device={driver}", OUTBOARD_FALLBACK="error")


@pytest.mark.parametrize("driver", ["tests.simt_drivers:Strict", "tests.simt_drivers:Strict32"])
def test_small_chips_with_strict_languages(driver: str, request: pytest.FixtureRequest) -> None:
    """Of the smaller one what has templates: the other kernels differ by a number alone."""
    if request.config.getoption("--core"):
        pytest.skip("the templates are the same on every torch")
    run_pytest(
        SMALL_CHIPS, f"--driver={driver}", *(["-k", "values"] if driver.endswith("32") else []), imports=DATABASES
    )


@pytest.mark.parametrize("driver", [GENERATED])
def test_wrappers_of_generated_kernels(driver: str) -> None:
    """Kernels in the driver's language in graphs and packages; the Python wrapper is behind all compiled code."""
    files = [str(TESTS / "compile" / f"test_{name}.py") for name in ("fx_wrapper", "aot", "numbers")]
    run_pytest(*files, f"--driver={driver}", "-m", "core", imports=DATABASES)


@pytest.mark.parametrize("driver", [GENERATED])
def test_wrong_calls_of_what_the_book_computes(driver: str, request: pytest.FixtureRequest) -> None:
    """A formula of our own has to refuse what torch's kernel refuses; tests/stress asks all operators."""
    if request.config.getoption("--core"):
        pytest.skip("the formulas are the same on every torch")
    options = ("--driver", driver, "--refused-only", "--book", "--large", "--share", str(shares.current_share()))
    run_python("-m", "tests.operators.refusals", *options, env={"OUTBOARD_FALLBACK": "silent"})


@pytest.mark.parametrize("driver", [GENERATED])
def test_generated_operator_database(driver: str) -> None:
    run_pytest(DATABASE, f"--driver={driver}", imports=DATABASES)


@pytest.mark.database
@pytest.mark.parametrize("driver", SCHEDULED)
@pytest.mark.parametrize("options", [["--compile"], ["--compile", "--dynamic"]], ids=" ".join)
def test_the_digits_are_learned_compiled(driver: str, options: list[str], request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--core") == ("--dynamic" in options):
        pytest.skip("sizes that change are learned with on one torch, sizes that don't on the others")
    _needs_compiler(driver)
    answer = learn_digits(f"--device={driver}", *options)
    assert "Compiled: " in answer and "cpp_fused_" in answer


@pytest.mark.parametrize("driver", OWN)
def test_the_digits_are_learned(driver: str, request: pytest.FixtureRequest) -> None:
    """The example fails below 97 % of the held-out digits, or if its losses differ from the CPU's."""
    if request.config.getoption("--core"):
        pytest.skip("they are learned compiled on every torch")
    if not queues_host_calls(driver):
        pytest.skip(NO_HOST_CALLS.format(driver))
    learn_digits(f"--device={driver}")
