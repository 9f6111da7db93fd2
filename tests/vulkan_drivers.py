# SPDX-License-Identifier: BSD-3-Clause
"""Vulkan drivers for the tests, for `pytest --driver=tests.vulkan_drivers:Programs`: with programs, on devices that
lack what a loader with faults takes away, with matrix units.
"""

import os
import tempfile
import zlib
from dataclasses import replace
from pathlib import Path

import torch

from torch_outboard._discovery import find_driver
from torch_outboard.codegen.dialects.slang import SLANG
from torch_outboard.codegen.dialects.units import Load, MatrixUnit, Sums, distributed_sums, joint
from torch_outboard.compile.simt.generator import SlangGenerator
from torch_outboard.testing.compiling import compile_once
from torch_outboard.testing.programs import TestPrograms

HEAD = "[vk::constant_id(0)] const int ob_block = 64;\n"


def program(name, fields, body, before="", is_pushed=True):
    """Return a program with a kernel of these arguments; `i` is an item's number."""
    pushed = "Arguments given;" if is_pushed else "Pushed pushed;\n#define given pushed.at"
    return f"""{HEAD}{before}
struct Arguments {{ int64_t ob_first_group; {fields} }};
struct Pushed {{ Arguments* at; }};
[[vk::push_constant]] {pushed}
[shader("compute")] [numthreads(ob_block, 1, 1)]
void {name}(uint3 group : SV_GroupID, uint3 item : SV_GroupThreadID) {{
  const int64_t i = (given.ob_first_group + group.x) * ob_block + item.x;
  {body}
}}
"""


SCALE = program(
    "scale",
    "float* x; float* b; float* out; int n; float a; int64_t shift;",
    "if (i < given.n) given.out[i] = given.a * given.x[i] + given.b[0] + float(given.shift);",
)
SUMS = program(
    "sums",
    "float* x; float* out; int n;",
    """held[item.x] = i < given.n ? given.x[i] : 0;
  GroupMemoryBarrierWithGroupSync();
  if (item.x == 0) {
    float sum = 0;
    for (int k = 0; k < ob_block; ++k) sum += held[k];
    given.out[given.ob_first_group + group.x] = sum;
  }""",
    "[vk::constant_id(1)] const int ob_local_1 = 64;\ngroupshared float held[ob_local_1 / 4];",
)


def many(count):
    fields = "float* out; " + " ".join(f"float* x{i};" for i in range(count))
    body = " ".join(f"given.out[{i}] = *given.x{i} + 1;" for i in range(count))
    return program("many", fields, body, is_pushed=16 + 8 * count <= 128)


class Programs(find_driver("vulkan")):
    test_programs = TestPrograms(
        language="slang",
        scale=SCALE,
        refused=SCALE.replace("given.a * ", "unknown * "),
        sums=SUMS,
        sums_by_argument=True,
        many=many,
    )


class Lacking(Programs):
    """A discrete GPU that lacks what `faults` names; tests/native/fake_vulkan.cpp has them all."""

    faults = ""

    def __init__(self, **options):
        os.environ["FAKE_VULKAN"] = f"gpu,two_memories,{self.faults}"
        native = Path(__file__).parent / "native"
        folder = Path(tempfile.gettempdir()) / f"outboard-fake-vulkan-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        flags = ["-O1", "-fPIC", "-shared", f"-I{native.parents[1] / 'include'}"]
        source = native / "fake_vulkan.cpp"
        fake = compile_once(folder / f"{zlib.crc32(source.read_bytes()):08x}.so", *flags, source)
        # The loader does not change the subgroups that there are.
        super().__init__(**{"library": str(fake), "subgroups": False, **options})


class Least(Lacking):
    """No more than Vulkan promises: groups of 128 items with 16 KiB, no types that are optional."""

    faults = "small,no_float64,no_int16,no_storage16,no_clocks"


class Wide(Lacking):
    """Subgroups of 64 items."""

    faults = "subgroups_of_64"


class NoDoubles(Lacking):
    """As many GPUs of Intel and of telephones."""

    faults = "no_float64,no_clocks"


# Each lane holds whole matrices, in plain numbers. Arrays have halves, or 16 bytes of them. Loops
# are unrolled, because lavapipe ends an item's loops after 65,535 iterations.
UNITS_HEADER = """\
struct ob_left_matrix { float at[64]; };
struct ob_right_matrix { float at[64]; };
struct ob_sum_matrix { float at[64]; };
ob_sum_matrix ob_zeros() {
  ob_sum_matrix sums;
  [ForceUnroll] for (int i = 0; i < 64; ++i) sums.at[i] = 0;
  return sums;
}
void ob_add_product(inout ob_sum_matrix sums, ob_left_matrix left, ob_right_matrix right) {
  [ForceUnroll] for (int i = 0; i < 64; ++i)
    [ForceUnroll] for (int step = 0; step < 8; ++step)
      sums.at[i] += left.at[i / 8 * 8 + step] * right.at[step * 8 + i % 8];
}
ob_u32 ob_held(uint4 entry) { return 8; }
ob_u32 ob_held(ob_u16 entry) { return 1; }
ob_u16 ob_half(uint4 entry, ob_u32 at) { return (ob_u16)(entry[at / 2] >> at % 2 * 16); }
ob_u16 ob_half(ob_u16 entry, ob_u32 at) { return entry; }
"""


def load_of_units(line, step, converted):
    element = "ob_half($ARRAY[place / ob_held($ARRAY[0])], place % ob_held($ARRAY[0]))"
    return Load(
        f"[ForceUnroll] for (int i = 0; i < 64; ++i) {{ const ob_u32 place = ((ob_u32)($AT) + {line} * $APART) "
        f"* ob_held($ARRAY[0]) + {step}; $INTO.at[i] = {converted.replace('$ELEMENT', element)}; }}",
        line="0",
        step="0",
    )


def unit(dtype, converted):
    """Return a unit of 8 by 8 by 8 whose lanes hold matrices jointly."""
    loads = load_of_units("i / 8", "i % 8", converted), load_of_units("i % 8", "i / 8", converted)
    return MatrixUnit(
        name="reference_in_slang",
        m=8,
        n=8,
        k=8,
        dtype=dtype,
        lanes=32,  # many: fewer sums at a time pass through the memory of lavapipe's groups, 32 KiB
        left=joint("ob_left_matrix"),
        right=joint("ob_right_matrix"),
        result=distributed_sums(8, 8, 32),
        multiply="ob_add_product($SUMS, $LEFT, $RIGHT);",
        header=UNITS_HEADER,
        load_left=loads,
        load_right=loads[::-1],
        sums=Sums(
            "ob_sum_matrix",
            "ob_zeros()",
            "if (lane == 0) [ForceUnroll] for (int i = 0; i < 64; ++i) $ARRAY[$AT + i] = $SUMS.at[i];",
        ),
    )


class UnitsGenerator(SlangGenerator):
    """A generator as for a GPU with matrix units, which are in plain Slang."""

    dialect = replace(
        SLANG,
        name="slang_reference",
        unroll="[loop]",  # lavapipe compiles long texts slowly
        units=(unit(torch.bfloat16, "ob_from_bf16($ELEMENT)"), unit(torch.float16, "ob_from_f16($ELEMENT)")),
    )


class Units(find_driver("vulkan")):
    """Vulkan devices with matrix units, for `pytest tests/kernels/test_matrix_units.py`."""

    code_generator = UnitsGenerator

    def __init__(self, **options):
        super().__init__(**{"host_access": False, **options})

    def kernel_generator(self, devices):
        return UnitsGenerator
