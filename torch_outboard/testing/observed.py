# SPDX-License-Identifier: BSD-3-Clause
"""Results that a program names, so that `outboard race` compares them between schedules."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["Observation", "observe", "record", "take"]


@dataclass(frozen=True)
class Observation:
    """A result: its name, a hash of its bytes, and its first values as text."""

    name: str
    digest: str
    shown: str


_recorded: list[Observation] | None = None


def observe(tensor: torch.Tensor, name: str = "") -> torch.Tensor:
    """Compare a tensor's value between the schedules of `outboard race`, and return the tensor.

    The value is copied to the host on the current stream like with `tensor.cpu()`, which waits for that stream only.
    Outside `outboard race`, nothing is copied.

    Raises
    ------
    TypeError
        The value is not a tensor, or has no dense elements.
    """
    import torch

    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"observe takes a tensor, not {type(tensor).__name__}")
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
        raise TypeError("observe takes a dense tensor: pass its values, as tensor.to_dense() or tensor.values()")
    if _recorded is not None:
        host = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
        flat = host.reshape(-1)
        content = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
        head = f"{tensor.dtype} {tuple(tensor.shape)}"
        digest = hashlib.sha256(head.encode() + content).hexdigest()[:16]
        values = ", ".join(str(value) for value in flat[:4].tolist())
        shown = f"{head} [{values}{', …' if flat.numel() > 4 else ''}]{_poison_text(flat)}"
        _recorded.append(Observation(name or f"observation {len(_recorded) + 1}", digest, shown))
    return tensor


def record() -> None:
    """Start recording observations."""
    global _recorded
    _recorded = []


def take() -> list[Observation]:
    """Return the observations since the last call or since `record`, and continue recording."""
    global _recorded
    observations = _recorded or []
    if _recorded is not None:
        _recorded = []
    return observations


def poison_number(content: bytes) -> int | None:
    """Return the number in the first poison pattern, or None if there is none. Freed memory has such patterns.

    csrc/memory/poison.h defines the pattern: eight words of 0x7FF0, each with four bits of the number.
    """
    for start in range(0, len(content) - 15, 16):
        words = [int.from_bytes(content[start + at : start + at + 2], "little") for at in range(0, 16, 2)]
        if all(word & 0xFFF0 == 0x7FF0 for word in words):
            return sum((word & 0xF) << (4 * place) for place, word in enumerate(words))
    return None


def _poison_text(flat: torch.Tensor) -> str:
    import torch

    number = poison_number(flat[: 1 << 16].contiguous().view(torch.uint8).numpy().tobytes()) if flat.numel() else None
    if number is None:
        return ""
    return f", with memory that {'nothing has written' if number == 0 else f'was freed as number {number}'}"
