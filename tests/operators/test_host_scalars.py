# SPDX-License-Identifier: BSD-3-Clause
"""Zero-dimensional tensors of the host, which operators accept beside a device's: plain and as lazy views."""

from __future__ import annotations

import pytest
import torch

from torch_outboard.testing.database.calls import CPU
from torch_outboard.testing.database.compare import difference

SCALARS = {
    "real": lambda: torch.tensor(1.5),
    "complex": lambda: torch.tensor(1 + 2j),
    "conjugated": lambda: torch.tensor(1 + 2j).conj(),
    "negated": lambda: torch.tensor(1 + 2j).conj().imag,
}


def _calls(scalar: torch.Tensor, place: torch.device):
    matrix = torch.tensor([[1 + 1j, 2], [3, 4j]] if scalar.is_complex() else [[1.0, 2], [3, 4]]).to(place)
    vector = matrix[0]
    yield torch.mul(matrix, scalar)
    yield torch.add(scalar, matrix, alpha=2)
    yield torch.sub(matrix, scalar)
    yield torch.div(scalar, matrix)
    yield torch.addmm(scalar, matrix, matrix)
    yield torch.addmv(scalar, matrix, vector)
    yield torch.addcmul(scalar, matrix, matrix)
    yield torch.where(matrix.real > 1, matrix, scalar)
    yield matrix.clone().mul_(scalar)
    yield matrix.clone().fill_(scalar)
    yield matrix.clone().masked_fill_(matrix.real > 1, scalar)


@pytest.mark.parametrize("name", SCALARS)
def test_scalars_of_the_host(name: str, device: torch.device) -> None:
    make = SCALARS[name]
    for number, (ours, theirs) in enumerate(zip(_calls(make(), device), _calls(make(), CPU), strict=True)):
        assert ours.device == device
        assert difference(ours, theirs, None) is None, number
