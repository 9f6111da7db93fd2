# SPDX-License-Identifier: BSD-3-Clause
"""`python -m torch_outboard` runs the command `outboard` even if its folder is not in the shell's search path."""

from torch_outboard.cli import main

main(prog_name="python -m torch_outboard")
