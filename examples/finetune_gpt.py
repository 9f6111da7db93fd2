# SPDX-License-Identifier: BSD-3-Clause
"""Fine-tune a small GPT with Hugging Face's Trainer, or with --lora its adapters alone, by PEFT.

    python examples/finetune_gpt.py --device sim
    torchrun --nproc-per-node=2 examples/finetune_gpt.py --device sim --bf16

The text is this file, byte by byte, so that nothing is downloaded. Needs transformers, accelerate, and for --lora peft.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import torch

LENGTH = 64  # bytes of a sample


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="sim", help="driver to attach, or cpu")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=8, help="on each rank")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--lora", action="store_true", help="train adapters of rank 4 alone")
    parser.add_argument("--bf16", action="store_true", help="mixed precision in bfloat16")
    return parser.parse_args()


def samples() -> list[dict[str, torch.Tensor]]:
    text = torch.tensor(list(Path(__file__).read_bytes()))
    rows = text.unfold(0, LENGTH, LENGTH // 4)
    return [{"input_ids": row, "labels": row} for row in rows]


def model(width: int, is_lora: bool) -> torch.nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=256, n_positions=LENGTH, n_embd=width, n_layer=2, n_head=4)
    gpt = GPT2LMHeadModel(config)
    if not is_lora:
        return gpt
    from peft import LoraConfig, get_peft_model

    adapted = get_peft_model(gpt, LoraConfig(r=4, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True))
    adapted.print_trainable_parameters()
    return adapted


def main() -> int:
    options = parse()
    if options.device != "cpu":
        import torch_outboard
        from torch_outboard.integrations import huggingface

        torch_outboard.attach(options.device)
        huggingface.use()  # before anything of transformers chooses a device
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        max_steps=options.steps,
        per_device_train_batch_size=options.batch_size,
        learning_rate=1e-2 if options.lora else 3e-3,
        logging_steps=max(1, options.steps // 6),
        save_strategy="no",
        report_to=[],
        bf16=options.bf16,
        use_cpu=options.device == "cpu",
    )
    trainer = Trainer(model=model(options.width, options.lora), args=arguments, train_dataset=samples())
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    if trainer.is_world_process_zero():
        print(f"{trainer.args.device}, {trainer.args.world_size} ranks: loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    return 0 if losses[-1] < losses[0] else 1


if __name__ == "__main__":
    sys.exit(main())
