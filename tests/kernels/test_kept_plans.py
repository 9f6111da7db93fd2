# SPDX-License-Identifier: BSD-3-Clause
"""Plans on disk that read well but are wrong: each is dropped, and the operator runs by another plan."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from torch_outboard import _C
from torch_outboard._private_files import checked_content, with_checksum
from torch_outboard.kernels import builder
from torch_outboard.kernels.disk.packs import Packs
from torch_outboard.kernels.disk.store import Store

_DTYPES = iter((torch.int8, torch.int16, torch.int64, torch.float16, torch.float64))


@pytest.fixture(autouse=True)
def waits_for_programs() -> Iterator[None]:
    """Let calls wait for their programs: a text that no compiler takes is dropped at the call then, not behind it."""
    _C.set_build_threads(0)
    yield
    _C.set_build_threads(2)


@pytest.fixture
def stores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_plans: Callable[[], None]
) -> Iterator[Callable[[], Store]]:
    """Store plans in a folder; each call makes a store, as another process would."""

    def begin() -> Store:
        store = Store(tmp_path / "plans")
        monkeypatch.setattr(builder, "store", lambda: store)
        own_plans()
        return store

    monkeypatch.setattr(builder, "packs", lambda: Packs([]))
    # Nothing but generated kernels may run.
    _C.set_fallback_mode("error")
    yield begin
    _C.set_fallback_mode(os.environ.get("OUTBOARD_FALLBACK", "warn"))


def _change(store: Store, operator: str, change: Callable[[dict[str, Any]], object]) -> Path:
    """Change an operator's only plan."""
    (path,) = (
        entry.path for entry in store.entries() if entry.key["operator"].startswith(operator) and entry.answer[0]
    )
    content = json.loads(checked_content(path.read_bytes()))
    change(content)
    path.write_bytes(with_checksum(json.dumps(content, indent=1).encode()))
    return path


def _text(old: str, new: str) -> Callable[[dict[str, Any]], None]:
    def change(content: dict[str, Any]) -> None:
        assert old in content["plan"], content["plan"]
        content["plan"] = content["plan"].replace(old, new, 1)

    return change


def _kernel(field: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(content: dict[str, Any]) -> None:
        content["kernels"][0][field] = value

    return change


BAD: dict[str, Callable[[dict[str, Any]], object]] = {
    # What is found when the text is read, and the kernels.
    "no text": lambda content: content.update(plan=""),
    "another form": _text("plan 1", "plan 2"),
    "no such step": _text("\nreturn", "\nrun\nreturn"),
    "no such buffer": _text("return b0", "return b7"),
    "no such kernel": _text("launch 0", "launch 3"),
    "no kernels": lambda content: content.update(kernels=[]),
    "letters": _kernel("letters", "r?"),
    "other letters": _kernel("letters", "rrrrrrrr"),
    "too few formulas": _kernel("geometry", ["1"]),
    "no formula": _kernel("geometry", ["a0 a1"] * 7),
    "checks": _kernel("checks", ["colour aten::add"]),
    "a text of half a pair": _kernel("entry", "\ud800"),
    # When it is used for a call.
    "no such tensor": _text("\nallocate", "\nview t7 [1] [1] 0\nallocate"),
    "no such dimension": _text("plan 1", "plan 1\nvalue size 0 9"),
    "no such argument": _text("plan 1", "plan 1\nvalue number 0"),
    "another type": _text("allocate float32", "allocate float64"),
    "another shape": lambda content: content.update(plan=_with_sizes(content["plan"], "[7] [1]")),
    "a size below 0": lambda content: content.update(plan=_with_sizes(content["plan"], "[-3] [1]")),
    "beyond a buffer": _text("\nreturn", "\nview t0 [99] [1] 0\nreturn"),
    "before a buffer": _text("\nreturn", f"\nview t0 [3] [1] {1 << 62}\nreturn"),
    "much memory": _text("\nallocate", f"\nallocate float32 [{1 << 50}] [1]\nfree b0\nallocate"),
    "a division by zero": _kernel("geometry", ["1 0 floordiv"] * 7),
    "no blocks of 32 bits": _kernel("geometry", [str(1 << 40)] * 7),
    "results": _text("return b0", "return b0\nreturn b0"),
    # When its programs are built.
    "no program": _kernel("code", "this is no program"),
    "no such entry": _kernel("entry", "nowhere"),
    "another language": _kernel("language", "cobol"),
    # When it runs.
    "no such block": _kernel("geometry", ["1", "1", "1", str(1 << 20), "1", "1", "0"]),
    "no such operator": _text("\nreturn", "\ncall 1 aten::nothing_at_all [t0]\nreturn"),
    "arguments of another kind": _text("\nreturn", "\ncall 1 aten::relu [[3, 3]]\nreturn"),
    "arguments that are refused": _text("\nreturn", "\ncall 1 aten::mm [t0, t0]\nreturn"),
    "fewer results": _text("\nreturn", "\ncall 3 aten::relu [t0]\nreturn"),
    "a copy that doesn't fit": _text("\nreturn", "\nallocate float32 [5] [1]\ncopy t0 b1\nreturn"),
}


def _with_sizes(text: str, layout: str) -> str:
    head, _, rest = text.partition("\nallocate float32 ")
    assert rest
    return f"{head}\nallocate float32 {layout}\n{rest.partition(chr(10))[2]}"


@pytest.mark.parametrize("what", BAD)
def test_a_bad_plan_is_dropped_and_the_operator_runs(
    stores: Any, device: torch.device, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    a = torch.tensor([1.0, 2.0, 4.0], device=device)
    first = stores()
    assert (a * a).tolist() == [1.0, 4.0, 16.0]
    path = _change(first, "aten::mul.Tensor", BAD[what])
    second = stores()
    caplog.clear()
    assert [(a * a).tolist() for _ in range(2)] == [[1.0, 4.0, 16.0]] * 2
    (message,) = (record.getMessage() for record in caplog.records if record.name.startswith("torch_outboard"))
    (line,) = second.dropped()
    assert second.saved >= 1 and str(path) in line and str(path) in message
    third = stores()
    assert (a * a).tolist() == [1.0, 4.0, 16.0]
    assert (third.loaded, third.saved, len(third.dropped())) == (1, 0, 1)


def test_what_a_bad_plan_has_changed_is_not_changed_twice(stores: Any, device: torch.device) -> None:
    """If a call reads its own output, an error midway is raised; the next call has another plan."""
    a = torch.tensor([1.0, 2.0, 4.0], device=device)
    first = stores()
    a.mul_(a)
    _change(
        first, "aten::mul_.Tensor", lambda content: content.update(plan=content["plan"] + "call 1 aten::mm [t0, t0]")
    )
    stores()
    with pytest.raises(RuntimeError, match="self must be a matrix"):
        a.mul_(a)
    assert a.tolist() == [1.0, 16.0, 256.0]
    assert a.mul_(a).tolist() == [1.0, 256.0, 65536.0]


@pytest.mark.parametrize(
    "change",
    [
        _text("chunks 1", "chunks 2"),
        _kernel("letters", "w?"),
        _kernel("code", "this is no program"),
        # When it runs.
        _kernel("geometry", ["1", "1", "1", str(1 << 20), "1", "1", "0"]),
        _kernel("geometry", ["1 0 floordiv"] * 7),
    ],
)
def test_a_bad_plan_over_lists_is_dropped(stores: Any, device: torch.device, change: Any) -> None:
    # Of each type, since a process keeps what it has found of lists.
    dtype = next(_DTYPES)
    a = [torch.ones(3, device=device, dtype=dtype), torch.ones(5, device=device, dtype=dtype)]
    first = stores()
    if not builder.build_chunks("aten::_foreach_add.List", [a[:1], a[:1], 1], device.index).text:
        pytest.skip("capability: kernels that follow addresses")
    path = _change(first, "aten::_foreach_add.List", change)
    second = stores()
    assert [result.tolist() for result in torch._foreach_add(a, a)] == [[2] * 3, [2] * 5]
    (line,) = second.dropped()
    assert str(path) in line and second.saved == second.loaded == 1


def test_a_plan_that_cannot_be_removed_is_not_tried_again(
    stores: Any, device: torch.device, monkeypatch: pytest.MonkeyPatch, own_plans: Callable[[], None]
) -> None:
    a = torch.tensor([1.0, 2.0, 4.0], device=device)
    first = stores()
    a * a
    path = _change(first, "aten::mul.Tensor", BAD["arguments that are refused"])
    second = stores()
    monkeypatch.setattr(second, "_drop", lambda path, why: None)  # as in a folder that is only read
    monkeypatch.setattr(second, "save", lambda *arguments: None)
    assert (a * a).tolist() == [1.0, 4.0, 16.0] and path.exists()
    own_plans()
    assert (a * a).tolist() == [1.0, 4.0, 16.0] and second.loaded == 1
