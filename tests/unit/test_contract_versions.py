# SPDX-License-Identifier: BSD-3-Clause
"""Drivers that were compiled with an earlier or a later driver.h of the same major version."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from torch_outboard.testing.plugin import RunPython
from unit.contract import ROOT, header

# The null driver. An earlier version of it knows no entry from host_callback on, and fewer
# properties.
DRIVER = """
#define ob_driver_table whole_table
#include "null.c"
#undef ob_driver_table

static ob_status earlier_properties(void* self, int32_t device, ob_device_properties* out_properties) {
  const size_t known = offsetof(ob_device_properties, machine);
  ob_device_properties own = {.struct_size = known};
  const ob_status status = device_properties(self, device, &own);
  memcpy(out_properties, &own, known);
  return status;
}

OB_EXPORT ob_status ob_driver_table(const ob_options* options, ob_driver* out_driver, char* error, size_t error_size) {
  if (IS_EARLIER) out_driver->struct_size = offsetof(ob_driver, host_callback);
  const ob_status status = whole_table(options, out_driver, error, error_size);
  if (IS_EARLIER) out_driver->device_properties = earlier_properties;
  return status;
}
"""


def later(text: str) -> str:
    """Return driver.h with one more entry and more properties."""
    text = text.replace("} ob_driver;", "  ob_status (*later)(void* self);\n} ob_driver;")
    return text.replace("} ob_device_properties;", "  uint64_t later[64];\n} ob_device_properties;")


@pytest.mark.parametrize("version", ["earlier", "later"])
def test_a_driver_of_another_minor_version_works(version: str, tmp_path: Path, run_python: RunPython) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("needs a C compiler")
    folder = tmp_path / "torch_outboard"
    folder.mkdir()
    (folder / "driver.h").write_text(header() if version == "earlier" else later(header()))
    (tmp_path / "driver.c").write_text(DRIVER)
    library = tmp_path / "libother.so"
    flags = ["-std=c11", "-Wall", "-Werror", "-shared", "-fPIC", f"-DIS_EARLIER={int(version == 'earlier')}"]
    folders = [f"-I{tmp_path}", f"-I{ROOT / 'drivers' / 'null'}"]
    subprocess.run([compiler, *flags, *folders, tmp_path / "driver.c", "-o", library, "-lpthread"], check=True)
    run_python(
        f"""
import torch, torch_outboard
from torch_outboard import _C
from torch_outboard.drivers.null import NullDriver

class Other(NullDriver):
    library = {str(library)!r}

module = torch_outboard.attach(Other)
entries = _C.entries()
assert entries["ipc_close"] and entries["host_callback"] is {version == "later"}
assert module.get_device_properties(0).total_memory > 0
x = torch.arange(6.0, device="null")
side = module.Stream()
side.wait_stream(module.current_stream())
with module.stream(side):
    y = x.clone()
side.synchronize()
assert (y + x).tolist() == [0, 2, 4, 6, 8, 10]
""",
        env={"OUTBOARD_FALLBACK": "silent"},
    )
