# SPDX-License-Identifier: BSD-3-Clause
"""Saving, loading, pickling, and loaders with worker processes."""

from __future__ import annotations

import io
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from .support import assert_same, module_of, pins


def saved(value):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def loaded(data, **keywords):
    return torch.load(io.BytesIO(data), weights_only=True, **keywords)


def test_tensors_come_back_on_their_device(device):
    ours = torch.arange(12.0, device=device).reshape(3, 4)
    result = loaded(saved({"whole": ours, "view": ours[1:, ::2], "host": torch.ones(2)}))
    assert_same(result["whole"], ours.cpu(), device)
    assert_same(result["view"], ours[1:, ::2].cpu(), device)
    assert result["host"].device.type == "cpu"
    # Views of one storage still share one.
    assert result["view"].untyped_storage().data_ptr() == result["whole"].untyped_storage().data_ptr()


def test_map_location(device, driver_name):
    ours = torch.arange(4.0, device=device)
    assert loaded(saved(ours), map_location="cpu").device.type == "cpu"
    for location in (str(device), driver_name, device):
        result = loaded(saved(torch.arange(4.0)), map_location=location)
        assert_same(result, torch.arange(4.0), device)
    assert loaded(saved(torch.arange(4.0)), map_location=lambda storage, _: storage.to(device=device)).device == device


def test_a_location_that_is_not_there_is_refused(device, driver_name):
    data = saved(torch.ones(2))
    with pytest.raises(RuntimeError, match="(?i)device_count|device id|index"):
        loaded(data, map_location=f"{driver_name}:{torch.accelerator.device_count() + 3}")


def test_saved_on_the_second_device(device, second_device):
    data = saved(torch.ones(3, device=second_device))
    assert loaded(data).device == second_device
    assert loaded(data, map_location={str(second_device): str(device)}).device == device


def test_module_and_optimizer_states_resume_a_training(device):
    def fresh(seed):
        torch.manual_seed(seed)
        model = nn.Linear(4, 2).to(device)
        return model, torch.optim.AdamW(model.parameters(), 0.1)

    def step(model, optimizer):
        optimizer.zero_grad()
        model(torch.arange(4.0, device=device)).square().sum().backward()
        optimizer.step()

    model, optimizer = fresh(0)
    step(model, optimizer)
    data = saved({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    step(model, optimizer)
    resumed, other_optimizer = fresh(1)
    state = loaded(data)
    resumed.load_state_dict(state["model"])
    other_optimizer.load_state_dict(state["optimizer"])
    step(resumed, other_optimizer)
    for a, b in zip(model.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)


def test_pickle_and_shared_dtypes(device):
    ours = torch.tensor([1 + 2j, 3], device=device)
    assert_same(pickle.loads(pickle.dumps(ours)), ours.cpu(), device)
    parameter = nn.Parameter(torch.ones(2, dtype=torch.bfloat16, device=device))
    result = loaded(saved(parameter))
    assert isinstance(result, nn.Parameter) and result.requires_grad
    assert_same(result.detach(), parameter.detach().cpu(), device)
    assert pickle.loads(pickle.dumps(device)) == device


def test_a_saved_generator_state(device):
    module = module_of(device)
    state = loaded(saved(module.get_rng_state(device)))
    first = torch.rand(3, device=device)
    module.set_rng_state(state, device)
    assert torch.equal(torch.rand(3, device=device), first)


# Python 3.12 warns of a fork while threads run; the workers only touch the CPU.
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_with_pinned_memory(device, workers):
    torch.ones(1, device=device)
    data = TensorDataset(torch.arange(40.0).reshape(20, 2), torch.arange(20))
    loader = DataLoader(data, 4, num_workers=workers, pin_memory=True)
    seen = []
    for images, labels in loader:
        assert images.is_pinned() == labels.is_pinned() == pins()
        ours = images.to(device, non_blocking=True)
        assert_same(ours, data.tensors[0][labels], device)
        seen += labels.tolist()
    assert seen == list(range(20))


def test_map_location_in_every_form(device, second_device):
    data = saved(torch.arange(4.0, device=device))
    for location, where in (
        ({str(device): str(second_device)}, second_device),
        ({str(device): "cpu"}, torch.device("cpu")),
        ({"cpu": "meta"}, device),
        (lambda storage, place: storage, torch.device("cpu")),
        (lambda storage, place: storage.to(device=second_device), second_device),
        (None, device),
    ):
        result = torch.load(io.BytesIO(data), map_location=location, weights_only=True)
        assert result.device == where and result.tolist() == [0, 1, 2, 3]


def test_a_distributed_checkpoint(device, tmp_path):
    checkpoint = pytest.importorskip("torch.distributed.checkpoint")
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 3).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 4, device=device)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 7}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own: no process group, storages of the typed kind
        # Beside a GPU of torch.cuda's, _OverlappingCpuLoader copies CUDA's
        # tensors and refuses all others.
        ahead = {"per_thread_copy_ahead": 0} if torch.cuda.is_available() else {}
        writer = checkpoint.FileSystemWriter(tmp_path, **ahead)
        checkpoint.save(state, storage_writer=writer, no_dist=True)
        torch.manual_seed(2)
        fresh = torch.nn.Linear(4, 3).to(device)
        restored = {"model": fresh.state_dict(), "step": 0}
        checkpoint.load(restored, checkpoint_id=tmp_path, no_dist=True)
    assert restored["step"] == 7
    for name, value in model.state_dict().items():
        assert restored["model"][name].device == device
        assert torch.equal(restored["model"][name].cpu(), value.cpu())
