# SPDX-License-Identifier: BSD-3-Clause
"""Accelerate, Trainer, TRL, PEFT and pipelines on the attached driver's devices.

Accelerate chooses a device, a distributed backend and its own implementations from a list of vendors. Other libraries
ask Accelerate or have their own lists. docs/upstream describes the upstream changes that would replace this module.
"""

from __future__ import annotations

import functools
import os
import sys
from types import CodeType, ModuleType
from typing import Any

import torch

from torch_outboard._errors import RegistrationError
from torch_outboard.distributed import BACKEND
from torch_outboard.integrations._patched import ActiveIntegration, attached_name, running

__all__ = ["use"]

_VARIABLE = "ACCELERATE_TORCH_DEVICE"


def use() -> ActiveIntegration:
    """Make Hugging Face's libraries use the attached driver's devices; return an object that undoes this.

    In a process that torchrun or `accelerate launch` has started, the rank uses the device of its LOCAL_RANK, and
    Accelerate forms one group of all ranks, with DDP or FSDP as requested.

    Raises RegistrationError if no driver is attached, if Accelerate has already chosen a device, or if
    ACCELERATE_TORCH_DEVICE names another device.
    """
    return running("huggingface", _start)


def _start() -> ActiveIntegration:
    name = attached_name("huggingface.use()")
    _check_variable(name)
    using = ActiveIntegration()
    try:
        # Do not query the device before Accelerate is imported: until then, a program may attach
        # with other options.
        using.when_imported("accelerate", lambda _: _patch_accelerate(using, name))
        using.when_imported("transformers.training_args", lambda module: _patch_training(using, module, name))
        using.when_imported("transformers.distributed.utils", lambda module: _add_backend(using, module, name))
        using.when_imported("transformers.pipelines.base", lambda module: _patch_pipeline(using, module, name))
        using.when_imported("peft.utils.other", lambda module: _patch_peft(using, module, name))
    except BaseException:  # re-raised, after undoing everything
        using.close()
        raise
    return using


def _device(name: str) -> torch.device:
    """Return this rank's device, and make it the current one."""
    local = int(os.environ.get("LOCAL_RANK", "0"))
    count = torch.accelerator.device_count()
    if count == 0:
        raise RegistrationError(f"the driver {name!r} has no device here: `outboard info --driver {name}` shows why")
    torch.accelerator.set_device_index(local % count)
    return torch.device(name, local % count)


def _check_variable(name: str, device: torch.device | None = None) -> None:
    """Raise RegistrationError if the variable names a device of another type, or another device than the rank's."""
    text = os.environ.get(_VARIABLE)
    if text is None:
        return
    kind, _, index = text.partition(":")
    if kind != name or (device is not None and index and int(index) != device.index):
        own = str(device or name)
        raise RegistrationError(f"{_VARIABLE} is {text!r}, but use() selects {own!r}: unset the variable")


def _check_unused(device: torch.device) -> None:
    """Raise RegistrationError if Accelerate has already chosen another device."""
    shared = sys.modules["accelerate.state"].PartialState._shared_state
    if shared and shared["device"] != device:
        raise RegistrationError(
            f"Accelerate has chosen {str(shared['device'])!r} already: call use() before the first Accelerator, "
            "PartialState or TrainingArguments"
        )


def _patch_accelerate(using: ActiveIntegration, name: str) -> None:
    import accelerate.accelerator
    import accelerate.state
    import accelerate.utils.modeling

    device = _device(name)
    _check_variable(name, device)
    _check_unused(device)
    using.set_variable(_VARIABLE, str(device), "Accelerate and Trainer read their device from it")
    state, modeling = accelerate.state.PartialState, accelerate.utils.modeling
    prepare = using.found(state, "_prepare_backend")

    @functools.wraps(prepare)
    def prepare_backend(self: Any, cpu: bool = False, sagemaker_dp: bool = False, backend: str | None = None) -> Any:
        is_rank = int(os.environ.get("LOCAL_RANK", -1)) != -1
        if cpu or sagemaker_dp or not is_rank:
            return prepare(self, cpu, sagemaker_dp, backend)
        # The type of a distributed setup on the device, with DDP, FSDP and scalers; the variable
        # has chosen the device.
        return backend or BACKEND, accelerate.state.DistributedType.MULTI_GPU

    using.set(state, "_prepare_backend", prepare_backend, "make one group of several ranks")
    using.set(state, "default_device", property(lambda self: device), "use the device, not a listed vendor's")

    @functools.wraps(using.found(modeling, "get_grad_scaler"))
    def get_grad_scaler(distributed_type: Any = None, **kwargs: Any) -> Any:
        if distributed_type == accelerate.state.DistributedType.FSDP:
            from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

            return ShardedGradScaler(device=device.type, **kwargs)
        return torch.amp.GradScaler(device.type, **kwargs)

    using.replace(modeling, "get_grad_scaler", get_grad_scaler, "scale losses on the device, not on CUDA")
    max_memory = _max_memory(using.found(modeling, "get_max_memory"))
    using.replace(modeling, "get_max_memory", max_memory, 'let device_map="auto" see the device')
    _allow(using, accelerate.accelerator.Accelerator.__init__, "cuda", device.type, "mixed_precision='fp16' has a list")


def _max_memory(before: Any) -> Any:
    @functools.wraps(before)
    def get_max_memory(max_memory: Any = None) -> Any:
        if max_memory is not None:
            return before(max_memory)
        free = {index: torch.accelerator.get_memory_info(index)[0] for index in range(torch.accelerator.device_count())}
        return free | {"cpu": before()["cpu"]}

    return get_max_memory


def _allow(using: ActiveIntegration, function: Any, known: str, name: str, reason: str) -> None:
    """Add a name to the tuples of vendors among a function's constants, in a copy of its code."""
    code: CodeType = function.__code__
    constants = tuple(
        (*constant, name) if isinstance(constant, tuple) and known in constant and name not in constant else constant
        for constant in code.co_consts
    )
    if constants == code.co_consts:  # this version has no such list
        return
    function.__code__ = code.replace(co_consts=constants)
    using.record(f"{function.__qualname__}.__code__", reason, lambda: setattr(function, "__code__", code))


def _patch_training(using: ActiveIntegration, module: ModuleType, name: str) -> None:
    def is_torch_bf16_gpu_available() -> bool:
        return bool(torch.get_device_module(name).is_bf16_supported())

    using.replace(module, "is_torch_bf16_gpu_available", is_torch_bf16_gpu_available, "let Trainer accept bf16=True")


def _add_backend(using: ActiveIntegration, module: ModuleType, name: str) -> None:
    backends = using.found(module, "DISTRIBUTED_BACKEND_MAP")
    if name not in backends:
        backends[name] = BACKEND
        using.record(
            f"{module.__name__}.DISTRIBUTED_BACKEND_MAP[{name!r}]",
            "find the backend for tensor parallelism",
            lambda: backends.pop(name, None),
        )


def _patch_pipeline(using: ActiveIntegration, module: ModuleType, name: str) -> None:
    initialise = module.Pipeline.__init__

    @functools.wraps(initialise)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        model = args[0] if args else kwargs["model"]
        device = kwargs.get("device")
        if getattr(model, "hf_device_map", None) is None:
            # An integer is a device index without a type.
            index = torch.accelerator.current_device_index() if device is None else device
            kwargs["device"] = torch.device(name, index) if _is_index(index) else device
        initialise(self, *args, **kwargs)

    using.set(module.Pipeline, "__init__", init, "let a pipeline without a device, or with an index, take the device")


def _is_index(device: Any) -> bool:
    return isinstance(device, int) and device >= 0


def _patch_peft(using: ActiveIntegration, module: ModuleType, name: str) -> None:
    using.replace(module, "infer_device", lambda: name, "load adapters to the device")
