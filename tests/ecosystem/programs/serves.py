# SPDX-License-Identifier: BSD-3-Clause
"""A program that serves a small model with random weights by vLLM on a device, and prints the tokens that it answers.

    serves.py FOLDER --driver sim                   # attaches and calls use(): the engine runs in this process
    OUTBOARD_VLLM=sim serves.py FOLDER              # vLLM starts a process for the engine, which attaches

FOLDER gets the model. Prints TOKENS, followed by JSON: of each engine the tokens of three prompts, and those of
transformers on the CPU. Engines differ in how prompts are split. Each serves the prompts twice; the second time their
beginnings are in vLLM's cache.
"""

from __future__ import annotations

import argparse
import gc
import json
import os

import torch

PROMPTS = [[5, 9, 11], [7, *range(20, 57)], [*range(3, 14)]]
TOKENS = 12
LENGTH = 128
SIZES = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": LENGTH,
    "initializer_range": 0.3,  # else all logits are alike
}


def make_model(kind, folder):
    """Write a model to a folder, and return transformers' greedy answers on the CPU."""
    from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

    torch.manual_seed(0)
    if kind == "mistral":
        model = MistralForCausalLM(MistralConfig(**SIZES, sliding_window=16)).eval()
    else:
        model = LlamaForCausalLM(LlamaConfig(**SIZES)).eval()
    model.save_pretrained(folder)
    generate = {"max_new_tokens": TOKENS, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    return [model.generate(torch.tensor([prompt]), **generate)[0, len(prompt) :].tolist() for prompt in PROMPTS]


def answers(folder, **options):
    """Return the greedy answers of a new engine, first without and then with the beginnings of prompts in its cache."""
    from vllm import LLM, SamplingParams

    sizes = {"max_model_len": LENGTH, "max_num_seqs": 4, "block_size": 16, "kv_cache_memory_bytes": 4 << 20}
    engine = LLM(folder, skip_tokenizer_init=True, dtype="float32", **sizes, **options)
    greedy = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True, detokenize=False)
    prompts = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    served = [engine.generate(prompts, greedy, use_tqdm=False) for _ in range(2)]
    return [[list(request.outputs[0].token_ids) for request in some] for some in served]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--driver")
    parser.add_argument("--option", action="append", default=[], help="an option of the driver, NAME=VALUE")
    parser.add_argument("--model", default="llama")
    options = parser.parse_args()
    expected = make_model(options.model, options.folder)
    if options.driver:
        import torch_outboard
        from torch_outboard.integrations import vllm

        torch_outboard.attach(options.driver, **dict(option.split("=") for option in options.option))
        if torch.accelerator.device_count() == 0:
            print("NO DEVICE")
            return
        vllm.use()
    report = {"expected": expected, "whole": answers(options.folder)}
    gc.collect()  # ends the engine
    report["chunked"] = answers(options.folder, enable_chunked_prefill=True, max_num_batched_tokens=16)
    if options.driver:
        report["providers"] = sorted({row.provider for row in torch_outboard.coverage()})
    print("TOKENS", json.dumps(report), flush=True)


if __name__ == "__main__":
    os.environ["VLLM_NO_USAGE_STATS"] = "1"
    main()
