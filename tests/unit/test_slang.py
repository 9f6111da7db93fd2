# SPDX-License-Identifier: BSD-3-Clause
"""The dialect slang: texts of all kinds compile, and prelude/math.h computes what C's library does."""

from __future__ import annotations

import ctypes
import ctypes.util
import itertools
import json
import math
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.slang import compile_slang, compiler_of_slang, refusal_of_spirv
from torch_outboard.codegen.dialects.frame import LocalArray, Parameter
from torch_outboard.codegen.dialects.opencl_c import OPENCL_C
from torch_outboard.codegen.dialects.slang import SLANG, SLANGS, Slang, struct_bytes
from torch_outboard.codegen.prelude import needed_by
from torch_outboard.testing.plugin import RunPython

needs_compiler = pytest.mark.skipif(
    compiler_of_slang() is None, reason="capability: Slang's compiler (pip install --no-deps slangtorch)"
)

# A call of each template, and of each kind of kernel that Inductor's lowerings give.
_CALLS = """
import json, sys, torch, torch_outboard
from tests.simt_drivers import Unbuilt

texts = {}
class Collecting(Unbuilt):
    kernel_generator = sys.argv[1]
    def program_build(self, device, language, code, options):
        texts[code.decode() if isinstance(code, bytes) else code] = options
        return next(self.handles)
torch_outboard.attach(Collecting)
F, ops = torch.nn.functional, torch.ops.aten

def ones(*sizes, dtype=torch.float32):
    tensor = torch.ones(sizes, dtype=dtype).to("unbuilt")
    return tensor.requires_grad_() if dtype.is_floating_point else tensor

def back(result):
    result.backward(torch.ones_like(result))

half = torch.bfloat16
places = ones(3, dtype=torch.int64)
back(F.conv2d(ones(2, 3, 16, 16), ones(8, 3, 3, 3), ones(8), stride=2))
for groups in (16, 4):
    for dtype in (torch.float32, half):
        filters = ones(16, 16 // groups, 3, 3, dtype=dtype)
        image = ones(2, 16, 9, 9, dtype=dtype).contiguous(memory_format=torch.channels_last)
        back(F.conv2d(image, filters, padding=1, groups=groups))
torch.mm(ones(200, 130), ones(130, 70)), torch.mm(ones(64, 64, dtype=half), ones(64, 64, dtype=half))
back(F.scaled_dot_product_attention(*(ones(1, 2, 64, 32) for _ in range(3)), is_causal=True))
back(F.layer_norm(ones(4, 512), (512,), ones(512), ones(512)))
with torch.no_grad():
    F.embedding(places, ones(20, 8)), torch.nn.GRU(4, 8).to("unbuilt")(ones(5, 3, 4))
    torch.sort(ones(3, 5000)), torch.cumsum(ones(3, 10), 1), torch._foreach_norm([ones(9), ones(4)])
    F.batch_norm(ones(2, 3, 16, 16), ones(3), ones(3), training=True)
    torch.randn(9, device="unbuilt"), F.dropout(ones(9), 0.5)
    narrow = ones(10, 12, dtype=half)
    torch.add(narrow, narrow, alpha=3)  # which rounds alpha
    narrow.index_put_((places,), ones(3, 12, dtype=half), accumulate=True), ones(9).frexp(), narrow.argmax(1)
    torch.special.airy_ai(ones(9)), torch.special.gammainc(ones(9), ones(9)), torch.special.zeta(ones(9), ones(9))
    whole = ones(4, 30, dtype=torch.int8)
    whole // whole, whole**whole, whole << whole, whole.sum(1)
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2fnuz):
        ones(9).to(dtype).float()
    torch.cholesky_inverse(ones(3, 0, 0))  # no text divides by 0
    truth = ones(9, dtype=torch.bool)
    truth < truth, truth >= truth, torch.maximum(truth, truth), truth + truth, truth.sort()
print(json.dumps(list(texts.items())))
"""


_CAPABILITY = 17  # the instruction OpCapability, which stands at a module's beginning
# Float16Buffer, Float16, Float64, Int16, StorageBuffer16BitAccess and its like
_OPTIONAL = {8, 9, 10, 22, *range(4433, 4437)}


@needs_compiler
@pytest.mark.parametrize("name", ["slang", "slang_floats_bytes"])
def test_texts_of_all_kinds_compile(name: str, run_python: RunPython, tmp_path: Path) -> None:
    answer = run_python(_CALLS, name, env={"OUTBOARD_FALLBACK": "error"})
    texts = json.loads(answer.stdout.splitlines()[-1])
    assert len(texts) > 30
    for text, options in texts:
        code = compile_slang(text, options)
        assert shutil.which("spirv-val") is None or refusal_of_spirv(code, tmp_path) == "", text
        words = struct.unpack(f"<{len(code) // 4}I", code)
        declared = {number for head, number in itertools.pairwise(words[5:100]) if head == 2 << 16 | _CAPABILITY}
        assert name == "slang" or not declared & _OPTIONAL, text


@needs_compiler
@pytest.mark.parametrize("dialect", SLANGS.values(), ids=SLANGS)
def test_the_library_compiles(dialect: Slang, tmp_path: Path) -> None:
    kinds = ("float", "double") if dialect.has_double else ("float",)
    calls = [f"{kind}s[{i}] = OB_LIB({name})({kind}s[1]);" for kind in kinds for i, name in enumerate(_ONE)]
    calls += [f"{kind}s[0] = OB_LIB({name})({kind}s[1], {kind}s[2]);" for kind in kinds for name in _TWO]
    results = [Parameter(f"{kind}s", kind, is_pointer=True, is_written=True) for kind in kinds]
    code = compile_slang(dialect.source(dialect.frame("f", results, "\n".join(calls) + "\n")), dialect.options)
    assert shutil.which("spirv-val") is None or refusal_of_spirv(code, tmp_path) == ""


@needs_compiler
def test_arguments_beyond_push_constants_are_behind_an_address() -> None:
    many = [Parameter(f"number{i}", "ob_i64") for i in range(15)]
    written = Parameter("result", "ob_i64", is_pointer=True, is_written=True)
    body = "  result[0] = number0;\n"
    assert struct_bytes([*many, Parameter("small", "ob_u8"), Parameter("last", "float")]) == 128
    for parameters, is_behind in ((many[:14], False), (many, True)):
        text = SLANG.source(SLANG.frame("f", [*parameters, written], body))
        assert ("ob_pushed" in text) is is_behind
        assert b"f" in compile_slang(text, SLANG.options)


@needs_compiler
def test_kernels_of_a_program_have_their_own_memory() -> None:
    body = "  tile[OB_ITEM_OF_GROUP] = 1;\n  OB_BARRIER;\n  result[0] = tile[0];\n"
    result = Parameter("result", "float", is_pointer=True, is_written=True)
    frames = [SLANG.frame(name, [result], body, [LocalArray("float", "tile", "64")]) for name in ("first", "second")]
    code = compile_slang(SLANG.source("".join(frames)), SLANG.options)
    assert b"first\0" in code and b"second\0" in code


# A kernel that reads elements before its pointers, on a device.
_BEFORE = """
import torch, torch_outboard
from torch_outboard.codegen.dialects.frame import Parameter
from torch_outboard.codegen.dialects.slang import SLANG

torch_outboard.attach("vulkan")
given = [Parameter("x", "ob_u16", is_pointer=True), Parameter("y", "double", is_pointer=True)]
given.append(Parameter("result", "double", is_pointer=True, is_written=True))
body = ""
for kind, name in (("ob_u16", "x"), ("double", "y")):
    body += f"  {name} = {SLANG.before(kind, name, '(ob_u32)result[0] / 2')};\\n"
text = SLANG.source(SLANG.frame("f", given, body + "  result[1] = x[0];\\n  result[2] = y[1];\\n"))
signature = "const uint16*, const float64*, float64*"
kernel = torch_outboard.build_kernel(text, "f", language="slang", options=SLANG.options, signature=signature)
x, y = (torch.arange(100, device="vk").to(dtype) for dtype in (torch.uint16, torch.float64))
result = torch.tensor([14.0, 0, 0], dtype=torch.float64).to("vk")
torch_outboard.launch(kernel, (x[50:], y[60:], result), grid=1, block=1)
assert result.tolist() == [14, 43, 54], result
"""


@needs_compiler
@pytest.mark.skipif(ctypes.util.find_library("vulkan") is None, reason="capability: a loader of Vulkan")
def test_elements_before_a_pointer(run_python: RunPython) -> None:
    run_python(_BEFORE)
    assert OPENCL_C.before("ob_u16", "x", "n / 2") == "x - n / 2"


# A kernel that loads and stores structs, one in another, on a device.
_STRUCTS = """
import torch, torch_outboard
from torch_outboard.codegen.dialects.frame import Parameter
from torch_outboard.codegen.dialects.slang import SLANG

torch_outboard.attach("vulkan")
structs = "struct pair { ob_u8 low, high; };\\nstruct both { pair first; ob_u8 alone; pair second; };\\n"
given = [Parameter("x", "ob_u8", is_pointer=True), Parameter("result", "ob_u8", is_pointer=True, is_written=True)]
body = "  both taken = ((both*)x)[2];\\n  taken.second = taken.first;\\n  ((both*)result)[1] = taken;\\n"
kernel = torch_outboard.build_kernel(
    SLANG.source(structs + SLANG.frame("f", given, body)), "f", language="slang", options=SLANG.options,
    signature="const uint8*, uint8*",
)
result = torch.zeros(10, dtype=torch.uint8).to("vk")
torch_outboard.launch(kernel, (torch.arange(15, dtype=torch.uint8).to("vk"), result), grid=1, block=1)
assert result.tolist() == [0, 0, 0, 0, 0, 10, 11, 12, 10, 11], result
"""


@needs_compiler
@pytest.mark.skipif(ctypes.util.find_library("vulkan") is None, reason="capability: a loader of Vulkan")
def test_structs_in_memory(run_python: RunPython) -> None:
    run_python(_STRUCTS)


_UNARY = """
    exp exp2 expm1 log log2 log10 log1p sin cos tan sinh cosh tanh asin acos atan asinh acosh atanh erf erfc
    lgamma tgamma
"""
_ONE = tuple(_UNARY.split())
_TWO = ("pow", "fmod", "atan2", "copysign", "hypot", "nextafter", "fmax")

_HOST = r"""
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
using ob_i32 = int32_t; using ob_i64 = int64_t; using ob_u32 = uint32_t; using ob_u64 = uint64_t;
#define OB_DEVICE static inline
#define OB_STRUCT(name) struct name
#define OB_TABLE static const
#define OB_OUT(type, name) type& name
#define OB_LIB(name) ob_lib_##name
template <class To, class From> static To bits(From from) { To to; std::memcpy(&to, &from, sizeof to); return to; }
#define OB_AS_F32(x) bits<float, ob_u32>(x)
#define OB_AS_U32(x) bits<ob_u32, float>(x)
#define OB_AS_F64(x) bits<double, ob_u64>(x)
#define OB_AS_U64(x) bits<ob_u64, double>(x)
#define OB_INFINITY std::numeric_limits<float>::infinity()
#define OB_NAN std::numeric_limits<float>::quiet_NaN()
#define OWN(T, name) static inline T ob_lib_##name(T x) { return std::name(x); }
#define OWN_OF(T) OWN(T, fabs) OWN(T, floor) OWN(T, rint) OWN(T, sqrt)
OWN_OF(float)
OWN_OF(double)
#define ONE(name, T, W, S) \
  extern "C" void name##_##S(const T* x, const T*, T* out, double* far, long n) { \
    for (long i = 0; i < n; ++i) { \
      out[i] = OB_LIB(name)(x[i]); far[i] = off(out[i], std::name((W)x[i])); } }
#define TWO(name, T, W, S) \
  extern "C" void name##_##S(const T* x, const T* y, T* out, double* far, long n) { \
    for (long i = 0; i < n; ++i) { \
      out[i] = OB_LIB(name)(x[i], y[i]); far[i] = off(out[i], std::name((W)x[i], (W)y[i])); } }
// The units in the last place by which a number differs.
template <class T, class W> static double off(T found, W wanted) {
  const T near = (T)wanted;
  if (found == near) return std::signbit(found) == std::signbit(near) ? 0 : 1e9;
  if (std::isnan(found) || std::isnan(near)) return std::isnan(found) && std::isnan(near) ? 0 : 1e9;
  if (std::isinf(found) || std::isinf(near)) return 1e9;
  const T size = std::fabs(near);
  const T unit = std::nextafter(size, std::numeric_limits<T>::infinity()) - size;
  return (double)(std::fabs((W)found - wanted) / unit);
}
"""


@pytest.fixture(scope="module")
def call(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., float]:
    """Return a function that computes elements by math.h, on the host: the greatest error."""
    folder = tmp_path_factory.mktemp("math")
    blocks = "\n".join(needed_by(" ".join(f"OB_LIB({name})" for name in (*_ONE, *_TWO)), ("math",)))
    loops = [f"ONE({name}, float, double, f32) ONE({name}, double, long double, f64)" for name in _ONE]
    # C++ has `nextafter` of one type only: the next of the wider type would be nearer.
    wide = {"nextafter": ("float", "double")}
    for name in _TWO:
        first, second = wide.get(name, ("double", "long double"))
        loops.append(f"TWO({name}, float, {first}, f32) TWO({name}, double, {second}, f64)")
    (folder / "math.cpp").write_text("\n".join([_HOST, blocks, *loops]))
    command = ["c++", "-std=c++17", "-O1", "-ffp-contract=off", "-fPIC", "-shared", "math.cpp", "-o", "math.so"]
    subprocess.run(command, cwd=folder, check=True)
    library = ctypes.CDLL(str(folder / "math.so"))

    def run(name: str, x: torch.Tensor, y: torch.Tensor) -> float:
        out, far = torch.empty_like(x), torch.empty(x.shape, dtype=torch.float64)
        pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (x, y, out, far)]
        getattr(library, f"{name}_{'f32' if x.dtype == torch.float32 else 'f64'}")(*pointers, ctypes.c_long(x.numel()))
        return float(far.max())

    return run


def _numbers(dtype: torch.dtype) -> torch.Tensor:
    generator, info = torch.Generator().manual_seed(7), torch.finfo(dtype)
    edges = [0.0, 1.0, 0.5, 2.0, 3.0, 7.5, 20.0, 1e9, math.inf, math.nan, info.tiny, info.tiny / 2**10, info.max]
    edges += [1 + info.eps, 1 - info.eps / 2, info.smallest_normal * info.eps]
    whole, kind = (torch.int32, 2**31 - 1) if dtype == torch.float32 else (torch.int64, 2**63 - 1)
    bits = torch.randint(-kind, kind, (20000,), generator=generator).to(whole).view(dtype)
    spread = [(torch.rand(20000, generator=generator, dtype=torch.float64) * 2 - 1) * most for most in (1, 4, 25, 800)]
    return torch.cat(
        [torch.tensor([*edges, *(-edge for edge in edges)], dtype=dtype), bits, *(x.to(dtype) for x in spread)]
    )


# Units in the last place.
_MAX_ULPS = {"erfc": 5, "sinh": 3.5, "cosh": 3.5, "tanh": 3, "tan": 3, "atan2": 3, "hypot": 2.5}
_EXACT = ("fmod", "copysign", "nextafter", "fmax")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", [*_ONE, *_TWO])
def test_functions_are_those_of_the_library(call: Callable[..., float], name: str, dtype: torch.dtype) -> None:
    x = _numbers(dtype)
    if name in ("lgamma", "tgamma"):
        # Near the zeros between negative numbers, what is lost is lost of 1.
        x = x[(x > 0) & (x < 30) | x.isnan() | (x == 0) | x.isinf() & (x > 0)]
    y = torch.cat([x[40:], x[:40]]).flip(0)
    most = 0.0 if name in _EXACT else _MAX_ULPS.get(name, 8 if name.endswith("gamma") else 2.2)
    assert call(name, x.contiguous(), y.contiguous()) <= most
    if name == "pow":
        small = torch.linspace(-9, 9, 19, dtype=dtype)
        bases, powers = (tensor.reshape(-1).contiguous() for tensor in torch.meshgrid(small, small, indexing="ij"))
        assert call(name, bases, powers) <= most
