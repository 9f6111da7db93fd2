# SPDX-License-Identifier: BSD-3-Clause
"""The inputs that decide the shape and dtype of results: signatures, settings of the process, wrong meta kernels."""

from __future__ import annotations

import functools
import itertools
import sys
import warnings
from collections.abc import Iterator

import pytest
import torch

from torch_outboard import _C

from .support import attends, generates_kernels, queues_operators, reaches_memory, runs_operators, tolerances

NUMBERS = itertools.count()


@pytest.fixture
def queue(device: torch.device) -> None:
    if not queues_operators(device):
        pytest.skip("capability: operators that are queued, as generated kernels or by host_address and host_callback")


@pytest.fixture
def library() -> Iterator[torch.library.Library]:
    """Return a separate namespace, since a test's registrations must not meet the next test's."""
    library = torch.library.Library(f"shapes{next(NUMBERS)}", "DEF")
    yield library
    library._destroy()


@pytest.fixture
def default_dtype() -> Iterator[None]:
    before = torch.get_default_dtype()
    yield
    torch.set_default_dtype(before)


def test_the_default_dtype_is_part_of_a_signature(device, default_dtype):
    x = torch.arange(1, 5, device=device)
    for dtype in (torch.float32, torch.float64, torch.float32):
        torch.set_default_dtype(dtype)
        for result, expected in ((x / 3, x.cpu() / 3), (x.sqrt(), x.cpu().sqrt()), (x.float().sum() / 7,) * 2):
            assert result.dtype == expected.dtype
            torch.testing.assert_close(result.cpu(), expected.cpu(), **tolerances(dtype))
        assert torch.arange(0, 1, 0.25, device=device).dtype == dtype


def test_a_queued_call_runs_under_its_callers_default_dtype(device, default_dtype):
    """The default at the time of the run does not count; in a lazy schedule the run is always after the call."""
    x = torch.arange(1, 5, device=device)
    results = []
    for dtype in (torch.float64, torch.float32):
        torch.set_default_dtype(dtype)
        results.append((x / 3, torch.arange(1, 5) / 3))
        torch.set_default_dtype(torch.float16)
        torch.get_device_module(device).synchronize()
    for result, expected in results:
        assert result.dtype == expected.dtype
        torch.testing.assert_close(result.cpu(), expected, **tolerances(expected.dtype))


def test_grad_mode_follows_a_queued_call(device, library):
    seen = []
    library.define("look(Tensor x) -> Tensor")
    library.impl("look", lambda x: (seen.append(torch.is_grad_enabled()), x.clone())[1], "CPU")
    library.impl("look", torch.empty_like, "Meta")
    look = getattr(torch.ops, library.ns).look
    x = torch.ones(3, device=device)
    look(x).cpu()
    with torch.no_grad():
        look(x).cpu()
    look(x).cpu()
    assert seen == [True, False, True]
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("schema", ["up(Tensor x, float s) -> Tensor", "up(Tensor x, float[] s) -> Tensor"])
def test_a_float_may_decide_the_shape_of_a_custom_operator(device, library, schema):
    library.define(schema)
    length = (lambda s: int(4 * s)) if "[]" not in schema else (lambda s: int(4 * s[0]))
    library.impl("up", lambda x, s: torch.arange(length(s), dtype=x.dtype), "CPU")
    library.impl("up", lambda x, s: x.new_empty(length(s)), "Meta")
    up = getattr(torch.ops, library.ns).up
    x = torch.ones(4, device=device)
    for number in (2.0, 0.5, 3.0, 0.5):
        result = up(x, [number] if "[]" in schema else number)
        assert result.shape == (int(4 * number),)
        assert torch.equal(result.cpu(), torch.arange(int(4 * number), dtype=x.dtype))


def test_the_category_of_a_number_decides_a_dtype(device):
    x = torch.arange(4, device=device)
    for number in (2, 2.5, True, 2j, 3, 0.5, False):
        result, expected = x * number, x.cpu() * number
        assert result.dtype == expected.dtype
        assert torch.equal(result.cpu(), expected)


@pytest.mark.usefixtures("queue")
def test_numbers_that_change_are_no_new_signatures(device):
    """A learning rate, a bound of clamp: the shapes are known after the first call."""
    x = torch.ones(8, device=device)
    calls = [
        lambda i: x.clamp(max=i),
        lambda i: x.add_(x, alpha=1 / (i + 1)),
        lambda i: torch.nn.functional.layer_norm(x, (8,), eps=1e-5 * (i + 1)),
        lambda i: x.uniform_(0, i + 1),
    ]
    for call in calls:
        call(0)
        before = _C.inferred_shapes()
        for i in range(1, 20):
            call(i)
        assert _C.inferred_shapes() == before


def test_no_meta_kernel_is_asked_for_shapes_that_data_decide(device):
    x = torch.tensor([1.0, 0.0, 2.0], device=device)
    mask = x > 0
    before = _C.inferred_shapes() if reaches_memory(device) else None  # else they are made of others, whose are known
    for n in (1, 2, 3):
        assert len(mask[:n].nonzero()) == min(n, 2) - (n == 2)
        x[:n].masked_select(mask[:n])
        x[:n].unique()
    assert before is None or _C.inferred_shapes() == before


HALVES = {
    "layer norm": lambda x: torch.nn.LayerNorm(8).to(x.device, x.dtype)(x),
    "layer norm with a weight of float32": lambda x: torch.native_layer_norm(
        x, [8], *[torch.ones(8).to(x.device)] * 2, 0
    ),
    "layer norm without a weight": lambda x: torch.nn.LayerNorm(8, elementwise_affine=False)(x),
    "group norm": lambda x: torch.nn.GroupNorm(2, 8).to(x.device, x.dtype)(x),
    "group norm with a weight of float32": lambda x: torch.nn.GroupNorm(2, 8).to(x.device)(x),
    "batch norm": lambda x: torch.nn.BatchNorm1d(8).to(x.device)(x),
    "batch norm with update": lambda x: torch.ops.aten._batch_norm_with_update(
        x, *[torch.ones(8).to(x.device, x.dtype) for _ in range(4)], 0.1, 1e-5
    ),
    "a bag of embeddings": lambda x: torch.nn.functional.embedding_bag(torch.tensor([[1, 2]]).to(x.device), x),
    "attention without weights": lambda x: (
        torch.nn.MultiheadAttention(8, 2).eval().to(x.device, x.dtype)(x, x, x, need_weights=False)[0]
    ),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", HALVES)
def test_half_precision_where_the_cpus_kernels_keep_float32(device, name, dtype):
    def run(place):
        torch.manual_seed(0)
        x = torch.linspace(-2, 3, 32).reshape(4, 8).to(place, dtype)
        with torch.no_grad():
            results = HALVES[name](x)
        return results if isinstance(results, tuple) else (results,)

    ours, expected = run(device), run("cpu")
    torch.accelerator.synchronize(device)
    # Where attention is made of operators, each rounds; a generated kernel adds in another order.
    is_rounded = "attention" in name and not (attends(device) and reaches_memory(device))
    # In this form the CPU's kernel rounds the statistics to half precision first, a
    # generated one the result alone.
    is_rounded |= name == "batch norm with update" and generates_kernels(device)
    tolerance = {"atol": 2e-3, "rtol": 2e-2} if is_rounded else {}
    for a, b in zip(ours, expected, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape and a.stride() == b.stride()
        torch.testing.assert_close(a.cpu(), b, equal_nan=True, **tolerance)


@pytest.mark.usefixtures("queue")
def test_hot_signatures_survive_a_loop_over_sizes(device):
    x = torch.ones(3000, device=device)
    hot = torch.ones(7, 5, device=device)
    torch.exp(hot)
    for n in range(1, 2600):
        torch.exp(x[:n])
        if n % 100 == 0:
            before = _C.inferred_shapes()
            torch.exp(hot)
            assert _C.inferred_shapes() == before, f"after {n} sizes"


def test_a_wrong_meta_kernel_of_a_custom_operator_is_caught_at_the_first_call(device, library):
    library.define("liar(Tensor x) -> Tensor")
    library.impl("liar", lambda x: x.double().repeat(2), "CPU")
    library.impl("liar", torch.empty_like, "Meta")
    liar = getattr(torch.ops, library.ns).liar
    x = torch.ones(3, device=device)
    for _ in range(3):
        result = liar(x)
        assert result.dtype == torch.float64 and result.shape == (6,)
        assert torch.equal(result.cpu(), torch.ones(6, dtype=torch.float64))
    if reaches_memory(device):  # on a copy nobody asks the meta kernel
        [(difference, waits)] = [row[1:] for row in _C.shape_disagreements() if row[0] == f"{library.ns}::liar"]
        assert "Float [3]" in difference and "Double [6]" in difference
        assert waits == 2
    # Another class, of which nothing is known yet.
    assert liar(torch.ones(3, dtype=torch.float64, device=device)).shape == (6,)


def test_a_meta_kernel_that_errs_later_fails_that_call_and_waits_from_then_on(device, library):
    library.define("sometimes(Tensor x) -> Tensor")
    library.impl("sometimes", lambda x: x.clone() if len(x) < 4 else x[1:].clone(), "CPU")
    library.impl("sometimes", torch.empty_like, "Meta")
    sometimes = getattr(torch.ops, library.ns).sometimes
    assert sometimes(torch.ones(3, device=device)).shape == (3,)
    if not reaches_memory(device):  # on a copy nobody asks the meta kernel
        assert sometimes(torch.ones(4, device=device)).shape == (3,)
        return
    with pytest.raises(RuntimeError, match=r"meta kernel returned Float \[4\].*Float \[3\].*Correct the meta kernel"):
        sometimes(torch.ones(4, device=device))  # which raises itself where the work is done before it returns
        torch.accelerator.synchronize(device)
    assert sometimes(torch.ones(4, device=device)).shape == (3,)
    torch.accelerator.synchronize(device)


@pytest.mark.parametrize("schema", ["stop(Tensor x) -> Tensor", "stop(Tensor(a) x) -> Tensor(a)"])
def test_an_interrupt_in_a_meta_kernel_is_not_lost(device, library, schema):
    is_view = "(a)" in schema
    library.define(schema)
    library.impl("stop", lambda x: x[:] if is_view else x.clone(), "CPU")

    def meta(x):
        raise KeyboardInterrupt

    library.impl("stop", meta, "Meta")
    x = torch.ones(3, device=device)
    with pytest.raises(KeyboardInterrupt) if is_view or runs_operators(device) else warnings.catch_warnings():
        getattr(torch.ops, library.ns).stop(x)


@pytest.fixture
def late_warning(device):
    """Yield a call whose kernel warns each time, because of strides, which shape functions do not check."""
    if not reaches_memory(device):
        pytest.skip("capability: memory that the host reaches. Generated kernels don't warn late")
    boundaries = torch.arange(8.0, device=device)[::2]
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    yield lambda: torch.searchsorted(boundaries, torch.ones(3, device=device))
    torch.set_warn_always(before)


def test_warnings_of_queued_operators_reach_python(device, late_warning):
    with pytest.warns(UserWarning, match=r"boundary tensor is non-contiguous"):
        late_warning()
        torch.accelerator.synchronize(device)


def test_a_filter_makes_an_error_of_a_late_warning(device, late_warning):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="boundary tensor is non-contiguous"):
            late_warning()
            torch.accelerator.synchronize(device)
        # The wait was complete, and the warning is gone.
        torch.accelerator.synchronize(device)


@pytest.mark.usefixtures("queue")
def test_late_warnings_are_bounded(device, late_warning):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(100):
            late_warning()
        torch.accelerator.synchronize(device)
    texts = [str(warning.message) for warning in caught]
    late = [text for text in texts if "aten::searchsorted.Tensor, on the device's stream" in text]
    # Those of calls that ran at once, with nothing queued before them, are not late.
    assert len(late) <= 64
    assert len(texts) == 100 or f"{100 - len(late)} more warnings" in texts[-1]


F = torch.nn.functional
# Element-wise operators, reductions and products, by name, with the number of tensors that
# each takes. What they make of a size that they have not met is said by torch's kernels of
# meta tensors or by rules, in C++.
NEW_SIZES = {
    **{f"F.{name}": (getattr(F, name), 1) for name in (
        "celu", "elu", "gelu", "hardshrink", "hardsigmoid", "hardtanh", "hardswish", "leaky_relu", "logsigmoid", "mish",
        "relu", "relu6", "selu", "silu", "softplus", "softshrink", "tanhshrink",
    )},
    **{name: (getattr(torch, name), 1) for name in (
        "abs", "aminmax", "argmax", "deg2rad", "erfinv", "exp", "frexp", "isfinite", "logit", "mean", "neg", "norm",
        "prod", "round", "sgn", "sinc", "sort", "sqrt", "std", "sum", "tril", "var",
    )},
    **{f"{name} of two": (getattr(torch, name), 2) for name in (
        "add", "atan2", "complex", "copysign", "div", "floor_divide", "heaviside", "hypot", "isclose", "matmul",
        "maximum", "mul", "polar", "pow", "remainder", "rsub", "sub", "xlogy",
    )},
    **{f"F.{name}": (getattr(F, name), 2) for name in (
        "binary_cross_entropy", "binary_cross_entropy_with_logits", "huber_loss", "l1_loss", "mse_loss",
        "smooth_l1_loss",
    )},
    **{f"{name} along": (functools.partial(getattr(torch, name), dim=1), 1) for name in (
        "amax", "any", "cumsum", "log_softmax", "logsumexp", "median", "mode", "softmax", "sum", "var",
    )},
    "addr": (lambda x: torch.addr(x, x[0], x[1]), 1),
    "addmm": (torch.addmm, 3),
    "addmv": (lambda x: torch.addmv(x[0], x, x[1]), 1),
    "addcmul": (torch.addcmul, 3),
    "bmm": (lambda x: torch.bmm(x[None], x[None]), 1),
    "clamp": (lambda x: x.clamp(0, 1), 1),
    "from a number": (lambda x: 1 - x, 1),
    "lerp": (lambda x: torch.lerp(x, x, 0.3), 1),
    "prelu": (lambda x: F.prelu(x, x[0, :1]), 1),
    "topk": (lambda x: x.topk(2), 1),
    "where": (lambda x: torch.where(x > 0.5, x, 0.0), 1),
}  # fmt: skip


@pytest.mark.parametrize("name", NEW_SIZES)
def test_a_new_size_asks_nothing_of_python(device, queue, name):
    """torch's kernels of meta tensors in Python take hundreds of microseconds and more."""
    function, arity = NEW_SIZES[name]
    function(*[torch.rand(5, 5, device=device)] * arity)  # builds the data that each operator needs once
    size = 6 + next(NUMBERS)
    x = torch.rand(size, size, device=device)
    called = set()

    def note(frame, event, _):
        name = frame.f_code.co_filename
        if event == "call" and any(part in name for part in ("_meta_registrations", "_decomp", "_prims", "_refs")):
            called.add(f"{name}:{frame.f_code.co_name}")

    sys.setprofile(note)
    try:
        function(*[x] * arity)
    finally:
        sys.setprofile(None)
    assert not called


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float32, torch.float16, torch.uint8], ids=str)
def test_ranges_have_the_cpus_sizes(device, dtype):
    ends = (0, 1, 7, -3, 2.5, 0.1, 1e-3, 100, 255)
    # Below torch 2.13 the CPU's kernel divides int64 by such a step, as the
    # integer 0, and the process dies.
    is_deadly = dtype == torch.int64 and torch.__version__ < (2, 13)
    for start, end, step in itertools.product(ends, ends, (1, -1, 2, *([] if is_deadly else [0.3]), 7, 0)):

        def size(place, start=start, end=end, step=step):
            try:
                return torch.arange(start, end, step, dtype=dtype, device=place).shape
            except Exception as error:
                return type(error), str(error).partition("\n")[0]

        assert size(device) == size("cpu"), (start, end, step)


@pytest.mark.filterwarnings("ignore:The number of elements in the out tensor", "ignore:An output with one or more")
@pytest.mark.parametrize("shape", [(0,), (6,), (2, 3), (4,), (2, 0), ()])
def test_outputs_of_ranges_end_as_on_the_cpu(device, shape):
    def filled(place):
        for call in (lambda out: torch.arange(6, out=out), lambda out: torch.linspace(0, 1, 6, out=out)):
            out = torch.zeros(shape, device=place)
            yield call(out)
            yield out

    for ours, expected in zip(filled(device), filled("cpu"), strict=True):
        assert ours.shape == expected.shape and ours.stride() == expected.stride()
        torch.testing.assert_close(ours.cpu(), expected)
