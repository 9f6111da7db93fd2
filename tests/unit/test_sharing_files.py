# SPDX-License-Identifier: BSD-3-Clause
"""The files of processes that share memory: none is left, and none in use is removed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from torch_outboard.testing.plugin import RunPython

SEND = """
import os, sys, torch, torch_outboard
from multiprocessing.reduction import ForkingPickler
torch_outboard.attach("sim", ipc=True)
message = bytes(ForkingPickler.dumps(torch.ones(3, device="sim")))
"""


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("torch_outboard-sent-*"))


def test_the_file_of_a_killed_sender_is_removed_by_the_next(run_python: RunPython, tmp_path: Path) -> None:
    env = {"TMPDIR": str(tmp_path)}
    (tmp_path / "torch_outboard-sent-link").symlink_to("/etc/passwd")
    (tmp_path / "torch_outboard-sent-folder").mkdir()
    others = set(_files(tmp_path))
    command = [sys.executable, "-c", SEND + "print('sent', flush=True); sys.stdin.read()"]
    environment = {**os.environ, **env, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as living:
        assert living.stdout is not None and living.stdin is not None
        assert living.stdout.readline() == "sent\n"
        used = set(_files(tmp_path))
        run_python(SEND + "os.kill(os.getpid(), 9)", env=env, status=-9)
        assert len(used - others) == 1 and len(set(_files(tmp_path)) - used) == 1
        run_python(SEND, env=env)
        assert set(_files(tmp_path)) == used
        living.stdin.close()
        assert living.wait() == 0
    assert set(_files(tmp_path)) == others
