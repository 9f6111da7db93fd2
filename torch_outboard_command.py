# SPDX-License-Identifier: BSD-3-Clause
"""The entry point of the command `outboard`.

A separate module, so that `outboard --help` does not wait for torch. After this module is imported, importing the
package `torch_outboard` imports nothing else.
"""

__all__ = ["main"]


def main() -> None:
    """Run the command with the arguments of this process."""
    from torch_outboard.cli import main as command

    command()
