# SPDX-License-Identifier: BSD-3-Clause
"""A pytest plugin for races, and for tests written for CUDA.

`--outboard-race` runs tests under many schedules, as `outboard race` runs a program. `--outboard-as-cuda` runs tests
written for CUDA on a driver's devices.

A separate module, so that pytest imports torch only if one of these options is used.
"""

from __future__ import annotations

from typing import Any

import pytest

__all__: list[str] = []

_OWN = "--outboard-race"
_AS_CUDA = "--outboard-as-cuda"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("torch-outboard races")
    group.addoption(
        _OWN, action="store_true", help="look for races: run the tests under many schedules of a simulated device"
    )
    group.addoption(f"{_OWN}-driver", metavar="NAME", help="the driver; by default the one that has schedules")
    group.addoption(f"{_OWN}-seeds", type=int, default=20, metavar="N", help="schedules to run (default: 20)")
    group.addoption(f"{_OWN}-depth", type=int, metavar="N", help="depth of the races to look for")
    group.addoption(f"{_OWN}-schedule", metavar="pct:SEED", help="run this schedule only")
    group.addoption(f"{_OWN}-changes", type=int, metavar="N", help="limit the changes of ranks in that schedule")
    group.addoption(f"{_OWN}-jobs", type=int, metavar="N", help="processes at a time (default: the number of cores)")
    group.addoption(
        f"{_OWN}-time-limit",
        type=float,
        default=600,
        metavar="SECONDS",
        help="time limit of one run of all tests (default: 600)",
    )
    group.addoption(f"{_OWN}-json", metavar="FILE", help="write the report as JSON")
    group.addoption(f"{_OWN}-html", metavar="FILE", help="write the report as a page")
    parser.getgroup("torch-outboard").addoption(
        _AS_CUDA, nargs="?", const="", metavar="DRIVER", help="present a driver's devices as cuda (docs/as-cuda.md)"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Start as_cuda(), if requested, before test modules import functions from torch.cuda.

    A pytest-xdist worker is a new process, which has already started as_cuda() when it imported torch.
    """
    driver = early_config.known_args_namespace.outboard_as_cuda
    if driver is None:
        return
    import torch  # noqa: F401 - as below

    from torch_outboard._errors import OutboardError
    from torch_outboard.as_cuda.session import patches
    from torch_outboard.cli.run import as_cuda_context

    if patches():
        return
    try:
        running = as_cuda_context(driver or None)
    except (ImportError, OutboardError) as error:
        raise pytest.UsageError(str(error)) from error
    early_config.add_cleanup(running.close)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Search for races instead of running the tests here, if requested."""
    if not config.getoption(_OWN):
        return None
    # Importing torch may attach a driver, which fails while this package is half imported.
    import torch  # noqa: F401

    from torch_outboard.cli.race import run_for_pytest

    options: dict[str, Any] = {
        name: config.getoption(f"{_OWN}-{name.replace('_', '-')}")
        for name in ("driver", "seeds", "depth", "schedule", "changes", "jobs", "time_limit", "json", "html")
    }
    return run_for_pytest(_arguments(list(config.invocation_params.args)), options)


def _arguments(arguments: list[str]) -> list[str]:
    """Return pytest's own arguments, without this plugin's."""
    kept = []
    skips = False
    for argument in arguments:
        if skips:
            skips = False
        elif argument.startswith(_OWN):
            skips = argument != _OWN and "=" not in argument  # its value follows
        else:
            kept.append(str(argument))
    return kept
