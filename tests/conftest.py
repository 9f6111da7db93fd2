# SPDX-License-Identifier: BSD-3-Clause
"""The choice of tests with and without a driver. tests/README.md says how the suite runs once for each driver.

A process has one driver, which `--driver` names. Without the option, tests/test_each_driver.py runs the tests that need
a driver, in a process for each driver.
"""

from __future__ import annotations

import functools
import itertools
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import shares
from ledger import Ledger

if TYPE_CHECKING:
    from torch_outboard.testing.plugin import RunPython  # pytest is to import it, as the plugin below

ROOT = Path(__file__).resolve().parent.parent
# Folders whose tests run against an attached driver.
DEVICE_TESTS = ("driver", "amp", "compile", "kernels", "models", "operators")
# Tests that take minutes: `make stress`.
STRESS = ROOT / "tests" / "stress"
# Tests of libraries that are not among the test requirements: `make test-ecosystem`.
ECOSYSTEM = ROOT / "tests" / "ecosystem"

# The examples, as "examples.<module>:<class>". After installed packages, so
# that an installed wheel is tested.
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))

# The option --driver and the fixtures are the package's: drivers elsewhere run these tests too.
pytest_plugins = ["torch_outboard.testing.plugin"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--core", action="store_true", help="of the compiler's tests, run what depends on the version of torch"
    )


def _needs_device(path: Path) -> bool:
    relative = path.relative_to(ROOT / "tests") if path.is_relative_to(ROOT / "tests") else path
    return relative.parts[:1] != () and relative.parts[0] in DEVICE_TESTS


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore tests without a driver if there is one, those that need one if there is none, and unnamed stress tests."""
    if collection_path in (STRESS, ECOSYSTEM) and not any(
        Path(argument.split("::")[0]).resolve().is_relative_to(collection_path) for argument in config.args
    ):
        return True
    if config.getoption("--driver") is None:
        return True if _needs_device(collection_path) else None
    if collection_path.suffix == ".py" and not _needs_device(collection_path):
        return True
    return None


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Ledger(config.getoption("--driver")), "outboard-ledger")


def pytest_report_header() -> list[str]:
    share = shares.current_share()
    return [] if share.of_all == 1 else [f"share {share} of the databases: SHARE={share} make test repeats it"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the command that runs a failed test by itself, whatever share it belongs to."""
    failed = [report for outcome in ("failed", "error") for report in terminalreporter.stats.get(outcome, [])]
    config = terminalreporter.config
    driver = config.getoption("--driver")
    options = [f"--driver={driver}"] if driver else []
    options += [f"--driver-option={option}" for option in config.getoption("--driver-option")]
    read_by_tests = ("OUTBOARD_TEST_SEED", "OUTBOARD_PROVIDERS", "OUTBOARD_TEST_LONG", "OUTBOARD_TEST_SAMPLES")
    variables = [f"{key}={os.environ[key]}" for key in read_by_tests if key in os.environ]
    for node in sorted({report.nodeid for report in failed}):
        command = [*variables, sys.executable, "-m", "pytest", node, *options]
        terminalreporter.line(f"alone: {shlex.join(command)}")


@pytest.hookimpl(trylast=True)  # after -k and -m, so that a file takes part whatever they leave
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    cases = [item for item in items if shares.is_of_database(item, _folder(item.path))]
    if rest := set(shares.left_out(cases, shares.current_share())):
        config.hook.pytest_deselected(items=[*rest])
        items[:] = [item for item in items if item not in rest]
    _deal_to_workers(items)


def _folder(path: Path) -> str:
    """Return the folder of tests/ in which a test lies, or an empty string."""
    tests = ROOT / "tests"
    return path.relative_to(tests).parts[0] if path.is_relative_to(tests) else ""


def _deal_to_workers(items: list[pytest.Item]) -> None:
    """Deal the tests that run whole suites to pytest-xdist's workers, before all others, so that none runs last."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers == 1:
        return
    suites = [item for item in items if item.path.name == "test_each_driver.py"]
    others = iter([item for item in items if item.path.name != "test_each_driver.py"])
    ends = [len(items) * (worker + 1) // workers for worker in range(workers)]
    dealt: list[pytest.Item] = []
    for worker, end in enumerate(ends):
        dealt += suites[worker::workers]
        dealt += itertools.islice(others, max(0, end - len(dealt)))
    items[:] = [*dealt, *others]


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("long") and os.environ.get("OUTBOARD_TEST_LONG") != "1":
        pytest.skip("capability: time. `make stress` runs it, or OUTBOARD_TEST_LONG=1")


@pytest.fixture(scope="session", autouse=True)
def _exact_references() -> None:
    """Let no test compare with a first call of the CPU's that chose its code on two threads at once."""
    from torch_outboard._compat.vector_math import initialize_vector_math

    initialize_vector_math()


@pytest.fixture(scope="session")
def run_compiler(run_python: RunPython, tmp_path_factory: pytest.TempPathFactory) -> RunPython:
    """Return a `run_python` whose processes have imported torch's compiler and share one cache."""
    from torch_outboard.testing.fork_server import COMPILER

    cache = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path_factory.mktemp("inductor"))}
    return functools.partial(run_python, env=cache, imports=COMPILER)


def pytest_collection_finish(session: pytest.Session) -> None:
    needing = [argument for argument in session.config.args if _needs_device(Path(argument.split("::")[0]).resolve())]
    if needing and not session.items and session.config.getoption("--driver") is None:
        raise pytest.UsageError(f"{needing[0]} needs a driver; name one: --driver=NAME")
