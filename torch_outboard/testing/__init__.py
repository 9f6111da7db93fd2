# SPDX-License-Identifier: BSD-3-Clause
"""The driver tests check what every driver must do, through torch's public API. Run them against your own driver.

They need the packages of `pip install torch-outboard[test]`. A process has one driver, so the tests run in their own
process:

    def test_the_driver():
        run_driver_tests("mydevice")

`outboard test mydevice` does the same from a shell. The package also has tests of torch's operator database, and a
program that tests a driver's library below torch.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from torch_outboard.testing.observed import observe

__all__ = ["TIME_LIMIT", "Suite", "driver_test_command", "observe", "run_driver_tests", "run_native_tests", "suite"]

TIME_LIMIT = 300  # seconds per test; the longest test compiles an extension

_HERE = Path(__file__).resolve().parent
_SOURCE = _HERE.parent.parent


class Suite(NamedTuple):
    """A folder of tests, and the pytest configuration that they need."""

    folder: Path
    config: Path


def suite(name: str = "driver") -> Suite:
    """Return the tests installed with the package, or the source tree's if the package is imported from there.

    `name` is "driver", "operators" for torch's operator database, or "native" for the program below torch.
    """
    if (_HERE / name).is_dir():
        return Suite(_HERE / name, _HERE / "pytest.ini")
    return Suite(_SOURCE / "tests" / name, _SOURCE / "pyproject.toml")


def check_installed(what: str, *names: str) -> None:
    """Raise ModuleNotFoundError, with the install command, if modules that `what` needs are missing."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise ModuleNotFoundError(
            f"{what} need {' and '.join(missing)}: {sys.executable} -m pip install 'torch-outboard[test]'"
        )


def driver_test_command(
    driver: str,
    options: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
    *,
    operators: bool = False,
    time_limit: float = TIME_LIMIT,
) -> list[str]:
    """Return the command that runs the driver tests, or the tests of torch's operator database.

    An argument may select a file or a test: "test_streams.py", "test_streams.py::test_timing".

    Raises ModuleNotFoundError if a module that the tests need is missing.
    """
    check_installed("the driver tests", "pytest", "hypothesis", *(("numpy", "expecttest") if operators else ()))
    tests = suite("operators" if operators else "driver")
    own = [tests.folder / argument.split("::")[0] for argument in arguments]
    places = [
        str(tests.folder / argument)
        for argument, path in zip(arguments, own, strict=True)
        if path.suffix == ".py" and path.is_file()
    ]
    rest = [argument for argument in arguments if str(tests.folder / argument) not in places]
    if operators and not places:
        # Compiled operators need a code generator and take hours.
        rest.append(f"--ignore={tests.folder / 'test_compiled.py'}")
    return [
        *(sys.executable, "-m", "pytest", "-p", "torch_outboard.testing.plugin", "-p", "no:cacheprovider"),
        *("-c", str(tests.config), f"--rootdir={tests.config.parent}", "--import-mode=importlib"),
        *(f"--time-limit={time_limit:g}", f"--driver={driver}", "--conclude", "-rfE"),
        *(f"--driver-option={key}={value}" for key, value in (options or {}).items()),
        *(places or [str(tests.folder)]),
        *rest,
    ]


def driver_test_environment() -> dict[str, str]:
    """Return this process's environment without variables that would attach another driver."""
    # A worker of pytest-xdist must not pass its identity on to the pytest that is started here.
    environment = {
        key: value for key, value in os.environ.items() if key != "OUTBOARD_DRIVER" and not key.startswith("PYTEST_")
    }
    environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    return environment


def run_driver_tests(driver: str, options: Mapping[str, str] | None = None, arguments: Sequence[str] = ("-q",)) -> None:
    """Run the driver tests in their own process, and return once they have passed.

    Parameters
    ----------
    driver : str
        An installed driver's name, or "package.module:Class".
    options : mapping of str to str, optional
        The driver's options.
    arguments : sequence of str
        Arguments for pytest, such as ("-q", "-k", "streams").

    Raises
    ------
    AssertionError
        A test failed, or the driver cannot be attached; the message is pytest's output.
    ModuleNotFoundError
        pytest or hypothesis is missing.
    """
    environment = driver_test_environment()
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    command = driver_test_command(driver, options, arguments)
    answer = subprocess.run(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if answer.returncode != 0:
        raise AssertionError(f"the driver tests of {driver!r} ended with status {answer.returncode}:\n{answer.stdout}")


def run_native_tests(driver: str, options: Mapping[str, str] | None = None, arguments: Sequence[str] = ()) -> int:
    """Compile the test program below torch, run it on a driver's library and return its status, 0 if all tests passed.

    Parameters
    ----------
    driver : str
        An installed driver's name, or "package.module:Class".
    options : mapping of str to str, optional
        The driver's options.
    arguments : sequence of str
        Names of tests; all if empty.

    Raises
    ------
    RegistrationError
        The driver does not exist or has no library, or an option's value contains "," or "=".
    FileNotFoundError
        There is no C++ compiler: $CXX, c++, g++ and clang++ are all missing.
    subprocess.CalledProcessError
        The program cannot be compiled.
    """
    from torch_outboard._discovery import find_driver
    from torch_outboard._errors import RegistrationError

    library = find_driver(driver).library
    if library is None:
        raise RegistrationError(
            f"driver {driver!r} has no library, and the native tests support only drivers with a library"
        )
    compiler = _compiler()
    include = _HERE.parent / "include"
    if not include.is_dir():
        include = _SOURCE / "include"
    environment = dict(os.environ)
    settings = [f"{key}={value}" for key, value in (options or {}).items()]
    if unfit := [pair for pair in settings if "," in pair or pair.count("=") > 1]:
        raise RegistrationError(f"the native tests do not support an option value with ',' or '=': {unfit[0]!r}")
    environment["OB_TEST_OPTIONS"] = ",".join(filter(None, [environment.get("OB_TEST_OPTIONS"), *settings]))
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "test_driver")
        source = suite("native").folder / "test_driver.cpp"
        flags = ("-std=c++20", "-pthread", f"-I{include}")
        subprocess.run([compiler, *flags, str(source), "-o", str(program), "-ldl"], check=True)
        return subprocess.run([str(program), os.fspath(library), *arguments], env=environment).returncode


def _compiler() -> str:
    names = [os.environ.get("CXX"), "c++", "g++", "clang++"]
    compiler = next(filter(None, (shutil.which(name) for name in names if name)), None)
    if compiler is None:
        raise FileNotFoundError("the native tests need a C++20 compiler: set CXX, or install g++ or clang++")
    return compiler
