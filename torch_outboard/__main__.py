# SPDX-License-Identifier: BSD-3-Clause
"""`python -m torch_outboard` is the command `outboard`, where its folder is not among those that the shell looks in."""

from torch_outboard.cli import main

main(prog_name="python -m torch_outboard")
