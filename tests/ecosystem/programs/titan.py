# SPDX-License-Identifier: BSD-3-Clause
"""Train TorchTitan's debug model on a device or on the CPU: titan.py DEVICE OPTION… with TorchTitan's own options.

TorchTitan's wheel has neither the tokenizer nor the text of its debug model: they are made in the working directory.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from types import SimpleNamespace

import torch

WORDS = ["the", "a", "device", "stream", "kernel", "event", "memory", "waits", "runs", "copies", "and", "then"]


def make_assets(folder):
    """Write texts of few words, and a tokenizer that is trained on them."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    chance = random.Random(0)
    texts = [" ".join(chance.choices(WORDS, k=400)) for _ in range(200)]
    (folder / "c4_test").mkdir(parents=True)
    (folder / "c4_test" / "data.json").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    marks = {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=list(marks.values()),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    (folder / "tokenizer").mkdir()
    tokenizer.save(str(folder / "tokenizer" / "tokenizer.json"))
    (folder / "tokenizer" / "tokenizer_config.json").write_text(json.dumps({**marks, "add_bos_token": True}))


def use_the_cpu():
    """Let TorchTitan train on the CPU, for which it lacks attention, a division of gradients and statistics."""
    torch._utils._get_available_device_type = lambda: "cpu"
    torch.cpu.get_device_name = lambda device=None: "cpu"
    torch.cpu.get_device_properties = lambda device=None: SimpleNamespace(total_memory=1 << 34)
    torch.cpu.memory_stats = lambda device=None: {}
    torch.cpu.reset_peak_memory_stats = torch.cpu.empty_cache = lambda: None
    torch.cpu.set_device, torch.cpu.current_device = lambda device: None, lambda: 0
    from torch.distributed.fsdp import FSDPModule
    from torchtitan.models.common.attention import FlexAttention

    divide = FSDPModule.set_gradient_divide_factor

    def divide_after_the_sum(self, factor):
        divide(self, factor)
        self.set_force_sum_reduction_for_comms(True)  # Gloo divides nothing while it adds

    FSDPModule.set_gradient_divide_factor = divide_after_the_sum
    FlexAttention._compiled_flex_attn = staticmethod(dense_attention)


def dense_attention(q, k, v, *, block_mask, scale, **unused):
    """Stand for flex_attention, which has no backward pass on the CPU."""
    from torch.nn.attention.flex_attention import AuxOutput, create_mask

    heads = q.shape[1] // k.shape[1]
    mask = create_mask(block_mask.mask_mod, *q.shape[:3], k.shape[2], device="cpu")
    scores = q @ k.repeat_interleave(heads, 1).mT * (scale or q.shape[-1] ** -0.5)
    weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
    return weights @ v.repeat_interleave(heads, 1), AuxOutput()


def main():
    device = sys.argv.pop(1)
    if device == "assets":
        make_assets(Path("tests/assets"))
        return
    if device == "cpu":
        use_the_cpu()
    else:
        import torch_outboard

        torch_outboard.attach(device)
    from torchtitan.train import main as train

    train()


if __name__ == "__main__":
    main()
