# SPDX-License-Identifier: BSD-3-Clause
"""Drivers and cores of different versions of driver.h work together."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from torch_outboard import _C
from torch_outboard.drivers import library_path
from unit.contract import ROOT, header, table_entries
from unit.contract_versions import ADDED_ENTRIES, SIZES

MINORS = range(len(SIZES))


@pytest.fixture(scope="module")
def compiler() -> str:
    found = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if found is None:
        pytest.skip("needs a C compiler")
    return found


def test_the_header_is_the_newest_version(compiler: str, tmp_path: Path) -> None:
    assert len(SIZES) == len(ADDED_ENTRIES) == _C.ABI_MINOR + 1
    required, optional = table_entries()
    assert [*required, *optional] == [name for added in ADDED_ENTRIES for name in added]
    assert set(SIZES[-1]) == set(re.findall(r"^typedef struct (\w+) \{", header(), flags=re.M))
    # A struct is what it was, with more behind it: where the first field of a later
    # version lies an earlier one ends.
    lines = ["#include <torch_outboard/driver.h>", "#define IS(what) _Static_assert(what, #what)"]
    for name, size in SIZES[-1].items():
        lines.append(f"IS(sizeof({name}) == {size});")
        assert all(earlier[name] <= later[name] for earlier, later in zip(SIZES, SIZES[1:], strict=False))
    for struct, field, minor in (
        ("ob_device_properties", "machine", 0),
        ("ob_device_properties", "follows_addresses", 1),
        ("ob_launch", "follows_addresses", 1),
        ("ob_kernel_call", "scratch_context", 2),
        ("ob_kernel_call", "flags", 5),
        ("ob_registrar", "add_asked", 5),
        ("ob_driver", "program_binary", 2),
        ("ob_driver", "event_signal", 4),
    ):
        lines.append(f"IS(offsetof({struct}, {field}) == {SIZES[minor][struct]});")
    (tmp_path / "sizes.c").write_text("\n".join(lines) + "\n")
    command = [compiler, "-std=c11", "-Wall", "-Werror", f"-I{ROOT / 'include'}", "-fsyntax-only", "sizes.c"]
    subprocess.run(command, cwd=tmp_path, check=True)


@pytest.mark.parametrize("minor", MINORS[:-1])
def test_a_driver_of_each_earlier_version_attaches(minor: int, compiler: str, tmp_path: Path, run_python) -> None:
    sizes = SIZES[minor]
    flags = [
        f"-DOLD_MINOR={minor}",
        f"-DOLD_TABLE={sizes['ob_driver']}",
        f"-DOLD_PROPERTIES={sizes['ob_device_properties']}",
        f"-DOLD_LAUNCH={sizes['ob_launch']}",
        f"-DOLD_CALL={sizes['ob_kernel_call']}",
    ]
    folders = [f"-I{ROOT / 'include'}", f"-I{ROOT / 'drivers' / 'null'}"]
    source, library = ROOT / "tests" / "native" / "old_driver.c", tmp_path / "libold.so"
    command = [compiler, "-std=c11", "-Wall", "-Werror", "-shared", "-fPIC", *flags, *folders, source]
    subprocess.run([*command, "-o", library, "-lpthread"], check=True)
    known = sorted(name for added in ADDED_ENTRIES[: minor + 1] for name in added)
    run_python(
        f"""
import torch, torch_outboard
from torch_outboard import _C
from torch_outboard.codegen.program import KernelRecord
from torch_outboard.drivers.null import NullDriver

class Old(NullDriver):
    library = {str(library)!r}

module = torch_outboard.attach(Old)
assert {{name for name, is_there in _C.entries().items() if is_there}} <= set({known!r})
properties = module.get_device_properties(0)
assert properties.name and properties.total_memory > 0
x = torch.arange(6.0, device="null")
side = module.Stream()
side.wait_stream(module.current_stream())
with module.stream(side):
    y = x.clone()
side.synchronize()
assert y.tolist() == [0, 1, 2, 3, 4, 5] and (y + x).sum().item() == 30
assert x.cos().tolist() == [7] * 6
graph = module.Graph()
with module.graph(graph):
    z = x.cos()
z.zero_()
graph.replay()
assert z.tolist() == [7] * 6
kernel = _C.device_kernel(KernelRecord("k", "text", b"any", "", "f", "w", ("3", "1", "1", "1", "1", "1", "0")))
kernel(x)
assert x.tolist()[:2] == [3, 1]
""",
        env={"OUTBOARD_FALLBACK": "silent", "OUTBOARD_KERNEL_CACHE_DIR": str(tmp_path / "cache")},
    )


@pytest.mark.parametrize("driver", ["null", "sim", "opencl", "nv"])
@pytest.mark.parametrize("minor", MINORS)
def test_a_driver_serves_a_core_of_each_version(driver: str, minor: int) -> None:
    """The driver fills an older core's table as far as the table goes."""
    size = SIZES[minor]["ob_driver"]
    table = (ctypes.c_uint64 * (SIZES[-1]["ob_driver"] // 8 + 8))(*[0x5A] * (SIZES[-1]["ob_driver"] // 8 + 8))
    ctypes.memset(table, 0, size)
    table[0] = size
    options = (ctypes.c_uint64 * 4)(SIZES[minor]["ob_options"], 0, 0, 0)
    reason = ctypes.create_string_buffer(1024)
    library = ctypes.CDLL(str(library_path(driver)))
    assert library.ob_driver_table(options, table, reason, 1024) == 0, reason.value
    assert table[0] == size
    assert all(table[at] for at in range(4, 17))  # the required entries
    assert all(word == 0x5A for word in table[size // 8 :])
