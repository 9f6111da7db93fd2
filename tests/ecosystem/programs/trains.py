# SPDX-License-Identifier: BSD-3-Clause
"""Train a tiny model with a library and print its losses: trains.py LIBRARY --device NAME [--precision] [--shard].

Run it alone, or by torchrun or `accelerate launch` with two ranks.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile

import torch

import torch_outboard

parser = argparse.ArgumentParser()
parser.add_argument(
    "library", choices=["torch", "accelerate", "trainer", "trl", "peft", "lightning", "fabric", "deepspeed"]
)
parser.add_argument("--device", default="cpu")
parser.add_argument("--precision", choices=["no", "bf16", "fp16"], default="no")
parser.add_argument("--shard", action="store_true", help="FSDP2 instead of DDP")
parser.add_argument("--no-use", action="store_true", help="leave out use()")
arguments = parser.parse_args()

is_cpu = arguments.device == "cpu"
if not is_cpu:
    torch_outboard.attach(arguments.device)
    if not arguments.no_use:
        from torch_outboard import integrations

        integrations.use_all()

STEPS, BATCH = 6, 4
torch.manual_seed(0)


def data():
    inputs = torch.randn(STEPS * BATCH * 2, 8, generator=torch.Generator().manual_seed(1))
    return torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True).sin())


def net():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))


def print_losses(losses, parameter):
    """Print the losses of this rank, the device of the parameters, and whether a step ran under autocast."""
    group = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
    rank = os.environ.get("RANK", "0")
    report = {"losses": losses, "device": str(parameter.device), "group": group, "dtype": seen[-1] if seen else ""}
    print(f"LOSSES {rank} {json.dumps(report)}", flush=True)


seen: list[str] = []  # the dtypes of products: bfloat16 only where autocast is really on


def watch(module):
    for layer in module.modules():
        if isinstance(layer, torch.nn.Linear):
            layer.register_forward_hook(lambda _, __, output: seen.append(str(output.dtype)))


def with_torch():
    """Train as the others should, without any library: their reference in mixed precision."""
    device = torch.device(arguments.device)
    dtype = {"no": None, "bf16": torch.bfloat16, "fp16": torch.float16}[arguments.precision]
    model = net().to(device)
    watch(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device.type, enabled=dtype is torch.float16)
    losses = []
    for inputs, targets in torch.utils.data.DataLoader(data(), batch_size=BATCH):
        with torch.autocast(device.type, dtype, enabled=dtype is not None):
            output = model(inputs.to(device))
        loss = torch.nn.functional.mse_loss(output.float(), targets.to(device))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item())
    print_losses(losses, next(model.parameters()))


def with_accelerate():
    from accelerate import Accelerator
    from accelerate.utils import FullyShardedDataParallelPlugin

    plugin = None
    if arguments.shard:
        plugin = FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="no_wrap")
    accelerator = Accelerator(cpu=is_cpu, mixed_precision=arguments.precision, fsdp_plugin=plugin)
    model = net()
    watch(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(data(), batch_size=BATCH)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = []
    for inputs, targets in loader:
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(accelerator.gather(loss.detach().reshape(1)).mean().item())
    print_losses(losses, next(model.parameters()))


def with_deepspeed():
    import deepspeed
    import torch.distributed as dist

    config = {
        "train_micro_batch_size_per_gpu": BATCH,
        "zero_optimization": {"stage": 3 if arguments.shard else 0},
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 0.0,  # DeepSpeed clips to 1 by itself
        "bf16": {"enabled": arguments.precision == "bf16"},
    }
    model = net()
    watch(model)
    deepspeed.init_distributed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    batches = list(torch.utils.data.DataLoader(data(), batch_size=BATCH))
    losses = []
    for inputs, targets in batches[dist.get_rank() :: dist.get_world_size()]:
        output = engine(inputs.to(engine.device, next(engine.parameters()).dtype))
        loss = torch.nn.functional.mse_loss(output.float(), targets.to(engine.device))
        engine.backward(loss)
        engine.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / dist.get_world_size())
    assert dist.get_backend() == ("gloo" if is_cpu else "outboard")
    print_losses(losses, next(engine.parameters()))
    dist.destroy_process_group()


def gpt():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(3)
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16, "vocab_size": 32}
    return GPT2LMHeadModel(
        GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, attn_pdrop=0, embd_pdrop=0, resid_pdrop=0)
    )


def texts():
    generator = torch.Generator().manual_seed(1)
    return [
        {"input_ids": row, "labels": row} for row in torch.randint(1, 32, (STEPS * BATCH * 2, 8), generator=generator)
    ]


def options():
    return {
        "output_dir": tempfile.mkdtemp(),
        "per_device_train_batch_size": BATCH,
        "max_steps": STEPS,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": is_cpu,
        "bf16": arguments.precision == "bf16",
        "fp16": arguments.precision == "fp16",
        **({"fsdp": "full_shard", "fsdp_config": {"fsdp_version": 2}} if arguments.shard else {}),
    }


def report(trainer):
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    print_losses(losses, next(trainer.model.parameters()))


def with_trainer(model=None):
    from transformers import Trainer, TrainingArguments

    model = model or gpt()
    watch(model)
    report(Trainer(model=model, args=TrainingArguments(**options()), train_dataset=texts()))


def with_peft():
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(4)
    with_trainer(get_peft_model(gpt(), LoraConfig(r=2, target_modules=["c_attn"], lora_dropout=0)))


def with_trl():
    import datasets
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    from trl import SFTConfig, SFTTrainer

    words = {f"w{index}": index for index in range(31)} | {"<pad>": 31}
    plain = Tokenizer(models.WordLevel(words, unk_token="w0"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="<pad>", eos_token="w0")
    rows = [" ".join(f"w{int(token)}" for token in row["input_ids"] % 31) for row in texts()]
    model = gpt()
    watch(model)
    args = SFTConfig(**options(), max_length=16, gradient_checkpointing=False)
    dataset = datasets.Dataset.from_dict({"text": rows})
    report(SFTTrainer(model=model, args=args, train_dataset=dataset, processing_class=tokenizer))


def with_lightning():
    import lightning.pytorch as pl
    from lightning.pytorch.strategies import ModelParallelStrategy

    losses = []

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = net()
            watch(self.net)

        def configure_model(self):
            if arguments.shard:
                from torch.distributed.fsdp import fully_shard

                fully_shard(self.net, mesh=self.device_mesh["data_parallel"])

        def training_step(self, batch, index):
            loss = torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])
            losses.append(self.trainer.strategy.reduce(loss.detach().clone(), reduce_op="mean").item())
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.net.parameters(), lr=0.1)

    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    strategy = ModelParallelStrategy(ranks, 1) if arguments.shard else "ddp" if ranks > 1 else "auto"
    precision = {"no": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}[arguments.precision]
    trainer = pl.Trainer(
        accelerator="cpu" if is_cpu else "auto",
        devices=ranks,
        strategy=strategy,
        precision=precision,
        max_epochs=1,
        max_steps=STEPS,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    module = Module()
    trainer.fit(module, torch.utils.data.DataLoader(data(), batch_size=BATCH))
    # After the fit, Lightning moves a module back to the CPU.
    print_losses(losses, torch.empty(0, device=trainer.strategy.root_device))


def with_fabric():
    from lightning.fabric import Fabric

    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    precision = {"no": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}[arguments.precision]
    strategy = "ddp" if ranks > 1 else "auto"
    fabric = Fabric(accelerator="cpu" if is_cpu else "auto", devices=ranks, strategy=strategy, precision=precision)
    fabric.launch()
    model = net()
    watch(model)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    losses = []
    for inputs, targets in fabric.setup_dataloaders(torch.utils.data.DataLoader(data(), batch_size=BATCH)):
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(fabric.all_reduce(loss.detach(), reduce_op="mean").item())
    print_losses(losses, next(model.parameters()))


{
    "torch": with_torch,
    "accelerate": with_accelerate,
    "trainer": with_trainer,
    "trl": with_trl,
    "peft": with_peft,
    "lightning": with_lightning,
    "fabric": with_fabric,
    "deepspeed": with_deepspeed,
}[arguments.library]()
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()
if is_cpu:
    # A thread of gloo may abort Python as it ends, without a driver too:
    # https://github.com/pytorch/pytorch/issues/190489.
    sys.stdout.flush()
    os._exit(0)
