# SPDX-License-Identifier: BSD-3-Clause
"""One question per library: which device it uses, and whether several processes form one group.

A question imports its library and uses it as a program does. It returns an answer: `device`, the device's type; `why`,
the library's function that chose the device; and `others`, further uses of the library, each with its device or the
library's error.
"""

from __future__ import annotations

import inspect
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

__all__ = ["GROUPS", "PROBES", "group_of_processes"]

Answer = dict[str, Any]


def _accelerate(name: str) -> Answer:
    from accelerate import PartialState
    from accelerate.utils import get_max_memory

    placed = sorted(str(key) for key in get_max_memory() if isinstance(key, int))
    return {
        "device": PartialState().device.type,
        "why": _place(PartialState.default_device),
        "others": {'device_map="auto"': name if placed else "cpu", "fp16": _answer_or_error(_accelerate_fp16)},
    }


def _accelerate_fp16() -> str:
    from accelerate import Accelerator

    autocast = Accelerator(mixed_precision="fp16").autocast
    with autocast():
        return _autocast_devices()


def _transformers(name: str) -> Answer:
    from transformers import TrainingArguments

    others = {
        "Trainer with bf16": _answer_or_error(lambda: _arguments(TrainingArguments, bf16=True).device.type),
        "pipeline": _answer_or_error(_pipeline),
    }
    arguments = _arguments(TrainingArguments)
    return {"device": arguments.device.type, "why": _place(TrainingArguments._setup_devices), "others": others}


def _pipeline() -> str:
    from transformers import BertConfig, BertModel
    from transformers.pipelines.base import Pipeline

    class ProbePipeline(Pipeline):  # type: ignore[misc]
        def _sanitize_parameters(self, **kwargs: Any) -> Any:
            return {}, {}, {}

        def preprocess(self, inputs: Any, **kwargs: Any) -> Any:
            return inputs

        _forward = postprocess = preprocess

    config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, vocab_size=8)
    return str(ProbePipeline(model=BertModel(config), task="").device.type)


def _arguments(kind: Any, **options: Any) -> Any:
    return kind(output_dir=tempfile.mkdtemp(), report_to=[], **options)


def _trl(name: str) -> Answer:
    from trl import SFTConfig

    device = _answer_or_error(lambda: _arguments(SFTConfig).device.type)
    return {"device": device, "why": _place(SFTConfig.__post_init__), "others": {}}


def _peft(name: str) -> Answer:
    from peft.utils import other

    return {"device": other.infer_device(), "why": _place(other.infer_device), "others": {}}


def _lightning(name: str) -> Answer:
    return _lightning_of("lightning.pytorch")


def _pytorch_lightning(name: str) -> Answer:
    return _lightning_of("pytorch_lightning")


def _lightning_of(package: str) -> Answer:
    trainer = _trainer(package)
    connector = type(trainer._accelerator_connector)
    return {
        "device": trainer.strategy.root_device.type,
        "why": _place(connector._choose_auto_accelerator),
        "others": {"bf16-mixed": _answer_or_error(lambda: _mixed(package))},
    }


def _trainer(package: str, **options: Any) -> Any:
    from importlib import import_module

    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    return import_module(package).Trainer(**{"accelerator": "auto", "devices": 1, **quiet, **options})


def _mixed(package: str) -> str:
    with _trainer(package, precision="bf16-mixed").precision_plugin.forward_context():
        return _autocast_devices()


def _diffusers(name: str) -> Answer:
    from diffusers.utils import torch_utils

    return {"device": torch_utils.get_device(), "why": _place(torch_utils.get_device), "others": {}}


def _torchvision(name: str) -> Answer:
    import torchvision  # noqa: F401 - registers its operators

    if not hasattr(torch.ops.torchvision, "nms"):
        return {"device": "its library does not load with this torch", "why": "", "others": {}}
    boxes, scores = torch.tensor([[0.0, 0.0, 1.0, 1.0]], device=name), torch.ones(1, device=name)
    return {
        "device": torch.ops.torchvision.nms(boxes, scores, 0.5).device.type,
        "why": "operators follow their tensors",
        "others": {"nms under autocast": _answer_or_error(lambda: _nms_under_autocast(name, boxes, scores))},
    }


def _nms_under_autocast(name: str, boxes: Any, scores: Any) -> str:
    with torch.autocast(name, dtype=torch.bfloat16):
        return str(torch.ops.torchvision.nms(boxes.bfloat16(), scores, 0.5).device.type)


def _safetensors(name: str) -> Answer:
    from safetensors.torch import load_file, save_file

    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "probe.safetensors")
        save_file({"weight": torch.ones(2)}, path)
        device = _answer_or_error(lambda: load_file(path, device=name)["weight"].device.type)
    return {"device": device, "why": _place(load_file), "others": {}}


def _deepspeed(name: str) -> Answer:
    from deepspeed.accelerator import get_accelerator

    return {"device": get_accelerator().device_name(), "why": _place(get_accelerator), "others": {}}


def _vllm(name: str) -> Answer:
    from vllm import platforms

    return {
        "device": platforms.current_platform.device_type,
        "why": _place(platforms.resolve_current_platform_cls_qualname),
        "others": {},
    }


# Questions by package name. Libraries that create the state of other libraries come later.
PROBES: dict[str, Callable[[str], Answer]] = {
    "safetensors": _safetensors,
    "torchvision": _torchvision,
    "diffusers": _diffusers,
    "peft": _peft,
    "accelerate": _accelerate,
    "transformers": _transformers,
    "trl": _trl,
    "lightning": _lightning,
    "pytorch_lightning": _pytorch_lightning,
    "deepspeed": _deepspeed,
    "vllm": _vllm,
}


def _group_of_accelerate() -> Any:
    from accelerate import Accelerator

    # Not torch.distributed: a group may exist that Accelerate does not use.
    accelerator = Accelerator()
    return accelerator.reduce(torch.ones(1, device=accelerator.device), "sum")


def _group_of_lightning() -> Any:
    trainer = _trainer("lightning.pytorch", devices=2, strategy="ddp")
    trainer.strategy.setup_environment()
    return trainer.strategy.reduce(torch.ones(1, device=trainer.strategy.root_device), reduce_op="sum")


# The sum of ones over the processes of a library's group, on the device that the library uses.
# Trainer and TRL use Accelerate's group.
GROUPS: dict[str, Callable[[], Any]] = {"accelerate": _group_of_accelerate, "lightning": _group_of_lightning}


def group_of_processes(library: str) -> Answer:
    """Start a library as a rank, and return its device and the number of ranks in its group."""
    total = GROUPS[library]()
    return {"device": total.device.type, "index": total.device.index or 0, "members": int(total.item())}


def _answer_or_error(ask: Callable[[], str]) -> str:
    """Return the answer, or the first line of the library's error."""
    try:
        return ask()
    except Exception as error:  # noqa: BLE001 - a library's own refusal is its answer
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"


def _autocast_devices() -> str:
    """Return the device types for which autocast is on, among the CPU, CUDA and the attached driver's device."""
    own = torch._C._get_privateuse1_backend_name()
    on = [device for device in (own, "cuda", "cpu") if torch.is_autocast_enabled(device)]
    return on[0] if on else "autocast is on for no device"


def _place(function: Any) -> str:
    """Return the place of a library's function, such as "accelerate/state.py:738, PartialState.default_device"."""
    function = getattr(function, "fget", None) or getattr(function, "func", None) or function
    function = inspect.unwrap(function)
    code = getattr(function, "__code__", None)
    if code is None:
        return getattr(function, "__qualname__", str(function))
    path = Path(code.co_filename)
    for folder in map(Path, sys.path):
        if folder != Path() and path.is_relative_to(folder):
            path = path.relative_to(folder)
            break
    return f"{path}:{code.co_firstlineno}, {function.__qualname__}"
