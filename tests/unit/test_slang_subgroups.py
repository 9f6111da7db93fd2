# SPDX-License-Identifier: BSD-3-Clause
"""Reductions in Slang whose items read each other's values in subgroups: texts compile, and who uses them."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import struct
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.slang import compile_slang, compiler_of_slang, refusal_of_spirv
from torch_outboard._properties import DeviceProperties
from torch_outboard.compile.generators import Generators
from torch_outboard.drivers.vulkan import VulkanDriver
from torch_outboard.testing.plugin import RunPython

needs_compiler = pytest.mark.skipif(
    compiler_of_slang() is None, reason="capability: Slang's compiler (pip install --no-deps slangtorch)"
)

_SHUFFLE = 65  # the capability GroupNonUniformShuffle of SPIR-V

# Rows of one item, of a few items, of a subgroup, of a whole group; columns; each type that is
# exchanged.
_CALLS = """
import json, torch, torch_outboard
from tests.simt_drivers import Unbuilt

texts = {}
class Collecting(Unbuilt):
    kernel_generator = "slang: subgroups of LANES"
    def program_build(self, device, language, code, options):
        assert language == "slang"
        texts[code.decode() if isinstance(code, bytes) else code] = options
        return next(self.handles)
torch_outboard.attach(Collecting)

def ones(*sizes, dtype=torch.float32):
    return torch.ones(sizes, dtype=dtype).to("unbuilt")

for row in (8, 40, 300, 5000):
    ones(4, row).sum(1), ones(4, row).var(1), ones(4, row).argmax(1), torch.softmax(ones(4, row), 1)
ones(4, 300).bool().any(1), ones(4, 300, dtype=torch.int16).amax(1), ones(4, 300, dtype=torch.float64).sum(1)
ones(4, 300, dtype=torch.bfloat16).sum(1), ones(300, 4).sum(0), ones(4, 4).add(1)
print(json.dumps(list(texts.items())))
"""


@needs_compiler
@pytest.mark.parametrize("lanes", [8, 32, 64])
def test_reductions_with_subgroups_compile(run_python: RunPython, tmp_path: Path, lanes: int) -> None:
    env = {"OUTBOARD_FALLBACK": "error", "OUTBOARD_BUILD_THREADS": "0"}
    answer = run_python(_CALLS.replace("LANES", str(lanes)), env=env)
    texts = json.loads(answer.stdout.splitlines()[-1])
    bodies = []
    for text, options in texts:
        body = text.partition("namespace ob_of_")[2]
        code = compile_slang(text, options)
        words = struct.unpack(f"<{len(code) // 4}I", code)
        has_shuffles = (2 << 16 | 17, _SHUFFLE) in itertools.pairwise(words[:100])
        assert has_shuffles == ("OB_OF_ITEM" in body) == ("OB_ITEM_OF_SUBGROUPS" in body), body
        if shutil.which("spirv-val"):
            assert refusal_of_spirv(code, tmp_path) == ""
        bodies += [body] if has_shuffles else []
    assert len(bodies) >= 10 and len(bodies) < len(texts)
    # Rows of as many items as a subgroup, or fewer, need none of the group's memory. A row has 16
    # items or more.
    along = [int(re.search(r"ob_along = ob_item % (\d+)", body)[1]) for body in bodies]  # type: ignore[index]
    assert {count <= lanes for count in along} == ({False} if lanes < 16 else {True, False})
    for count, body in zip(along, bodies, strict=True):
        assert ("ob_shared" in body) == (count > lanes), body
        distances = {int(distance) for distance in re.findall(r"OB_OF_ITEM\(\w+\[0\], ob_item \+ (\d+)\)", body)}
        assert distances == {1 << power for power in range(min(count, lanes).bit_length() - 1)}


def test_the_driver_uses_the_subgroups_that_all_devices_have() -> None:
    mesa = DeviceProperties(vendor="Mesa", warp_size=8)
    nvidia = replace(mesa, vendor="NVIDIA", warp_size=32)
    driver = VulkanDriver()
    assert driver.kernel_generator([mesa, mesa]) == "slang: subgroups of 8"
    for missing, name in (
        ({torch.float64}, "floats"),
        ({torch.int16}, "bytes"),
        ({torch.float64, torch.int16}, "floats_bytes"),
    ):
        lacking = replace(mesa, dtypes=mesa.dtypes - missing)
        assert driver.kernel_generator([mesa, lacking]) == f"slang_{name}: subgroups of 8"
        dialect = Generators(driver, lambda lacking=lacking: [lacking]).eager().dialect
        assert {dtype for dtype in (torch.float64, torch.int16) if not dialect.supports(dtype)} == missing
        assert dialect.subgroup == 8 and dialect.supports(torch.bfloat16)
    for devices in ([], [nvidia], [mesa, replace(mesa, warp_size=4)], [mesa, nvidia], [replace(mesa, warp_size=0)]):
        assert driver.kernel_generator(devices) == "slang"
    assert VulkanDriver(subgroups=True).kernel_generator([nvidia]) == "slang: subgroups of 32"
    assert VulkanDriver(subgroups=False).kernel_generator([mesa]) == "slang"
    assert Generators(driver, lambda: [mesa]).eager().dialect.subgroup == 8
