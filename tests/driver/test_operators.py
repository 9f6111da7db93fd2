# SPDX-License-Identifier: BSD-3-Clause
"""Operators that often go wrong on a new device: indexing, `out=`, reductions, sparse, complex, foreach."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from .support import assert_same, reaches_memory, reset_waits, waits


def both(device, *shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point or dtype.is_complex:
        host = torch.randn(shape, dtype=dtype, generator=generator)
    else:
        host = torch.randint(0, 9, shape, generator=generator).to(dtype)
    return host.to(device), host


@pytest.mark.parametrize(
    "index",
    [
        lambda t: t[t > 0],
        lambda t: t[:, (t[0] > 0)],
        lambda t: t[(t.sum(1) > 0).nonzero().flatten()],
        lambda t: t[[3, 1, 1], [0, 2, 4]],
        lambda t: t[[0, 2]][:, [1, 3]],
        lambda t: t[None, ..., -1],
        lambda t: t[torch.tensor(2), torch.tensor([1])],
        lambda t: t[torch.zeros(0, dtype=torch.long)],
        lambda t: t.take(torch.tensor([0, 7, 3]).to(t.device)),
        lambda t: t.masked_select(t < 0),
        lambda t: t.nonzero(),
        lambda t: torch.where(t > 0)[1],
        lambda t: t.unique(),
        lambda t: (t * 2).round().unique(return_counts=True)[1],
        lambda t: t.index_add(0, torch.tensor([0, 0, 1]).to(t.device), t[:3]),
        lambda t: t.scatter_add(0, torch.zeros(2, 5, dtype=torch.long, device=t.device), t[2:4]),
        lambda t: t.index_put((torch.tensor([1, 1]).to(t.device),), t[:2], accumulate=True),
        lambda t: t.masked_fill(t > 0, -1.0),
        lambda t: t.masked_scatter(t > 0, t.flip(0)),
        lambda t: t.flip(0, 1).roll(2, 1),
        lambda t: torch.bincount((t.abs() * 3).long().flatten()),
    ],
)
def test_indexing(device, index):
    ours, host = both(device, 4, 5)
    assert_same(index(ours), index(host), device)


def test_assignment_through_indices(device):
    ours, host = both(device, 4, 5)
    for tensor in (ours, host):
        tensor[tensor > 1] = 0
        tensor[torch.tensor([0, 2]).to(tensor.device)] = torch.arange(5.0).to(tensor.device)
        tensor[1, [0, 3]] += 10
        tensor[[True, False, False, True]] *= 2
        tensor[..., tensor[0] == 4] = -7.5
    assert_same(ours, host, device)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_topk_sort_and_friends(device, dim, largest):
    ours, host = both(device, 6, 7)
    for call in (
        lambda t: t.topk(3, dim, largest),
        lambda t: t.sort(dim, largest),
        lambda t: t.kthvalue(2, dim),
        lambda t: t.max(dim),
        lambda t: t.median(dim),
        lambda t: t.mode(dim),
        lambda t: t.cummax(dim),
        lambda t: torch.var_mean(t, dim),
        lambda t: torch.aminmax(t, dim=dim),
    ):
        for result, expected in zip(call(ours), call(host), strict=True):
            assert_same(result, expected, device)


OUT_CALLS = {
    "add": lambda t, out: torch.add(t, t, out=out),
    "relu-like clamp": lambda t, out: torch.clamp(t, 0, 1, out=out),
    "mm": lambda t, out: torch.mm(t, t.t(), out=out),
    "sum": lambda t, out: torch.sum(t, 0, out=out),
    "cat": lambda t, out: torch.cat([t, t], out=out),
    "index_select": lambda t, out: torch.index_select(t, 0, torch.tensor([2, 0]).to(t.device), out=out),
    "cumsum": lambda t, out: torch.cumsum(t, 1, out=out),
    "softmax": lambda t, out: torch.softmax(t, 1, out=out),
    "arange": lambda t, out: torch.arange(7, out=out),
    "nonzero": lambda t, out: torch.nonzero(t > 0, out=out),
    "masked_select": lambda t, out: torch.masked_select(t, t > 0, out=out),
}


def out_dtype(name):
    return torch.int64 if name == "nonzero" else torch.float32


def make_out(kind, shape, whole):
    """Make an output for a result of `shape`; a stepped output is part of `whole`."""

    def full(*sizes):
        return torch.full(sizes, 99, dtype=whole.dtype, device=whole.device)

    if kind == "transposed":
        return full(*reversed(shape)).permute(*reversed(range(len(shape))))
    if kind == "stepped":
        return whole[tuple(slice(0, 2 * size, 2) for size in shape)]
    return full(*{"empty": (0,), "right": shape, "too large": (50,), "too small": (1,)}[kind])


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.filterwarnings("ignore:The number of elements in the out tensor of shape")
@pytest.mark.parametrize("kind", ["empty", "right", "too large", "too small", "transposed", "stepped"])
@pytest.mark.parametrize("name", OUT_CALLS)
def test_out_of_every_kind(device, name, kind):
    ours, host = both(device, 3, 4)
    call, dtype = OUT_CALLS[name], out_dtype(name)
    shape = call(host, torch.empty(0, dtype=dtype)).shape
    results = []
    for tensor, place in ((ours, device), (host, torch.device("cpu"))):
        whole = torch.full(tuple(2 * size + 1 for size in shape), 99, dtype=dtype, device=place)
        out = make_out(kind, shape, whole)
        if kind == "too small" and out.shape == shape:
            return
        returned = call(tensor, out)
        assert returned is out
        results.append((out, whole))
    (result, whole), (expected, expected_whole) = results
    if kind in ("right", "transposed", "stepped"):
        # An output that is resized may get other strides.
        assert result.stride() == expected.stride()
    assert_same(result, expected, device)
    # What lies between the elements of a stepped output is left alone.
    assert_same(whole, expected_whole, device)


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_out_of_another_type_and_two_outs(device):
    ours, host = both(device, 3, 4)
    target = torch.empty(3, 4, dtype=torch.float64, device=device)
    assert_same(torch.add(ours, 1, out=target), (host + 1).double(), device)
    with pytest.raises(RuntimeError, match="can't be cast"):
        torch.add(ours, 1.5, out=torch.empty(3, 4, dtype=torch.int32, device=device))
    values, indices = torch.empty(0, device=device), torch.empty(9, dtype=torch.long, device=device)
    torch.topk(ours, 2, out=(values, indices))
    for result, expected in zip((values, indices), torch.topk(host, 2), strict=True):
        assert_same(result, expected, device)


def test_out_that_overlaps_an_input(device):
    ours, host = both(device, 4, 4)
    for tensor in (ours, host):
        torch.add(tensor, 1, out=tensor)
        torch.mul(tensor[1], 2, out=tensor[2])
        torch.mm(tensor, tensor, out=torch.empty_like(tensor)).neg_()
    assert_same(ours, host, device)
    with pytest.raises(RuntimeError, match="(?i)overlap|single memory location"):
        torch.add(ours[:1].expand(4, 4), 1, out=ours[:1].expand(4, 4))
        torch.accelerator.synchronize(device)
    with pytest.raises(RuntimeError, match="(?i)overlap|single memory location"):
        torch.add(ours[:3], 1, out=ours[1:])
        torch.accelerator.synchronize(device)


def test_tensors_of_a_list_may_share_a_storage(device):
    ours, host = both(device, 6, 4)
    for tensor in (ours, host):
        torch._foreach_add_([tensor[0], tensor[2:4], tensor[5, 1:3]], [1.0, 2.0, 3.0])
        tensor[1].copy_(tensor[2]).mul_(tensor[3])
    assert_same(ours, host, device)


def test_complex_arithmetic(device):
    ours, host = both(device, 4, 4, dtype=torch.complex64)
    for call in (
        lambda t: t @ t.mH,
        lambda t: t.conj() * t,
        lambda t: t.abs(),
        lambda t: t.angle(),
        lambda t: torch.view_as_real(t),
        lambda t: torch.fft.fft2(t),
        lambda t: torch.fft.irfft(t),
        lambda t: t.real + t.imag,
        lambda t: t.conj().imag.neg(),
        lambda t: torch.polar(t.abs(), t.angle()),
        lambda t: t.conj().sum(),
    ):
        assert_same(call(ours).resolve_conj().resolve_neg(), call(host).resolve_conj().resolve_neg(), device)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")
def test_sparse_coo(device):
    indices, values = torch.tensor([[0, 1, 1, 0], [2, 0, 2, 2]]), torch.tensor([3.0, 4.0, 5.0, 6.0])
    dense = torch.arange(9.0).reshape(3, 3)

    def all_of(place):
        sparse = torch.sparse_coo_tensor(indices.to(place), values.to(place), (2, 3))
        coalesced = sparse.coalesce()
        host = dense.to(place)
        yield coalesced.indices()
        yield coalesced.values()
        yield sparse.to_dense()
        yield torch.sparse.mm(sparse, host)
        yield (sparse * 2).to_dense()
        yield (sparse + sparse).coalesce().values()
        yield torch.sparse.sum(sparse, 0).to_dense()
        yield host.to_sparse().values()
        yield sparse.t().to_dense()
        yield host[:2] + sparse

    for result, expected in zip(all_of(device), all_of("cpu"), strict=True):
        assert_same(result, expected, device)
    moved = torch.sparse_coo_tensor(indices, values, (2, 3)).to(device)
    assert moved.is_sparse and moved.device == device
    assert torch.equal(moved.cpu().to_dense(), moved.to_dense().cpu())
    assert moved._nnz() == 4


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")
def test_sparse_csr_is_refused_by_name(device):
    host = torch.tensor([[0.0, 2.0], [3.0, 0.0], [0.0, 5.0]])
    with pytest.raises(NotImplementedError, match="SparseCsr.*which supports dense and sparse COO tensors"):
        host.to(device).to_sparse_csr()


@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")
def test_sparse_tensors_of_nothing(device):
    """The indices have no memory, but the values may have: a gradient's values are a part of one."""

    def doubled(place):
        x = torch.arange(10.0).reshape(2, 5).to(place).requires_grad_()
        torch.gather(x, -1, torch.zeros(2, 0, dtype=torch.int64, device=place), sparse_grad=True).sum().backward()
        return (x.grad * 2).to_dense()

    assert_same(doubled(device), doubled("cpu"), device)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")
def test_sparse_gradients_of_an_embedding(device):
    def gradient(place):
        weight = torch.ones(5, 2, device=place, requires_grad=True)
        functional.embedding(torch.tensor([1, 3, 1], device=place), weight, sparse=True).sum().backward()
        return weight.grad

    assert gradient(device).is_sparse
    assert_same(gradient(device).to_dense(), gradient("cpu").to_dense(), device)


FOREACH = {
    "add": lambda a, b: torch._foreach_add(a, b, alpha=2),
    "mul": lambda a, b: torch._foreach_mul(a, b),
    "add scalar": lambda a, b: torch._foreach_add(a, 3.0),
    "scalar list": lambda a, b: torch._foreach_mul(a, [1.0, 2.0, 3.0]),
    "addcdiv": lambda a, b: torch._foreach_addcdiv(a, b, [t.abs() + 1 for t in b], 0.5),
    "sqrt": lambda a, b: torch._foreach_sqrt([t.abs() for t in a]),
    "norm": lambda a, b: torch._foreach_norm(a),
    "lerp": lambda a, b: torch._foreach_lerp(a, b, 0.3),
    "maximum": lambda a, b: torch._foreach_maximum(a, b),
}


@pytest.mark.parametrize("name", FOREACH)
def test_foreach(device, name):
    shapes = [(3, 4), (), (5,)]
    ours, host = zip(*(both(device, *shape, seed=number) for number, shape in enumerate(shapes)), strict=True)
    others, hosts = zip(*(both(device, *shape, seed=number + 9) for number, shape in enumerate(shapes)), strict=True)
    results = FOREACH[name](list(ours), list(others))
    for result, expected in zip(results, FOREACH[name](list(host), list(hosts)), strict=True):
        assert_same(result, expected, device)


def test_foreach_in_place_and_clipping(device):
    ours, host = zip(*(both(device, size) for size in (3, 700)), strict=True)
    for tensors in (ours, host):
        torch._foreach_mul_(list(tensors), 2.0)
        torch._foreach_add_(list(tensors), [1.0, -1.0])
        torch._foreach_copy_(list(tensors[:1]), [tensors[1][:3]])
        for tensor in tensors:
            tensor.grad = tensor.clone()
    norms = [torch.nn.utils.clip_grad_norm_(list(tensors), 1.0) for tensors in (ours, host)]
    assert_same(norms[0], norms[1], device)
    for tensor, expected in zip(ours, host, strict=True):
        assert_same(tensor, expected, device)
        assert_same(tensor.grad, expected.grad, device)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.int32], ids=str)
def test_reductions_of_every_type(device, dtype):
    ours, host = both(device, 7, 300, dtype=dtype)
    calls = [lambda t: t.sum(), lambda t: t.sum(0), lambda t: t.prod(1), lambda t: t.any(), lambda t: t.cumsum(1)]
    if not dtype.is_complex:
        calls += [lambda t: t.amax(1), lambda t: t.argmin(), lambda t: t.max()]
    for call in calls:
        assert_same(call(ours), call(host), device)


def test_linear_algebra(device):
    ours, host = both(device, 5, 5, dtype=torch.float64)
    for call in (
        lambda t: torch.linalg.inv(t),
        lambda t: torch.linalg.det(t),
        lambda t: torch.linalg.solve(t, t[:, :2]),
        lambda t: torch.linalg.svdvals(t),
        lambda t: torch.linalg.cholesky(t @ t.T + torch.eye(5, dtype=t.dtype, device=t.device)),
        lambda t: torch.linalg.eigvalsh(t + t.T),
        lambda t: torch.einsum("ij,kj->ik", t, t),
        lambda t: torch.linalg.qr(t)[1],
    ):
        assert_same(call(ours), call(host), device)


def test_a_custom_operator_without_a_kernel_for_the_device(device):
    with torch.library._scoped_library("outboard_test", "FRAGMENT") as library:
        library.define("twice_plus(Tensor a, int n) -> Tensor")
        library.impl("twice_plus", lambda a, n: a * 2 + n, "CompositeExplicitAutograd")
        ours, host = both(device, 4)
        assert_same(torch.ops.outboard_test.twice_plus(ours, 3), host * 2 + 3, device)


def test_float_settings_reach_the_operators(device):
    tiny = torch.tensor([1e-40])
    if not torch.set_flush_denormal(True):
        pytest.skip("capability: a host that flushes denormal numbers")
    try:
        assert (tiny.to(device) * 1).item() == (tiny * 1).item() == 0
    finally:
        torch.set_flush_denormal(False)
    assert (tiny.to(device) * 1).item() == (tiny * 1).item() != 0


def test_deterministic_mode_reaches_the_operators(device):
    torch.use_deterministic_algorithms(True)
    try:
        fresh = torch.empty(100, device=device)
        assert fresh.isnan().all().item()
        ours, host = both(device, 50, 4)
        index = torch.arange(50) % 7
        assert_same(ours.index_add(0, index.to(device), ours), host.index_add(0, index, host), device)
    finally:
        torch.use_deterministic_algorithms(False)


BY_DEVICE = {
    "rfft2": lambda t: torch.fft.rfft2(t.expand(3, 4, 5)),
    "hfftn": lambda t: torch.fft.hfftn(t.expand(3, 4, 5), dim=(0, 1)),
    "svd": lambda t: [factor.abs() for factor in torch.linalg.svd(t)],  # the signs of vectors are free
    "eig": lambda t: torch.linalg.eig(t[:, :4]),
    "embedding_bag": lambda t: torch.embedding_bag(
        t, torch.tensor([0, 1, 3], device=t.device), torch.tensor([0, 2], device=t.device), mode=0
    ),
}
if torch.__version__ >= (2, 13):
    # Torch 2.11's meta kernel departs from the CPU kernel for the CPU's tensors too.
    BY_DEVICE["rfftn"] = lambda t: torch.fft.rfftn(t.expand(3, 4, 5), dim=(0, 2))


@pytest.mark.parametrize("name", BY_DEVICE)
def test_meta_kernels_that_ask_for_the_device_give_the_strides_of_the_cpu(device, name):
    ours, host = both(device, 4, 5)
    is_queued = reaches_memory(device)
    reset_waits()
    results = BY_DEVICE[name](ours)
    # The two raise at the call what their kernels find, so they wait.
    may_wait = {"aten::_copy_from", "aten::_linalg_svd", "aten::linalg_eig", "aten::_local_scalar_dense"}
    assert not is_queued or set(waits()) <= may_wait
    for result, expected in zip(tree_leaves(results), tree_leaves(BY_DEVICE[name](host)), strict=True):
        assert_same(result, expected, device)
        assert result.stride() == expected.stride()


@pytest.mark.parametrize("name", ["median", "nanmedian"])
def test_medians_of_expanded_tensors(device, name):
    """The CPU's kernel reads the elements behind an expanded one as if they were its own."""
    behind = torch.tensor([1.0, 9, 9, 9, 9, 9]).to(device)
    for view in (behind[:1].expand(5), behind[:2, None].expand(2, 5), behind[None, :1].expand(5, 1)):
        values, indices = getattr(view, name)(0)
        assert (
            values.flatten().tolist() == view.cpu().contiguous().sort(0)[0][(view.shape[0] - 1) // 2].flatten().tolist()
        )
        assert bool((indices < view.shape[0]).all())
        assert getattr(view, name)(0, keepdim=True).values.shape == (1, *view.shape[1:])
