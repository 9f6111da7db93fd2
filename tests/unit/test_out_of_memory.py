# SPDX-License-Identifier: BSD-3-Clause
"""The message of torch.OutOfMemoryError."""

from __future__ import annotations


def test_out_of_memory_carries_the_drivers_own_reason(run_python):
    run_python(
        """
import pytest, torch, torch_outboard
from unit.toys import Toy
class Full(Toy):
    def mem_alloc(self, device, bytes):
        raise MemoryError(f"bank 3 has no room for {bytes} bytes")
torch_outboard.attach(Full)
with pytest.raises(torch.OutOfMemoryError, match='reported: "MemoryError: bank 3 has no room for 2097152 bytes".'):
    torch.empty(2, device="toy")
"""
    )
    # Of a library.
    run_python(
        """
import pytest, torch, torch_outboard
torch_outboard.attach("sim", memory=1 << 22)
with pytest.raises(torch.OutOfMemoryError, match='allocate 8.00 MiB .* The driver reported: ".+". This process'):
    torch.empty(1 << 23, device="sim", dtype=torch.int8)
# It is the limit that refuses now, not the driver.
torch.sim.set_per_process_memory_fraction(0.01)
with pytest.raises(torch.OutOfMemoryError) as caught:
    torch.empty(1 << 21, device="sim", dtype=torch.int8)
assert "set_per_process_memory_fraction" in str(caught.value) and "The driver reported" not in str(caught.value)
"""
    )
