# SPDX-License-Identifier: BSD-3-Clause
"""Plans that no builder writes: actions outside their memory are refused."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import torch_outboard
from torch_outboard import _C
from torch_outboard.kernels import builder

_HALF, _QUARTER = 1 << 62, 1 << 61


@pytest.fixture
def changed(
    monkeypatch: pytest.MonkeyPatch, own_plans: Callable[[], None]
) -> Iterator[Callable[[Callable[[str], str]], None]]:
    """Yield a function that changes the text of the next plans."""

    def change(function: Callable[[str], str]) -> None:
        build = builder.build

        def changed(*arguments: Any) -> Any:
            answer = build(*arguments)
            return answer._replace(text=function(answer.text)) if answer.text else answer

        monkeypatch.setattr(builder, "build", changed)
        monkeypatch.setattr(builder, "_keeps", lambda: False)
        own_plans()

    _C.set_fallback_mode("error")
    yield change
    _C.set_fallback_mode(os.environ.get("OUTBOARD_FALLBACK", "warn"))


def _before_return(line: str) -> Callable[[str], str]:
    return lambda text: text.replace("\nreturn", f"\n{line}\nreturn", 1)


@pytest.mark.parametrize(
    "line",
    [
        "view {} [3] [1] 1",
        "view {} [2] [2] 1",
        "view {} [1] [1] 3",
        f"view {{}} [3] [1] {_HALF}",  # which times four bytes is 0
        f"view {{}} [3] [1] {2 * _HALF - 1}",
        f"view {{}} [3] [{_QUARTER}] 0",
        f"view {{}} [3] [{2 * _HALF - 1}] 0",
        f"view {{}} [{_HALF}, 4] [1, {_HALF}] 0",
        "view {} float16 [3] [2] 2",
    ],
)
@pytest.mark.parametrize("base", ["t0", "b0"])
def test_a_view_beyond_its_buffer_is_refused(changed: Any, device: torch.device, base: str, line: str) -> None:
    a = torch.ones(3, device=device)
    changed(_before_return(line.format(base)))
    with pytest.raises(torch_outboard.NotSupportedError, match="reaches past its buffer of|overflowed"):
        a + a


@pytest.mark.parametrize(
    "line",
    ["view b0 [3] [1] 0", "view b0 [1] [1] 2", "view b0 [2] [2] 0", "view t0 [0] [1] 9", "view b0 float16 [3] [2] 1"],
)
def test_a_view_within_its_buffer_is_taken(changed: Any, device: torch.device, line: str) -> None:
    a = torch.ones(3, device=device)
    changed(_before_return(line))
    assert (a + a).tolist() == [2.0, 2.0, 2.0]


def test_a_view_as_a_larger_type_is_refused(changed: Any, device: torch.device) -> None:
    a = torch.ones(3, device=device)
    changed(_before_return("view t0 int64 [1] [1] 0"))
    with pytest.raises(
        torch_outboard.NotSupportedError,
        match="a view has elements of 8 bytes, which do not divide its buffer's elements of 4",
    ):
        a + a


def test_a_view_of_an_argument_is_checked_at_each_call(changed: Any, device: torch.device) -> None:
    """Calls of one signature may have tensors in memories of different sizes."""
    large, small = torch.ones(9, device=device)[:3], torch.ones(3, device=device)
    changed(_before_return("view t0 [9] [1] 0"))
    assert (large + large).tolist() == [2.0, 2.0, 2.0]
    with pytest.raises(ValueError, match="reaches past its buffer of 12 bytes"):
        small + small
