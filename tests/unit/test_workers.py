# SPDX-License-Identifier: BSD-3-Clause
"""DataLoader workers beside a device in use: forked workers keep to the CPU, spawned ones may use the device."""

from __future__ import annotations

START = """
import warnings
import torch, torch_outboard
from torch.utils.data import DataLoader, Dataset
torch_outboard.attach("sim")

class Squares(Dataset):
    def __init__(self, device):
        self.device = device
    def __len__(self):
        return 16
    def __getitem__(self, index):
        value = torch.full((3,), float(index), device=self.device)
        return (value * value).cpu()

def total(device, context):
    loader = DataLoader(Squares(device), batch_size=4, num_workers=2, multiprocessing_context=context)
    return sum(batch.to("sim").sum().item() for batch in loader)
"""
EXPECTED = 3 * sum(index * index for index in range(16))
USED = "used = torch.ones(3, device='sim') + 1\ntorch.sim.synchronize()\n"


def test_forked_workers_on_the_cpu(run_python):
    answer = run_python(START + USED + "print(total('cpu', 'fork'), used.tolist())")
    assert answer.stdout == f"{float(EXPECTED)} [2.0, 2.0, 2.0]\n"


def test_forked_workers_on_the_device_are_advised_to_spawn(run_python):
    run_python(
        START
        + USED
        + """
try:
    total("sim", "fork")
except RuntimeError as error:
    assert "spawn" in str(error), error
else:
    raise AssertionError("a forked worker used the device")
assert (used + 1).tolist() == [3, 3, 3]
"""
    )


def test_forked_workers_before_the_first_use(run_python):
    # Nothing is open yet, so that a child may be the one that opens.
    answer = run_python(START + "torch.manual_seed(3)\nprint(total('sim', 'fork'))")
    assert answer.stdout == f"{float(EXPECTED)}\n"


def test_spawned_workers_use_the_device(run_python, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        START + "if __name__ == '__main__':\n    used = torch.ones(3, device='sim')\n    print(total('sim', 'spawn'))\n"
    )
    answer = run_python(
        f"import runpy, sys; sys.argv = [{str(script)!r}]; import subprocess\n"
        f"print(subprocess.run([sys.executable, {str(script)!r}], check=True, capture_output=True,"
        " text=True).stdout, end='')"
    )
    assert answer.stdout == f"{float(EXPECTED)}\n"


def test_seeding_before_the_first_use_counts(run_python):
    run_python(
        START
        + """
torch.manual_seed(7)
assert not torch.sim.is_initialized()
first = torch.rand(4, device="sim").tolist()
torch.manual_seed(7)
assert torch.rand(4, device="sim").tolist() == first
"""
    )
