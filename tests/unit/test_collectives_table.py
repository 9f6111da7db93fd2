# SPDX-License-Identifier: BSD-3-Clause
"""The table of collectives belongs to the driver that is attached, whose own table it may keep."""

from __future__ import annotations

import subprocess
from pathlib import Path

from torch_outboard._discovery import find_driver
from torch_outboard.testing.plugin import RunPython

ROOT = Path(__file__).resolve().parents[2]


def test_a_failed_attach_leaves_no_collectives(run_python: RunPython) -> None:
    run_python(
        """
import pytest, torch, torch_outboard
import torch.distributed as dist
from examples.pure_python_driver import PythonDriver
from torch_outboard import _C
from torch_outboard._discovery import find_driver

library = str(find_driver("sim").library)
with pytest.raises(torch_outboard.RegistrationError, match="entry `mem_info` must be a method"):
    _C.attach_library(library, "sim", {"collectives": "1"}, {"mem_info": "no method"})
torch_outboard.attach(PythonDriver())
dist.init_process_group("outboard", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.ones(3, device="python"))
assert {row.provider for row in torch_outboard.coverage() if row.op.startswith("c10d::")} == {"host"}
dist.destroy_process_group()
"""
    )


KEEPER = """
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <torch_outboard/collectives.h>

static const ob_driver* kept;

OB_EXPORT ob_status ob_driver_table(const ob_options* options, ob_driver* out, char* error, size_t size) {
  void* sim = dlopen(getenv("TEST_SIM"), RTLD_NOW);
  return ((ob_driver_table_fn)dlsym(sim, OB_DRIVER_TABLE_SYMBOL))(options, out, error, size);
}
static ob_status make_id(void* self, void* out) { return OB_INTERNAL; }
static void last_error(void* self, char* buffer, size_t size) {
  uint64_t free = 0, total = 0;
  const ob_status status = kept->mem_info(kept->self, 0, &free, &total);
  snprintf(buffer, size, "status %d, %llu of %llu", status, (unsigned long long)free, (unsigned long long)total);
}
static ob_status create(void* self, const ob_comm_config* config, uint64_t* out) { return OB_UNAVAILABLE; }
static ob_status end(void* self, uint64_t comm) { return OB_OK; }
static ob_status queue(void* self, uint64_t c, uint64_t s, const ob_collective* what) { return OB_UNIMPLEMENTED; }
OB_EXPORT ob_status ob_collectives_table(const ob_driver* driver, ob_collectives* out, char* error, size_t size) {
  kept = driver;
  const size_t bytes = out->struct_size;
  const ob_collectives table = {.struct_size = bytes, .abi_major = OB_COLLECTIVES_MAJOR, .make_id = make_id,
      .comm_create = create, .comm_status = end, .queue = queue, .comm_abort = end, .comm_destroy = end,
      .last_error = last_error};
  memcpy(out, &table, bytes);
  return OB_OK;
}
"""


def test_collectives_may_keep_the_drivers_table(run_python: RunPython, tmp_path: Path) -> None:
    source, library = tmp_path / "keeper.c", tmp_path / "libkeeper.so"
    source.write_text(KEEPER)
    flags = ["-O1", "-fPIC", "-shared", f"-I{ROOT / 'include'}"]
    subprocess.run(["cc", *flags, str(source), "-o", str(library), "-ldl"], check=True)
    run_python(
        f"""
import pytest, torch, torch_outboard
import torch.distributed as dist

class Keeper(torch_outboard.Driver):
    name = "keeper"
    library = {str(library)!r}

    def mem_info(self, device):
        return 5 << 20, 9 << 20

torch_outboard.attach(Keeper)
dist.init_process_group("outboard", store=dist.HashStore(), rank=0, world_size=1)
with pytest.raises(dist.DistBackendError, match=f"status 0, {{5 << 20}} of {{9 << 20}}"):
    dist.all_reduce(torch.ones(3, device="keeper"))
dist.destroy_process_group()
""",
        env={"TEST_SIM": str(find_driver("sim").library)},
    )
