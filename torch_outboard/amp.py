# SPDX-License-Identifier: BSD-3-Clause
"""Autocast policies: what torch.autocast does to an operator on the attached device.

A driver opts in with its attribute `autocast`, and then uses torch's own lists, like CUDA. The functions here change
the policies at run time:

    torch_outboard.amp.set_policy("aten::softmax", "lower_precision_fp")
    torch_outboard.amp.set_policy("mylib::attention", "lower_precision_fp")
    torch_outboard.amp.set_policy("aten::softmax", "default")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from torch_outboard._errors import RegistrationError
from torch_outboard._options import nearest

if TYPE_CHECKING:
    from torch_outboard.driver import Driver

__all__ = ["POLICIES", "default_policies", "policies", "set_policy"]

POLICIES = {
    "lower_precision_fp": "inputs are cast to the dtype of the autocast region",
    "fp32": "inputs are cast to float32",
    "fp32_set_opt_dtype": "the optional dtype argument becomes float32 unless it is given",
    "fp32_append_dtype": "calls the overload with a dtype argument, with float32; only operators on torch's list",
    "fp32_cast_back": "inputs are cast to float32, and results to the dtype of the first input",
    "promote": "inputs are cast to the widest of their dtypes",
    "banned": "raises",
    "fallthrough": "runs unchanged; the operators that it calls keep their policies",
}
_DTYPES = (torch.float16, torch.bfloat16)


def set_policy(op: Any, policy: str) -> None:
    """Set an operator's policy under torch.autocast, from the next call on, in every thread.

    Code that torch.compile has compiled keeps the policy it was traced with. Autocast casts only floating-point tensors
    on the device, and never float64.

    Parameters
    ----------
    op : str, OpOverload, OpOverloadPacket or CustomOpDef
        "aten::softmax" means every overload that can have the policy. "aten::softmax.int" and
        torch.ops.aten.softmax.int mean a single overload; "aten::mm.default" is the overload without a name.
    policy : str
        A key of POLICIES, or "default" for the policy of torch's lists ("fallthrough" for an operator in no list).

    Raises
    ------
    ValueError
        There is no such operator or policy. The operator writes to its arguments or takes no tensor. An autocast kernel
        is already registered for it with torch.
    NotSupportedError
        The driver has no autocast.
    RegistrationError
        No driver is attached.
    """
    from torch_outboard import _C

    if not _C.is_attached():
        raise RegistrationError("attach a driver before setting policies: torch_outboard.attach(name)")
    for overload in _overloads_for(op, policy):
        _C.set_cast_policy(overload, policy)


def policies() -> dict[str, str]:
    """Return the policies in force, by operator; other operators run unchanged. Empty without autocast."""
    from torch_outboard import _C

    return {op: policy for op, policy, default in _C.cast_policies() if {policy, default} != {"fallthrough"}}


def default_policies() -> dict[str, str]:
    """Return the policies of the running torch's own lists, by operator. Empty without autocast."""
    from torch_outboard import _C

    return {op: default for op, _, default in _C.cast_policies() if default != "fallthrough"}


def check_description(driver: Driver) -> dict[str, str]:
    """Return the driver's changes to torch's lists. Raise ValueError if its `autocast` is invalid."""
    try:
        if driver.autocast_dtype is not None and driver.autocast_dtype not in _DTYPES:
            raise ValueError(
                f"`autocast_dtype` must be {' or '.join(map(str, _DTYPES))}, not {driver.autocast_dtype!r}"
            )
        if driver.autocast is None or driver.autocast == "default":
            return {}
        if isinstance(driver.autocast, str) or not hasattr(driver.autocast, "items"):
            raise ValueError(
                f"`autocast` must be None, 'default' or a dict of operators and policies, not {driver.autocast!r}"
            )
        return {name: policy for op, policy in driver.autocast.items() for name in _overloads_for(op, policy)}
    except ValueError as error:
        raise ValueError(
            f"driver {driver.name!r} cannot be attached, because of its autocast settings: {error}"
        ) from error


def register(driver: Driver, overrides: dict[str, str]) -> None:
    """Register the policies of a driver that opted in."""
    from torch_outboard import _C

    if driver.autocast is None:
        return
    _C.register_autocast()
    for op, policy in overrides.items():
        _C.set_cast_policy(op, policy)
    if driver.autocast_dtype is not None:
        # torch keeps this dtype per thread: other threads use float16 until they set another dtype.
        torch.set_autocast_dtype(driver.name, driver.autocast_dtype)


def _overloads_for(op: Any, policy: str) -> list[str]:
    """Return the overloads that `op` names and that can have the policy. Raise ValueError if there are none."""
    from torch_outboard import _C

    if not isinstance(policy, str):
        raise TypeError(f"a policy must be a str, not {type(policy).__name__}")
    if policy != "default" and policy not in POLICIES:
        raise ValueError(f"there is no cast policy {policy!r}.{nearest(policy, [*POLICIES, 'default'])}")
    names = _names_of(op)
    fitting = []
    refusals = []
    for name in names:
        try:
            _C.check_cast_policy(name, policy)
            fitting.append(name)
        except ValueError as refusal:
            refusals.append(refusal)
    if not fitting:
        raise refusals[0]
    return fitting


def _names_of(op: Any) -> list[str]:
    """Return the names of the overloads that `op` may refer to."""
    if isinstance(op, torch._ops.OpOverload):
        return [op._name]
    if isinstance(op, torch._ops.OpOverloadPacket):
        op = op._qualified_op_name
    elif isinstance(op, torch._library.custom_ops.CustomOpDef):
        op = op._qualname
    if not isinstance(op, str):
        raise TypeError(f"an operator must be a str or one of torch.ops, not {type(op).__name__}")
    known: list[str] = torch._C._dispatch_get_all_op_names()
    if "." in op.rpartition("::")[2]:
        name = op.removesuffix(".default")
        if name in known:
            return [name]
        raise _unknown(op, known)
    names = [name for name in known if name.partition(".")[0] == op]
    if not names:
        raise _unknown(op, sorted({name.partition(".")[0] for name in known}))
    return sorted(names)


def _unknown(op: str, known: list[str]) -> ValueError:
    import difflib

    # All namespaces together have thousands of names; names from other namespaces would be
    # misleading matches.
    matches = difflib.get_close_matches(op if "::" in op else f"aten::{op}", known, n=3, cutoff=0.6)
    hint = f"Did you mean {' or '.join(map(repr, matches))}?" if matches else "Names are namespace::name.overload."
    return ValueError(f"there is no operator {op!r}. {hint}")
