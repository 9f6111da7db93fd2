# SPDX-License-Identifier: BSD-3-Clause
"""torch.autocast as a whole: regions, the weight cache, threads, custom functions and operators, torch.compile."""

from __future__ import annotations

import threading
import warnings

import pytest
import torch
from torch import nn

from torch_outboard import amp


@pytest.fixture
def operands(device):
    return torch.randn(4, 4, device=device), torch.randn(4, 4, device=device)


def is_on(device):
    return torch.is_autocast_enabled(device.type)


def test_regions_nest_and_end(device, low, operands):
    a, b = operands
    assert not is_on(device)
    with torch.autocast(device.type, dtype=low):
        assert is_on(device) and torch.get_autocast_dtype(device.type) == low
        assert not torch.is_autocast_enabled("cpu")
        assert (a @ b).dtype == low
        with torch.autocast(device.type, enabled=False):
            assert not is_on(device)
            assert (a @ b).dtype == torch.float32
            with torch.autocast(device.type, dtype=low):
                assert (a @ b).dtype == low
        assert is_on(device) and (a @ b).dtype == low
    assert not is_on(device)
    assert (a @ b).dtype == torch.float32


def test_a_region_ends_with_an_exception(device, low):
    with pytest.raises(KeyError), torch.autocast(device.type, dtype=low):
        raise KeyError
    assert not is_on(device)


def test_what_is_not_cast(device, low):
    double = torch.randn(3, 3, device=device, dtype=torch.float64)
    whole = torch.ones(3, 3, device=device, dtype=torch.int64)
    host = torch.randn(3, 3)
    single = torch.randn(3, 3, device=device)
    with torch.autocast(device.type, dtype=low):
        assert (double @ double).dtype == torch.float64
        assert (whole @ whole).dtype == torch.int64
        assert (host @ host).dtype == torch.float32  # the CPU's autocast is another one
        assert (single + single).dtype == torch.float32  # no policy: as it is
        out = torch.empty(3, 3, device=device)
        assert torch.mm(single, single, out=out).dtype == torch.float32
        assert single.clone().addmm_(single, single).dtype == torch.float32


def test_as_a_decorator(device, low, operands):
    @torch.autocast(device.type, dtype=low)
    def forward(a, b):
        return a @ b

    assert forward(*operands).dtype == low


class CountCasts(torch.utils._python_dispatch.TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.casts = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.casts += function is torch.ops.aten._to_copy.default
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("cache_enabled", [True, False])
def test_a_weight_is_cast_once_a_region(device, low, cache_enabled):
    weight = torch.randn(4, 4, device=device, requires_grad=True)
    inputs = torch.randn(4, 4, device=device, dtype=low)

    def casts():
        with torch.autocast(device.type, dtype=low, cache_enabled=cache_enabled), CountCasts() as count:
            for _ in range(3):
                inputs @ weight
            with torch.autocast(device.type, dtype=low, cache_enabled=cache_enabled):
                inputs @ weight
        return count.casts

    expected = 1 if cache_enabled else 4
    assert [casts(), casts()] == [expected, expected]


def test_the_cache_serves_overridden_and_custom_operators_too(device, low, policies):
    policies("aten::relu", "lower_precision_fp")
    weight = torch.randn(4, 4, device=device, requires_grad=True)
    with torch.autocast(device.type, dtype=low), CountCasts() as count:
        weight @ weight
        weight.relu()
    assert count.casts == 1


def test_a_cached_weight_gets_its_gradient(device, low):
    def gradient(place, **region):
        torch.manual_seed(1)
        weight = torch.randn(4, 4).to(place).requires_grad_()
        x = torch.randn(2, 4).to(place)
        with torch.autocast(place.type, dtype=low, **region):
            loss = (x @ weight + x @ weight).float().sum()
        loss.backward()
        return weight.grad

    cached = gradient(device)
    assert cached.dtype == torch.float32
    torch.testing.assert_close(cached, gradient(device, cache_enabled=False), rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(cached.cpu(), gradient(torch.device("cpu")), rtol=1e-2, atol=1e-2)


def test_backward_runs_in_the_dtype_of_forward(device, low):
    seen = []
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)).to(device)
    with torch.autocast(device.type, dtype=low):
        hidden = model[0](torch.randn(3, 4, device=device))
        hidden.register_hook(lambda grad: seen.append((grad.dtype, is_on(device))))
        loss = model[2](model[1](hidden)).float().mean()
    loss.backward()
    assert seen == [(low, False)]
    assert all(p.grad.dtype == torch.float32 for p in model.parameters())


def test_backward_inside_a_region_has_it_in_autograd_s_threads(device, low):
    seen = []

    class Probe(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return x.clone()

        @staticmethod
        def backward(context, grad):
            seen.append((is_on(device), torch.get_autocast_dtype(device.type), (grad @ grad).dtype))
            return grad

    x = torch.randn(3, 3, device=device, requires_grad=True)
    with torch.autocast(device.type, dtype=low):
        Probe.apply(x).sum().backward()
    assert seen == [(True, low, low)]


def test_the_state_is_the_thread_s_own(device, low, operands):
    a, b = operands
    states = []

    def work():
        states.append((is_on(device), (a @ b).dtype))
        with torch.autocast(device.type, dtype=low):
            states.append((is_on(device), (a @ b).dtype))

    with torch.autocast(device.type, dtype=low):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert states == [(False, torch.float32), (True, low)]


@pytest.mark.parametrize("shims", [False, True], ids=["torch.amp", "torch.<name>.amp"])
def test_custom_functions(device, low, shims):
    module = torch.get_device_module(device).amp
    seen = []

    def make(**options):
        forward_with = (
            module.custom_fwd(**options) if shims else torch.amp.custom_fwd(device_type=device.type, **options)
        )
        backward_with = module.custom_bwd if shims else torch.amp.custom_bwd(device_type=device.type)

        class Multiply(torch.autograd.Function):
            @staticmethod
            @forward_with
            def forward(context, a, b):
                context.save_for_backward(a, b)
                seen.append(("forward", a.dtype, is_on(device)))
                return a.mm(b)

            @staticmethod
            @backward_with
            def backward(context, grad):
                a, b = context.saved_tensors
                seen.append(("backward", grad.dtype, is_on(device)))
                return grad.mm(b.t()), a.t().mm(grad)

        return Multiply

    x = torch.randn(3, 3, device=device, requires_grad=True)
    with torch.autocast(device.type, dtype=low):
        result = make().apply(x, x)
        result.float().sum().backward()
    assert seen == [("forward", torch.float32, True), ("backward", low, True)]
    seen.clear()
    with torch.autocast(device.type, dtype=low):
        result = make(cast_inputs=torch.float32).apply(x, x.to(low))
    result.sum().backward()
    assert seen == [("forward", torch.float32, False), ("backward", torch.float32, False)]


@pytest.fixture
def library():
    with torch.library._scoped_library("outboard_amp", "FRAGMENT") as library:
        yield library


def test_a_custom_operator_with_register_autocast(device, low):
    name = f"outboard_amp::twice_{str(low).removeprefix('torch.')}"

    @torch.library.custom_op(name, mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    torch.library.register_autocast(name, device.type, low)
    x = torch.ones(3, device=device)
    assert twice(x).dtype == torch.float32
    with torch.autocast(device.type, dtype=low):
        assert twice(x).dtype == low
        assert twice(x.double()).dtype == torch.float64
        assert twice(torch.ones(3)).dtype == torch.float32
    with pytest.raises(ValueError, match="outboard_amp::twice_.* already has an autocast kernel"):
        amp.set_policy(twice, "fp32")


def test_an_operator_of_a_library_with_register_autocast(device, low, library):
    library.define("thrice(Tensor x) -> Tensor")
    library.impl("thrice", lambda x: x * 3, "CompositeExplicitAutograd")
    torch.library.register_autocast("outboard_amp::thrice", device.type, low, lib=library)
    with torch.autocast(device.type, dtype=low):
        assert torch.ops.outboard_amp.thrice(torch.ones(3, device=device)).dtype == low


def test_a_custom_operator_with_a_policy(device, low, policies):
    @torch.library.custom_op("outboard_amp::mixed", mutates_args=())
    def mixed(x: torch.Tensor, weight: torch.Tensor | None, others: list[torch.Tensor], scale: float) -> torch.Tensor:
        seen.append((x.dtype, weight is not None and weight.dtype, [tensor.dtype for tensor in others]))
        return x * scale

    seen = []
    x = torch.ones(3, device=device)
    with torch.autocast(device.type, dtype=low):
        for policy, dtype in (("lower_precision_fp", low), ("fp32", torch.float32), ("promote", torch.float32)):
            policies(mixed, policy)
            assert amp.policies()["outboard_amp::mixed"] == policy
            assert mixed(x.to(low) if policy == "fp32" else x, x.to(low), [x, x.to(low)], 2.0).dtype == dtype
            assert seen.pop() == (dtype, dtype, [dtype, dtype])
        policies(mixed, "promote")
        mixed(x.to(low), None, [x.to(low)], 2.0)
        assert seen.pop() == (low, False, [low])
        policies(mixed, "banned")
        with pytest.raises(RuntimeError, match="outboard_amp::mixed is banned under torch.autocast"):
            mixed(x, None, [], 1.0)
        policies(mixed, "default")
        assert mixed(x, None, [], 1.0).dtype == torch.float32
        assert "outboard_amp::mixed" not in amp.default_policies()


def test_policies_change_while_the_process_runs(device, low, operands, policies):
    a, b = operands
    with torch.autocast(device.type, dtype=low):
        assert a.softmax(0).dtype == torch.float32 and a.to(low).softmax(0).dtype == torch.float32
        policies("aten::softmax", "lower_precision_fp")
        assert a.softmax(0).dtype == low
        policies("aten::softmax", "fallthrough")
        assert a.softmax(0).dtype == torch.float32 and a.to(low).softmax(0).dtype == low
        policies("aten::softmax", "banned")
        with pytest.raises(RuntimeError, match="aten::softmax.int is banned.*set_policy"):
            a.softmax(0)
        policies("aten::softmax", "default")
        assert a.to(low).softmax(0).dtype == torch.float32
        policies(torch.ops.aten.mm.default, "fp32")
        assert torch.mm(a, b).dtype == torch.float32 and torch.mm(a.to(low), b).dtype == torch.float32
        policies("aten::binary_cross_entropy", "fp32")
        assert nn.functional.binary_cross_entropy(a.sigmoid(), b.sigmoid()).dtype == torch.float32
    assert torch.mm(a, b).dtype == torch.float32


def test_an_operator_inside_one_that_falls_through_keeps_its_policy(device, low, operands, policies):
    policies("aten::linear", "fallthrough")
    a, b = operands
    with torch.autocast(device.type, dtype=low):
        assert nn.functional.linear(a, b).dtype == low  # addmm's or mm's


def test_names_of_operators(device, policies):
    policies("aten::mm", "fp32")
    assert amp.policies()["aten::mm"] == "fp32" and "aten::mm.out" not in amp.policies()
    policies("aten::mm.default", "promote")
    assert amp.policies()["aten::mm"] == "promote"
    policies(torch.ops.aten.add, "promote")
    assert amp.policies()["aten::add.Tensor"] == "promote" and "aten::add.out" not in amp.policies()


@pytest.mark.parametrize(
    ("op", "policy", "message"),
    [
        ("aten::softmx", "fp32", "there is no operator 'aten::softmx'. Did you mean 'aten::softmax'"),
        ("softmax", "fp32", "there is no operator 'softmax'. Did you mean 'aten::softmax'"),
        ("aten::softmax.in", "fp32", "there is no operator 'aten::softmax.in'. Did you mean 'aten::softmax.int'"),
        ("aten::mm", "fp23", "there is no cast policy 'fp23'. Did you mean 'fp32'"),
        ("aten::mm", "default_", "there is no cast policy 'default_'. Did you mean 'default'"),
        ("aten::mm.out", "fp32", "aten::mm.out cannot have the cast policy 'fp32': it writes to its arguments"),
        ("aten::relu_", "promote", "it writes to its arguments"),
        ("aten::zeros", "fp32", "aten::zeros cannot have the cast policy 'fp32': it takes no tensor"),
        ("aten::mm", "fp32_append_dtype", "only the operators that torch lists under it"),
        ("aten::relu", "fp32_set_opt_dtype", "it has no optional dtype argument. Use 'fp32'"),
    ],
)
def test_policies_that_make_no_sense(device, op, policy, message):
    before = amp.policies()
    with pytest.raises(ValueError) as error:
        amp.set_policy(op, policy)
    assert message in str(error.value)
    assert amp.policies() == before
    with pytest.raises(TypeError):
        amp.set_policy(3, "fp32")
    with pytest.raises(TypeError):
        amp.set_policy("aten::mm", torch.float32)


def test_regions_that_make_no_sense(device):
    with pytest.raises(RuntimeError, match="autocast|device type"):
        torch.autocast("no_such_device")
    with pytest.raises(RuntimeError, match="unsupported autocast device_type 'meta'"):
        torch.autocast("meta", dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="type `str`"):
        torch.autocast(3)
    for dtype in (torch.float64, torch.int32):
        with pytest.warns(UserWarning, match="target dtype is not supported. Disabling autocast"):
            region = torch.autocast(device.type, dtype=dtype)
        with region:
            assert not is_on(device)


def test_the_shim(device, low, operands):
    module = torch.get_device_module(device)
    a, b = operands
    assert set(module.amp.__all__) == {"GradScaler", "autocast", "custom_bwd", "custom_fwd", "get_amp_supported_dtype"}
    with module.amp.autocast(dtype=low):
        assert (a @ b).dtype == low
    with module.amp.autocast(False):
        assert not is_on(device)
    with module.amp.autocast():
        assert (a @ b).dtype in module.get_amp_supported_dtype()
    assert module.amp.autocast(dtype=low)(torch.mm)(a, b).dtype == low


def test_policies_change_while_others_run(device, low, operands, policies):
    """Each call uses either the old or the new policy, never a mix."""
    a, b = (t.to(low) for t in operands)
    done = threading.Event()
    seen: list[set[torch.dtype]] = []

    def work():
        dtypes = set()
        with torch.autocast(device.type, dtype=low):
            while not done.is_set():
                dtypes.add(torch.mm(a, b).dtype)
        seen.append(dtypes)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        policies(torch.ops.aten.mm.default, "fp32")
        policies(torch.ops.aten.mm.default, "default")
    done.set()
    for thread in threads:
        thread.join()
    assert all(dtypes <= {low, torch.float32} for dtypes in seen)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("inside", [True, False], ids=["region inside", "region outside"])
def test_compiled(device, low, backend, inside):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2), nn.Softmax(-1)).to(device)
    x = torch.randn(3, 4, device=device)

    def forward(x):
        if inside:
            with torch.autocast(device.type, dtype=low):
                hidden = model[:3](x)
                return hidden, model[3](hidden)
        hidden = model[:3](x)
        return hidden, model[3](hidden)

    def run(function):
        with torch.autocast(device.type, dtype=low, enabled=not inside):
            hidden, result = function(x)
        model.zero_grad()
        result.square().sum().backward()
        return [hidden, result, *(p.grad.clone() for p in model.parameters())]

    torch._dynamo.reset()
    with warnings.catch_warnings():
        # Dynamo's own deprecations are no part of this.
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        compiled = run(torch.compile(forward, backend=backend, fullgraph=True))
    for ours, expected in zip(compiled, run(forward), strict=True):
        assert ours.dtype == expected.dtype
        torch.testing.assert_close(ours, expected)
    assert compiled[0].dtype == low and compiled[1].dtype == torch.float32
