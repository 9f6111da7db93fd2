# SPDX-License-Identifier: BSD-3-Clause
"""The driver tests: what every driver must do, through torch's public API, to be run against your own.

They need what `pip install torch-outboard[test]` installs. A process has one driver, so they run in one of their own:

    def test_the_driver():
        run_driver_tests("mydevice")

`outboard test mydevice` does the same from a shell.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = ["Suite", "driver_test_command", "run_driver_tests", "suite"]

_HERE = Path(__file__).resolve().parent
_SOURCE = _HERE.parent.parent


class Suite(NamedTuple):
    """Where the driver tests lie, and the pytest configuration that they want."""

    folder: Path
    config: Path


def suite() -> Suite:
    """Gives the tests that the package was installed with, or those of the source tree that it is imported from."""
    if (_HERE / "driver").is_dir():
        return Suite(_HERE / "driver", _HERE / "pytest.ini")
    return Suite(_SOURCE / "tests" / "driver", _SOURCE / "pyproject.toml")


def driver_test_command(
    driver: str, options: Mapping[str, str] | None = None, arguments: Sequence[str] = ()
) -> list[str]:
    """Gives the command that runs the driver tests.

    ModuleNotFoundError if pytest or hypothesis is missing.
    """
    missing = [name for name in ("pytest", "hypothesis") if importlib.util.find_spec(name) is None]
    if missing:
        raise ModuleNotFoundError(
            f"the driver tests need {' and '.join(missing)}: {sys.executable} -m pip install 'torch-outboard[test]'"
        )
    tests = suite()
    return [
        *(sys.executable, "-m", "pytest", "-p", "torch_outboard.testing.plugin", "-p", "no:cacheprovider"),
        *("-c", str(tests.config), f"--rootdir={tests.config.parent}", "--import-mode=importlib"),
        *(f"--driver={driver}", *(f"--driver-option={key}={value}" for key, value in (options or {}).items())),
        *(str(tests.folder), *arguments),
    ]


def run_driver_tests(driver: str, options: Mapping[str, str] | None = None, arguments: Sequence[str] = ("-q",)) -> None:
    """Runs the driver tests in a process of their own and returns when they have passed.

    Parameters
    ----------
    driver : str
        An installed driver's name, or "package.module:Class".
    options : mapping of str to str, optional
        The driver's options.
    arguments : sequence of str
        For pytest, as ("-q", "-k", "streams").

    Raises
    ------
    AssertionError
        A test failed, or the driver cannot be attached; the message is what pytest printed.
    ModuleNotFoundError
        pytest or hypothesis is missing.
    """
    # A worker of pytest-xdist must not hand its own identity down to the pytest that is started here.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    command = driver_test_command(driver, options, arguments)
    answer = subprocess.run(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if answer.returncode != 0:
        raise AssertionError(f"the driver tests of {driver!r} ended with status {answer.returncode}:\n{answer.stdout}")
