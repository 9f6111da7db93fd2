# SPDX-License-Identifier: BSD-3-Clause
"""Operators on copies of their arguments, for a driver whose memory the host cannot reach."""

from __future__ import annotations

FAR = """
import torch, torch_outboard
from examples.pure_python_driver import PythonDriver

class Far(PythonDriver):
    name = "far"
    host_address = None

torch_outboard.attach(Far)
torch_outboard._C.set_fallback_mode("silent")
"""


def test_views_show_the_arguments_memory(run_python):
    run_python(
        FAR
        + """
library = torch.library.Library("far", "DEF")
library.define("second(Tensor(a) x) -> Tensor(a)")
library.impl("second", lambda x: x[1], "CPU")
for tells in (False, True):
    if tells:
        library.impl("second", lambda x: x[1], "Meta")
    for cut in (lambda t: t[2:], lambda t: t.t()[1:], lambda t: t[:, 1:]):
        host = torch.arange(20.0).reshape(5, 4)
        ours = host.to("far")
        view = torch.ops.far.second(cut(ours))
        assert torch.equal(view.cpu(), cut(host)[1]), (tells, view, cut(host)[1])
        view.zero_()
        cut(host)[1].zero_()
        assert torch.equal(ours.cpu(), host), (tells, ours, host)
"""
    )


def test_sparse_tensors_change_in_place(run_python):
    run_python(
        FAR
        + """
def sparse(place):
    indices = torch.tensor([[0, 1, 1], [2, 0, 2]], device=place)
    values = torch.tensor([3.0, 4.0, 5.0], device=place)
    return torch.sparse_coo_tensor(indices, values, (2, 3), check_invariants=False)

for change in (
    lambda s: s.mul_(2),
    lambda s: s.neg_(),
    lambda s: s.add_(sparse(s.device)),
    lambda s: torch.add(s, s, out=s),
    lambda s: s.copy_(sparse(s.device) * 2),
):
    ours, host = sparse("far"), sparse("cpu")
    assert change(ours) is ours
    change(host)
    assert torch.equal(ours.to_dense().cpu(), host.to_dense()), (ours, host)
"""
    )


def test_an_undeclared_view_becomes_a_copy(run_python):
    done = run_python(
        FAR
        + """
library = torch.library.Library("far", "DEF")
library.define("tail(Tensor x) -> Tensor")
library.impl("tail", lambda x: x[1:], "CPU")
for _ in range(2):
    assert torch.ops.far.tail(torch.arange(3.0, device="far")).tolist() == [1.0, 2.0]
"""
    )
    assert done.stderr.count("operator far::tail: result 0 is in the memory of argument 'x'") == 1, done.stderr
