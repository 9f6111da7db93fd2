# SPDX-License-Identifier: BSD-3-Clause
"""Every operator of the policy lists under autocast: against the lists, and against torch.autocast("cpu")."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from torch_outboard import amp

from .samples import CUDA_ONLY, NAMED, SAMPLES, Make, overload

# In AutocastCUDA only because they are operators of cuDNN; torch's lists
# for other devices leave them out.
ONLY_ON_CUDA = {"aten::_cudnn_rnn", "aten::cudnn_convolution", "aten::cudnn_convolution_transpose"}
# Where torch.autocast("cpu") has a policy that isn't CUDA's: what CUDA's lists say counts.
OTHER_ON_CPU = {"aten::binary_cross_entropy"}

named_tensors = pytest.mark.filterwarnings("ignore:Named tensors and all their associated APIs")
pytestmark = pytest.mark.filterwarnings("ignore:torch.chain_matmul is deprecated")


def dtypes_of(result: object) -> set[torch.dtype]:
    return {t.dtype for t in tree_leaves(result) if isinstance(t, torch.Tensor) and t.is_floating_point()}


def assert_close(result: object, expected: object) -> None:
    for ours, theirs in zip(tree_leaves(result), tree_leaves(expected), strict=True):
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours.cpu(), theirs.cpu())


def test_the_lists_are_cuda_s_own(device):
    # Torch registers CUDA's policies in every build.
    on_cuda = {
        name
        for name in torch._C._dispatch_get_all_op_names()
        if torch._C._dispatch_has_kernel_for_dispatch_key(name, "AutocastCUDA")
    }
    assert set(amp.default_policies()) == on_cuda - ONLY_ON_CUDA


def test_every_operator_has_a_sample(device):
    assert set(amp.default_policies()) <= set(SAMPLES)


def test_the_table_is_as_listed_at_first(device):
    assert amp.policies() == amp.default_policies()
    assert set(amp.default_policies().values()) <= set(amp.POLICIES)


class SeeDtypes(TorchDispatchMode):
    """A mode that ends a call below autocast with the dtypes of its inputs."""

    class Seen(Exception):
        pass

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten._to_copy.default:  # a cast
            return function(*args, **(kwargs or {}))
        raise self.Seen(dtypes_of(args))


def inputs_and_result(policy: str, low: torch.dtype) -> tuple[list[torch.dtype], torch.dtype]:
    """Return dtypes of inputs that the policy must change, and the dtype after the change."""
    if policy == "lower_precision_fp":
        return [torch.float32], low
    if policy == "promote":
        return [low, torch.float32], torch.float32
    return [low], torch.float32


@named_tensors
@pytest.mark.database
@pytest.mark.parametrize("name", SAMPLES)
def test_the_result_s_dtype_is_the_policy_s(device, low, name):
    policy = amp.default_policies().get(name)
    if policy is None:
        pytest.skip(f"torch {torch.__version__} lists no {name}")
    inputs, expected = inputs_and_result(policy, low)
    op, args = overload(name), SAMPLES[name](Make(device, inputs))
    with torch.autocast(device.type, dtype=low):
        if policy == "banned":
            with pytest.raises(RuntimeError, match="are unsafe to autocast"):
                op(*args)
        elif name in CUDA_ONLY:
            with pytest.raises(SeeDtypes.Seen) as seen, SeeDtypes():
                op(*args)
            assert seen.value.args == ({expected},)
        elif name in NAMED:
            with pytest.raises(RuntimeError, match="Named tensors are currently unsupported"):
                op(*args)
        else:
            result = op(*args)
            assert dtypes_of(result) == {expected}
            assert {t.device for t in tree_leaves(result)} == {device}


@pytest.mark.parametrize("name", ["aten::dot", "aten::addcmul", "aten::atan2"])
def test_promotion_of_equal_dtypes_changes_nothing(device, low, name):
    with torch.autocast(device.type, dtype=low):
        assert overload(name)(*SAMPLES[name](Make(device, [low]))).dtype == low


@pytest.mark.database
@pytest.mark.parametrize("name", sorted(SAMPLES.keys() - OTHER_ON_CPU - CUDA_ONLY - NAMED))
def test_the_same_as_on_the_cpu(device, name):
    """The inputs are float32, since CPU kernels lack some operators in float16."""
    if name not in amp.default_policies():
        pytest.skip(f"torch {torch.__version__} lists no {name}")
    low = torch.bfloat16
    if low not in torch.get_device_module(device).amp.get_amp_supported_dtype():
        pytest.skip(f"capability: {low} among the device's dtypes")
    if not torch._C._dispatch_has_kernel_for_dispatch_key(name, "AutocastCPU"):
        pytest.skip(f"torch.autocast('cpu') has no policy for {name}")
    op = overload(name)
    with torch.autocast("cpu", dtype=low):
        expected = op(*SAMPLES[name](Make("cpu", [torch.float32])))
    with torch.autocast(device.type, dtype=low):
        result = op(*SAMPLES[name](Make(device, [torch.float32])))
    assert_close(result, expected)


RUNNABLE = sorted(SAMPLES.keys() - CUDA_ONLY - NAMED - {"aten::binary_cross_entropy"})


@pytest.mark.database
@pytest.mark.parametrize("name", RUNNABLE)
def test_the_values_are_those_of_inputs_cast_by_hand(device, low, name):
    if name not in amp.default_policies():
        pytest.skip(f"torch {torch.__version__} lists no {name}")
    inputs, dtype = inputs_and_result(amp.default_policies()[name], low)
    expected = overload(name)(*SAMPLES[name](Make(device, [dtype])))
    with torch.autocast(device.type, dtype=low):
        assert_close(overload(name)(*SAMPLES[name](Make(device, inputs))), expected)


@pytest.mark.database
@pytest.mark.parametrize("name", RUNNABLE)
def test_another_policy_in_place_of_the_listed_one(device, low, name, policies):
    """These calls take the boxed kernels, as custom operators and operators of a driver's own policies do."""
    if name not in amp.default_policies():
        pytest.skip(f"torch {torch.__version__} lists no {name}")
    op, listed = overload(name), amp.default_policies()[name]
    cases = {
        "fp32": ([low], torch.float32),
        "promote": ([torch.float32, low], torch.float32),
        "lower_precision_fp": ([torch.float32], low),
    }
    if listed != "lower_precision_fp":
        del cases["lower_precision_fp"]  # few of the CPU's kernels for these take the lower dtypes
    for policy in cases.keys() - {listed}:
        inputs, dtype = cases[policy]
        expected = op(*SAMPLES[name](Make(device, [dtype])))
        policies(op, policy)
        with torch.autocast(device.type, dtype=low):
            assert_close(op(*SAMPLES[name](Make(device, inputs))), expected)
