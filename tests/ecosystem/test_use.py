# SPDX-License-Identifier: BSD-3-Clause
"""What `use()` changes of the installed libraries, that it takes all back, and what it refuses."""

from __future__ import annotations

import pytest

from .snippets import ATTACH

USE = ATTACH + "from torch_outboard.integrations import {0}\nused = {0}.use()\n"


def test_huggingface_takes_everything_back(run_python):
    run_python(
        ATTACH
        + """
import os
import accelerate, accelerate.state, accelerate.utils.modeling, accelerate.big_modeling, transformers.training_args
import transformers.distributed.utils, transformers.pipelines.base, peft
from torch_outboard.integrations import huggingface

def state():
    return [
        vars(accelerate.state.PartialState)["_prepare_backend"], vars(accelerate.state.PartialState)["default_device"],
        accelerate.utils.modeling.get_max_memory, accelerate.utils.get_max_memory,
        accelerate.utils.get_grad_scaler, accelerate.accelerator.get_grad_scaler,
        accelerate.Accelerator.__init__.__code__,
        transformers.training_args.is_torch_bf16_gpu_available, transformers.pipelines.base.Pipeline.__init__,
        dict(transformers.distributed.utils.DISTRIBUTED_BACKEND_MAP), peft.utils.other.infer_device,
        os.environ.get("ACCELERATE_TORCH_DEVICE"),
    ]

before = state()
with huggingface.use() as used:
    inside = state()
    assert all(old != new for old, new in zip(before, inside)), [
        index for index, (old, new) in enumerate(zip(before, inside)) if old == new]
    assert len(used.patches()) >= 10 and all(used.patches().values()), used.patches()
assert state() == before and used.patches() == {}
"""
    )


def test_lightning_takes_everything_back(run_python):
    run_python(
        ATTACH
        + """
import lightning.pytorch as pl
from lightning.pytorch.accelerators import AcceleratorRegistry
from torch_outboard.integrations import lightning
with lightning.use() as used:
    trainer = pl.Trainer(accelerator="sim", devices=[1], logger=False, enable_checkpointing=False)
    assert trainer.strategy.root_device == torch.device("sim", 1)
    for wrong in ("7", [0, 2], 3):
        try:
            pl.Trainer(accelerator="sim", devices=wrong, logger=False)
        except ValueError as error:
            assert "the device sim:" in str(error)
        else:
            raise AssertionError(wrong)
assert "sim" not in AcceleratorRegistry.available_accelerators()
trainer = pl.Trainer(accelerator="auto", devices=1, logger=False, enable_checkpointing=False)
assert trainer.strategy.root_device.type == "cpu"
"""
    )


def test_a_library_that_is_imported_later_is_patched_and_none_after_close(run_python):
    run_python(
        USE.format("huggingface") + "from accelerate import Accelerator\nassert Accelerator().device.type == 'sim'"
    )
    run_python(
        USE.format("huggingface")
        + "used.close()\nfrom accelerate import Accelerator\nassert Accelerator().device.type == 'cpu'"
    )


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("from accelerate import Accelerator\nAccelerator()", "Accelerate has chosen 'cpu' already"),
        ("import os\nos.environ['ACCELERATE_TORCH_DEVICE'] = 'cuda:1'", "unset the variable"),
    ],
)
def test_two_that_disagree_are_refused_with_nothing_half_done(run_python, before, expected):
    run_python(
        ATTACH
        + f"""{before}
import accelerate.state
chosen = vars(accelerate.state.PartialState)["_prepare_backend"]
from torch_outboard.integrations import huggingface
try:
    huggingface.use()
except torch_outboard.RegistrationError as error:
    assert {expected!r} in str(error), error
else:
    raise AssertionError("it was not refused")
assert vars(accelerate.state.PartialState)["_prepare_backend"] is chosen
"""
    )


def test_a_library_without_what_is_patched_is_refused_by_name(run_python):
    run_python(
        ATTACH
        + """
import accelerate.state
from torch_outboard.integrations import huggingface
del accelerate.state.PartialState._prepare_backend
try:
    huggingface.use()
except torch_outboard.RegistrationError as error:
    assert "lacks accelerate.state.PartialState._prepare_backend" in str(error), error
else:
    raise AssertionError("it was not refused")
import os
assert "ACCELERATE_TORCH_DEVICE" not in os.environ
"""
    )


def test_device_map_auto_and_pipelines(run_python):
    run_python(
        USE.format("huggingface")
        + """
from accelerate import infer_auto_device_map
from transformers import BertConfig, BertModel, FeatureExtractionPipeline
net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
assert set(infer_auto_device_map(net).values()) == {0}, infer_auto_device_map(net)
"""
    )


def test_safetensors(run_python, tmp_path):
    run_python(
        USE.format("safetensors")
        + f"""
from safetensors import torch as st
saved = {{"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2, dtype=torch.bfloat16)}}
st.save_file(saved, {str(tmp_path / "x")!r})
for device in ("sim", "sim:1", torch.device("sim", 1)):
    found = st.load_file({str(tmp_path / "x")!r}, device=device)
    assert found["a"].device == torch.device("sim", torch.device(device).index or 0)
    assert torch.equal(found["a"].cpu(), torch.arange(6.0).reshape(2, 3)) and found["b"].dtype == torch.bfloat16
assert st.load_file({str(tmp_path / "x")!r})["a"].device.type == "cpu"
used.close()
try:
    st.load_file({str(tmp_path / "x")!r}, device="sim")
except Exception as error:
    assert "device sim is invalid" in str(error)
else:
    raise AssertionError("safetensors knows the device by itself: drop the patch")
"""
    )


def test_the_doctor_finds_each_silent_case_and_none_behind_use(run_python):
    import json

    run = "import sys\nfrom torch_outboard.cli import main\nmain(sys.argv[1:], prog_name='outboard')"
    arguments = ("doctor", "--driver", "sim", "--json")
    libraries = [
        f"--library={name}" for name in ("accelerate", "transformers", "trl", "peft", "lightning", "safetensors")
    ]
    by_itself = json.loads(run_python(run, *arguments, *libraries, status=1).stdout)
    wrong = {check["subject"]: check["found"] for check in by_itself["checks"] if check["state"] == "wrong"}
    for library, uses in {
        "accelerate": ("", 'device_map="auto"', "fp16", "2 processes"),
        "transformers": ("", "Trainer with bf16", "pipeline"),
        "trl": ("",),
        "peft": ("",),
        "lightning": ("", "bf16-mixed", "2 processes"),
        "safetensors": ("",),
    }.items():
        for use in uses:
            assert any(
                subject.startswith(f"{library} ") or subject.startswith(f"{library},")
                for subject in wrong
                if use in subject
            ), (
                library,
                use,
            )
    assert "separate models" in wrong["accelerate, 2 processes"]
    behind = json.loads(run_python(run, *arguments, *libraries, "--use", status=0).stdout)
    assert behind["wrong"] == 0
