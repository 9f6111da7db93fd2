# SPDX-License-Identifier: BSD-3-Clause
"""The pytest plugin for tests that run against one driver: `--driver` attaches it, and fixtures return its devices.

    pytest -p torch_outboard.testing.plugin --driver=NAME [--driver-option=KEY=VALUE]

A process has one driver, which is attached when pytest starts. Without `--driver`, only `run_python` works.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import torch

from torch_outboard.testing import suite
from torch_outboard.testing.conclusion import Conclusion
from torch_outboard.testing.fork_server import ForkServer
from torch_outboard.testing.watchdog import Watchdog

__all__ = ["RunPython"]

# Time limit in seconds for a process started by a test; lower than the limit that `outboard test`
# sets for a test.
_PROCESS_LIMIT = 270


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("torch-outboard")
    group.addoption("--driver", metavar="NAME", help='attach this driver: a name, or "package.module:Class"')
    group.addoption("--driver-option", action="append", default=[], metavar="KEY=VALUE", help="an option of the driver")
    group.addoption(
        "--conclude",
        action="store_true",
        help="print at the end what passed, what the driver lacks, and what to do next",
    )
    group.addoption(
        "--time-limit",
        type=float,
        default=0,
        metavar="SECONDS",
        help="print all threads' stacks and end the process if a test takes longer; 0: no limit",
    )


def pytest_configure(config: pytest.Config) -> None:
    # Inherited by workers and by processes that tests start.
    os.environ.setdefault("OUTBOARD_TEST_SEED", str(secrets.randbelow(1 << 32)))
    limit = config.getoption("--time-limit")
    if limit > 0 and not config.getoption("usepdb"):
        config.pluginmanager.register(Watchdog(config, limit), "torch-outboard-watchdog")
    name = config.getoption("--driver")
    if name is None:
        return
    import torch_outboard

    # A driver whose memory the host cannot access uses the fallback everywhere, and warnings are
    # errors here.
    os.environ.setdefault("OUTBOARD_FALLBACK", "silent")
    # Otherwise the tests would use plans of an earlier run or of a pack.
    os.environ.setdefault("OUTBOARD_KERNEL_CACHE_DIR", "")
    os.environ.setdefault("OUTBOARD_KERNEL_PACKS", "")
    options = dict(option.split("=", 1) for option in config.getoption("--driver-option"))
    try:
        torch_outboard.attach(name, **options)
    except (torch_outboard.RegistrationError, ImportError) as error:
        raise pytest.UsageError(str(error)) from error
    if config.getoption("--conclude"):
        config.pluginmanager.register(Conclusion(), "torch-outboard-conclusion")


def pytest_report_header(config: pytest.Config) -> list[str]:
    import torch_outboard

    driver = torch_outboard.attached_driver()
    attached = "none" if driver is None else f"{driver.name} {driver.option_values}"
    return [f"torch {torch.__version__}, driver: {attached}"]


@pytest.fixture(scope="session")
def driver_name() -> str:
    """Return the attached driver's device name, which is its device type in torch."""
    import torch_outboard

    driver = torch_outboard.attached_driver()
    assert driver is not None, "run with --driver=NAME"
    return driver.name


@pytest.fixture(scope="session")
def device(driver_name: str) -> torch.device:
    """Return device 0 of the attached driver."""
    return torch.device(driver_name, 0)


@pytest.fixture(scope="session")
def second_device(driver_name: str) -> torch.device:
    """Return device 1 of the attached driver; skip the test if the driver has only one device."""
    if torch.get_device_module(driver_name).device_count() < 2:
        pytest.skip("capability: two devices. The driver has one")
    return torch.device(driver_name, 1)


@pytest.fixture(autouse=True, scope="session")
def _unrounded_float32() -> Iterator[None]:
    """Forbid rounding of float32, which torch allows in convolutions and recurrent nets: the CPU's values are exact."""
    # Setting fp32_precision would make torch refuse to read allow_tf32, which torch.export saves
    # and restores. Torch's own tests, which these tests import, forbid setting allow_tf32.
    cudnn = torch.backends.cudnn
    before = cudnn.allow_tf32
    cudnn.set_flags(_allow_tf32=False, _fp32_precision=None)  # type: ignore[no-untyped-call]
    yield
    cudnn.set_flags(_allow_tf32=before, _fp32_precision=None)  # type: ignore[no-untyped-call]


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Begin each test with the run's seed. Each run has another seed; OUTBOARD_TEST_SEED repeats one."""
    # torch.manual_seed would seed, and so might start, every device.
    torch.default_generator.manual_seed(_seed())


@pytest.fixture(autouse=True)
def _clean_device(request: pytest.FixtureRequest) -> Iterator[None]:
    """End each test on a device with all queued work done, the first device current, and its default stream."""
    yield
    if "device" in request.fixturenames:
        module = torch.get_device_module(request.getfixturevalue("device"))
        for index in range(module.device_count()):
            module.synchronize(index)
            module.set_stream(module.default_stream(index))
        module.set_device(0)


def _seed() -> int:
    return int(os.environ["OUTBOARD_TEST_SEED"])


RunPython = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def _fork_servers() -> Iterator[Callable[[tuple[str, ...]], ForkServer]]:
    """Yield a function that returns the server for given imports; end all servers afterwards."""
    servers: dict[tuple[str, ...], ForkServer] = {}

    def get(imports: tuple[str, ...]) -> ForkServer:
        if imports not in servers:
            servers[imports] = ForkServer(_environment({}), suite().folder.parent, imports, _seed())
        return servers[imports]

    yield get
    for server in servers.values():
        server.close()


@pytest.fixture(scope="session")
def run_python(request: pytest.FixtureRequest) -> RunPython:
    """Return a function that runs a snippet in its own process, and returns the process's result.

    Call it as run_python(code, env={…}, status=0). The environment has no OUTBOARD_ variables except the given ones. A
    status other than `status` fails the test and prints the process's output. The process has imported torch and the
    torch modules in `imports`, but nothing of this package, and its generator has the run's seed. `fresh`, or `flags`
    for Python, start a process without any imports.
    """

    def run(
        code: str,
        *arguments: str,
        env: dict[str, str] | None = None,
        status: int | None = 0,
        flags: tuple[str, ...] = (),
        fresh: bool = False,
        imports: tuple[str, ...] = (),
    ) -> subprocess.CompletedProcess[str]:
        environment = _environment(env or {})
        answer = None
        if not flags and not fresh:
            server: ForkServer = request.getfixturevalue("_fork_servers")(imports)
            if server.takes(environment):
                answer = _run_forked(server, code, arguments, environment)
        if answer is None:
            answer = _run_with_stacks([sys.executable, *flags, "-c", code, *arguments], environment)
        if status is not None and answer.returncode != status:
            pytest.fail(f"status {answer.returncode}, not {status}\n{answer.stdout}\n{answer.stderr}")
        return answer

    return run


def _environment(more: dict[str, str]) -> dict[str, str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("OUTBOARD_")}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    # Otherwise the tests would use plans of an earlier run or of a pack.
    nowhere = {"OUTBOARD_KERNEL_CACHE_DIR": "", "OUTBOARD_KERNEL_PACKS": ""}
    return {"PYTHONFAULTHANDLER": "1", **nowhere, **environment, **more}


def _run_forked(
    server: ForkServer, code: str, arguments: tuple[str, ...], environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    try:
        return server.run(code, arguments, environment, _PROCESS_LIMIT)
    except subprocess.TimeoutExpired as error:
        pytest.fail(f"the process has not ended within {_PROCESS_LIMIT} s\n{error.output}\n{error.stderr!s}")


def _run_with_stacks(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a process; if it hangs, fail the test with the stacks of its threads."""
    with subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=suite().folder.parent,
    ) as process:
        try:
            output, errors = process.communicate(timeout=_PROCESS_LIMIT)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)
            output, errors = process.communicate()
            pytest.fail(f"the process has not ended within {_PROCESS_LIMIT} s\n{output}\n{errors}")
        except BaseException:  # re-raised, also for an interrupt: `with` would wait for the process to end
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, output, errors)
