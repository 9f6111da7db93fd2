# SPDX-License-Identifier: BSD-3-Clause
"""Shared memory that is full raises an error, and ends no process by a signal."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

MOUNT = "mount -t tmpfs -o size=4k none /dev/shm"

PROGRAM = """
import torch, torch_outboard
import torch.distributed as dist
torch_outboard.attach("sim", collectives=True)
dist.init_process_group("outboard", store=dist.HashStore(), rank=0, world_size=1)
try:
    dist.all_reduce(torch.ones(3, device="sim"))
    torch.sim.synchronize()
except dist.DistBackendError as error:
    assert "No space left on device" in str(error), error
    print("raised")
"""


def test_collectives_in_a_full_folder_of_shared_memory() -> None:
    isolated = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), "sh", "-c"]
    try:
        can_mount = subprocess.run([*isolated, MOUNT], capture_output=True).returncode == 0
    except FileNotFoundError:
        can_mount = False
    if not can_mount:
        pytest.skip("capability: a mount namespace")
    run = f'{MOUNT} && exec "$0" -c "$1"'
    answer = subprocess.run([*isolated, run, sys.executable, PROGRAM], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.strip() == "raised"
