# SPDX-License-Identifier: BSD-3-Clause
"""The command `outboard`."""

from __future__ import annotations

import click

from torch_outboard._version import __version__
from torch_outboard.cli.compile_report import compile_report
from torch_outboard.cli.doctor import doctor
from torch_outboard.cli.info import info
from torch_outboard.cli.kernels import kernels
from torch_outboard.cli.memory import memory
from torch_outboard.cli.new import new
from torch_outboard.cli.race import race
from torch_outboard.cli.run import run
from torch_outboard.cli.test import test

__all__ = ["main"]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="outboard")
def main() -> None:
    """PyTorch devices from driver descriptions."""


main.add_command(compile_report)
main.add_command(doctor)
main.add_command(info)
main.add_command(kernels)
main.add_command(memory)
main.add_command(new)
main.add_command(race)
main.add_command(run)
main.add_command(test)
