# SPDX-License-Identifier: BSD-3-Clause
"""The registry of schedules: the ways of computing a family of operators, and the devices that each way serves.

A family is one of `kernels/tune/schedules.py`: "product", "convolution", "attention" and their gradients. A way is how
the device's items share the work: "strips", "tiles". Adding a way takes one file in this folder and one registration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch

from torch_outboard.codegen.dialects.dialect import Dialect
from torch_outboard.codegen.dialects.group_limits import GroupLimits
from torch_outboard.kernels.refusal import CallRefusal
from torch_outboard.kernels.templates.call import TemplateCall
from torch_outboard.kernels.templates.heads import Attention, Gradients, Rows
from torch_outboard.kernels.templates.product import Product

__all__ = ["ATTENTION", "PRODUCTS", "AttentionSchedule", "Device", "ProductSchedule", "Registry", "way_of"]


@dataclass(frozen=True)
class Device:
    """The criteria for whether a way serves a call: the language, the machine, the element type, and group limits."""

    dialect: Dialect
    is_cpu: bool
    dtype: torch.dtype
    limits: GroupLimits = GroupLimits()

    @staticmethod
    def of(call: TemplateCall) -> Device:
        return Device(call.dialect, call.is_cpu, call.dtype, call.limits)


class ProductSchedule(Protocol):
    """The launches of products."""

    def multiply(self, call: TemplateCall, product: Product) -> None:
        """Write the launches of a product."""


class AttentionSchedule(Protocol):
    """The launches of attention and of its gradients."""

    def attend(self, call: TemplateCall, attention: Attention, result: Rows, logsumexp: Rows) -> None:
        """Write the launches of attention."""

    def differentiate(self, call: TemplateCall, attention: Attention, gradients: Gradients) -> None:
        """Write the launches of the gradients of queries, and of keys and values."""


_Schedule = TypeVar("_Schedule")
# Returns whether a way serves a device. It may use anything that generated code depends on.
Serves = Callable[[Device], bool]


class Registry(Generic[_Schedule]):
    """The schedules of operator families. If several ways serve a device, the last one registered is used."""

    def __init__(self, *families: str) -> None:
        self.families = families
        self._ways: dict[str, dict[str, tuple[Serves, _Schedule]]] = {family: {} for family in families}

    def register(self, way: str, schedule: _Schedule, serves: Serves, families: Iterable[str] | None = None) -> None:
        """Register a way for families, or for all families of this registry.

        Raises
        ------
        ValueError
            The family already has a way with this name, or the registry does not have the family.
        """
        for family in self.families if families is None else families:
            if family not in self._ways:
                raise ValueError(f"unknown family {family!r}; choose from {', '.join(self.families)}")
            if way in self._ways[family]:
                raise ValueError(f"the family {family!r} already has a schedule {way!r}: choose another name")
            self._ways[family][way] = (serves, schedule)

    def ways(self, family: str) -> list[str]:
        """Return the registered ways of a family."""
        return list(self._ways[family])

    def way_of(self, family: str, device: Device) -> str:
        """Return the way that serves a device.

        Raises Refusal if no way serves the device.
        """
        ways = [way for way, (serves, _) in self._ways[family].items() if serves(device)]
        if not ways:
            raise CallRefusal(
                f"the dialect {device.dialect.name!r} has neither vectors nor groups that share memory: set its "
                "vectors or has_groups [reduction-ways]"
            )
        return ways[-1]

    def schedule_of(self, call: TemplateCall) -> _Schedule:
        """Return the schedule of a call's family for its device.

        Raises Refusal if no way serves the device.
        """
        way = self.way_of(call.family, Device.of(call))
        return self._ways[call.family][way][1]


PRODUCTS: Registry[ProductSchedule] = Registry("product", "convolution", "convolution_gradients")
ATTENTION: Registry[AttentionSchedule] = Registry("attention", "attention_gradients")


def way_of(family: str, device: Device) -> str:
    """Return the way in which a family of operators is computed on a device.

    Raises Refusal if no way serves the device.
    """
    registry = PRODUCTS if family in PRODUCTS.families else ATTENTION
    return registry.way_of(family, device)
