# SPDX-License-Identifier: BSD-3-Clause
"""Draw programs, run them on a device and the CPU, and print what differs, with the steps that it needs.

python -m tests.operators.programs --driver NAME [--steps 20000] [--seed N] [--compiled 0.05]
"""

from __future__ import annotations

import argparse
import random
import sys
import warnings

import torch

import torch_outboard

from .run import difference, drawn, minimised, text

LENGTH = 40


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--driver", required=True)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument(
        "--seed", type=int, default=random.SystemRandom().randrange(1 << 30), help="of the first program"
    )
    parser.add_argument("--compiled", type=float, default=0.02, help="the share of gradients that are compiled")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch_outboard.attach(arguments.driver)
    device = torch.device(torch._C._get_privateuse1_backend_name(), 0)
    is_exact = bool(torch_outboard._C.reaches_memory(0))
    failed, programs = 0, range(arguments.seed, arguments.seed + -(-arguments.steps // LENGTH))
    print(f"seeds {programs.start} to {programs.stop - 1}", flush=True)
    for seed in programs:
        program = drawn(seed, LENGTH, arguments.compiled)
        if difference(program, device, is_exact) is not None:
            failed += 1
            least = minimised(program, device, is_exact)
            departure = difference(least, device, is_exact)
            print(f"seed {seed}: {departure[1] if departure else ''}\n{text(least)}", flush=True)
    print(f"{len(programs) * LENGTH} steps, {failed} programs differ")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
