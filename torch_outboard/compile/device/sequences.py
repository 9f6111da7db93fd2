# SPDX-License-Identifier: BSD-3-Clause
"""Recurrent nets in graphs: use torch's decompositions, although the device has kernels for whole sequences.

By default, Python's dispatcher uses a decomposition only if the device's keys have no kernel.
"""

from __future__ import annotations

import torch
from torch._C import DispatchKey

__all__ = ["decompose_sequences"]


def decompose_sequences() -> None:
    """Make torch's decompositions apply to graphs of the device."""
    for name in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
        for overload in ("input", "data"):
            operator = getattr(getattr(torch.ops.aten, name), overload)
            decomposition = operator.py_kernels[DispatchKey.CompositeImplicitAutograd]
            for key in (DispatchKey.AutogradPrivateUse1, DispatchKey.PrivateUse1):
                if key not in operator.py_kernels:
                    operator.py_impl(key)(decomposition)
