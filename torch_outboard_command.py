# SPDX-License-Identifier: BSD-3-Clause
"""The entry point of the command `outboard`.

A module of its own, so that `outboard --help` doesn't wait for torch: where this was imported first, importing the
package `torch_outboard` imports nothing else.
"""

__all__ = ["main"]


def main() -> None:
    """Run the command with the arguments of this process."""
    from torch_outboard.cli import main as command

    command()
