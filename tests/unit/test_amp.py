# SPDX-License-Identifier: BSD-3-Clause
"""The ways in which drivers opt into autocast, each in a separate process."""

from __future__ import annotations

import pytest
import torch

HEAD = """
import pickle, threading, warnings
import pytest, torch, torch_outboard
from torch_outboard import RegistrationError, NotSupportedError, amp
from examples.pure_python_driver import PythonDriver

class Driver(PythonDriver):
    name = "odd"
    autocast = None
    dtypes = (torch.float32, torch.float16, torch.bfloat16)
    def device_properties(self, device):
        return {"name": "Odd", "total_memory": self.memory, "dtypes": self.dtypes}

def dtype_of(op, *shapes, dtype=torch.float32, **options):
    with torch.autocast("odd", **options):
        return op(*(torch.ones(shape, device="odd", dtype=dtype) for shape in shapes)).dtype
"""


def test_none(run_python):
    run_python(
        HEAD
        + """
module = torch_outboard.attach(Driver)
x = torch.ones(2, 2, device="odd")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    with torch.autocast("odd"):
        assert not torch.is_autocast_enabled("odd")
        assert (x @ x).dtype == torch.float32
messages = [str(warning.message) for warning in caught]
assert "The driver 'odd' has no autocast policies" in messages[0] and '"default"' in messages[0], messages
assert "Disabling autocast" in messages[1], messages
assert {warning.filename for warning in caught} == {"<string>"}
with torch.autocast("odd", enabled=False):  # no warning: nobody asked for it
    pass
assert module.get_amp_supported_dtype() == [] and amp.policies() == amp.default_policies() == {}
with pytest.raises(NotSupportedError, match="'odd' has no autocast: set `autocast"):
    amp.set_policy("aten::mm", "fp32")
with pytest.raises(ValueError, match="no operator"):
    amp.set_policy("aten::mmm", "fp32")
# What was opted out of is not there.
assert not any(
    torch._C._dispatch_has_kernel_for_dispatch_key(name, "AutocastPrivateUse1")
    for name in torch._C._dispatch_get_all_op_names()
)
# Gradients are scaled all the same.
p = torch.ones(2, device="odd", requires_grad=True)
scaler, opt = torch.amp.GradScaler("odd", init_scale=4.0), torch.optim.SGD([p], 0.5)
scaler.scale(p.sum())
p.grad = torch.full((2,), 4.0, device="odd")
scaler.step(opt)
scaler.update()
assert p.tolist() == [0.5, 0.5]
"""
    )


def test_default(run_python):
    run_python(
        HEAD
        + """
class Default(Driver):
    autocast = "default"
with pytest.raises(RegistrationError, match="attach a driver before setting policies"):
    amp.set_policy("aten::mm", "fp32")
assert amp.policies() == {}
module = torch_outboard.attach(Default)
assert amp.policies() == amp.default_policies() != {}
assert module.get_amp_supported_dtype() == [torch.bfloat16, torch.float16]
assert torch.get_autocast_dtype("odd") == torch.float16
assert dtype_of(torch.mm, (2, 2), (2, 2)) == torch.float16
assert dtype_of(torch.mm, (2, 2), (2, 2), dtype=torch.float16) == torch.float16
assert dtype_of(lambda t: t.softmax(0), (2,), dtype=torch.float16) == torch.float32
"""
    )


def test_an_override(run_python):
    run_python(
        HEAD
        + """
class Overriding(Driver):
    autocast = {"aten::softmax": "lower_precision_fp", torch.ops.aten.relu.default: "fp32"}
torch_outboard.attach(Overriding)
assert amp.policies()["aten::softmax.int"] == "lower_precision_fp"
assert amp.default_policies()["aten::softmax.int"] == "fp32_set_opt_dtype"
assert dtype_of(lambda t: t.softmax(0), (2,)) == torch.float16
assert dtype_of(torch.relu, (2,), dtype=torch.float16) == torch.float32
assert dtype_of(torch.mm, (2, 2), (2, 2)) == torch.float16
assert {op for op in amp.policies() if amp.policies()[op] != amp.default_policies().get(op)} == {
    name for name in amp.policies() if name.partition(".")[0] in ("aten::softmax", "aten::relu")
}
amp.set_policy("aten::softmax", "default")
assert dtype_of(lambda t: t.softmax(0), (2,), dtype=torch.float16) == torch.float32
"""
    )


def test_bfloat16_only(run_python):
    run_python(
        HEAD
        + """
class Bfloat16Only(Driver):
    autocast = "default"
    autocast_dtype = torch.bfloat16
    dtypes = (torch.float32, torch.bfloat16)
module = torch_outboard.attach(Bfloat16Only)
assert module.get_amp_supported_dtype() == [torch.bfloat16]
assert dtype_of(torch.mm, (2, 2), (2, 2)) == torch.bfloat16
def ask(**options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with torch.autocast("odd", **options):
            return torch.is_autocast_enabled("odd"), [str(warning.message) for warning in caught]
is_on, (message,) = ask(dtype=torch.float16)
assert not is_on and "only supports dtypes of torch.bfloat16 currently" in message
assert ask() == (True, [])
# Torch keeps the default by thread: elsewhere it is named, or the shim picks it.
found = []
def work():
    found.append(ask()[0])
    found.append(ask(dtype=torch.bfloat16))
    with module.amp.autocast():
        found.append(torch.get_autocast_dtype("odd"))
thread = threading.Thread(target=work)
thread.start()
thread.join()
assert found == [False, (True, []), torch.bfloat16]
"""
    )


def test_no_device(run_python):
    run_python(
        HEAD
        + """
class Default(Driver):
    autocast = "default"
module = torch_outboard.attach(Default, devices=0)
with pytest.warns(UserWarning) as caught, torch.autocast("odd"):
    assert not torch.is_autocast_enabled("odd")
assert "There is no odd device: autocast is disabled" in str(caught[0].message)
"""
    )


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("'defualt'", "`autocast` must be None, 'default' or a dict of operators and policies, not 'defualt'"),
        ("True", "`autocast` must be None, 'default' or a dict"),
        ("{'aten::softmx': 'fp32'}", "there is no operator 'aten::softmx'. Did you mean 'aten::softmax'"),
        ("{'aten::softmax': 'fp23'}", "there is no cast policy 'fp23'. Did you mean 'fp32'"),
        ("{'aten::relu_': 'fp32'}", "it writes to its arguments"),
    ],
)
def test_descriptions_that_make_no_sense(run_python, value, message):
    run_python(
        HEAD
        + f"""
class Wrong(Driver):
    autocast = {value}
with pytest.raises(ValueError) as error:
    torch_outboard.attach(Wrong)
assert {message!r} in str(error.value), error.value
assert str(error.value).startswith("driver 'odd' cannot be attached, because of its autocast settings: ")
# Nothing was changed: another description can be attached.
class Default(Driver):
    autocast = "default"
torch_outboard.attach(Default)
"""
    )


def test_a_default_dtype_that_makes_no_sense(run_python):
    run_python(
        HEAD
        + """
class Wrong(Driver):
    autocast = "default"
    autocast_dtype = torch.float32
with pytest.raises(ValueError, match="`autocast_dtype` must be torch.float16 or torch.bfloat16, not torch.float32"):
    torch_outboard.attach(Wrong)
"""
    )


def test_the_workaround_is_there_where_torch_needs_it():
    from torch_outboard._compat.torch_2_11 import needs_register_autocast

    minor = tuple(map(int, torch.__version__.split(".")[:2]))
    if minor == (2, 12):
        pytest.skip("torch 2.12 is asked at run time")
    assert needs_register_autocast() == (minor == (2, 11)), "torch_outboard/_compat/torch_2_11.py can go"


# Stands for torchvision: operators that refuse tensors of two dtypes,
# and casts for no device of ours.
TORCHVISION = """
import sys, types
package = types.ModuleType("torchvision")
SOURCE = '''
import torch
library = torch.library.Library("torchvision", "DEF")
library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
library.define("roi_pool(Tensor input, Tensor rois, float spatial_scale) -> (Tensor, Tensor)")

def pool(input, rois, scale):
    assert input.dtype == rois.dtype == torch.float32
    return input * scale, torch.zeros(2, dtype=torch.int64, device=input.device)

def keep(dets, scores, threshold):
    assert dets.dtype == scores.dtype == torch.float32, "dets should have the same type as scores"
    return torch.zeros(1, dtype=torch.int64, device=dets.device)

library.impl("nms", keep, "CompositeExplicitAutograd")
library.impl("roi_pool", pool, "CompositeExplicitAutograd")
'''
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        from importlib.machinery import ModuleSpec
        return ModuleSpec(name, Finder) if name == "torchvision" else None
    @staticmethod
    def create_module(spec): return None
    @staticmethod
    def exec_module(module): exec(SOURCE, module.__dict__)
sys.meta_path.insert(0, Finder)
"""


@pytest.mark.parametrize("is_imported_first", [False, True])
def test_operators_of_torchvision(run_python, is_imported_first):
    """Torchvision registers its casts for CUDA and XPU only; after its import they apply here too."""
    first, second = ("import torchvision", "") if is_imported_first else ("", "import torchvision")
    run_python(
        HEAD
        + TORCHVISION
        + f"""
class Casting(Driver):
    autocast = "default"
{first}
torch_outboard.attach(Casting)
{second}
boxes, scores = torch.ones(3, 4, device="odd", dtype=torch.float16), torch.ones(3, device="odd")
with torch.autocast("odd"):
    assert torch.ops.torchvision.nms(boxes, scores, 0.5).dtype == torch.int64
    pooled, places = torch.ops.torchvision.roi_pool(boxes, scores, 2.0)
assert pooled.dtype == torch.float16 and pooled.cpu().eq(2).all() and places.dtype == torch.int64
assert amp.policies()["torchvision::nms"] == "fp32" and "torchvision::roi_align" not in amp.policies()
with pytest.raises(AssertionError, match="same type"):
    torch.ops.torchvision.nms(boxes, scores, 0.5)
amp.set_policy("torchvision::nms", "fallthrough")
with torch.autocast("odd"), pytest.raises(AssertionError, match="same type"):
    torch.ops.torchvision.nms(boxes, scores, 0.5)
"""
    )


def test_torchvision_without_autocast_or_operators(run_python):
    run_python(
        HEAD
        + TORCHVISION
        + """
SOURCE = ""
torch_outboard.attach(Driver)
import torchvision
assert amp.policies() == {}
"""
    )
