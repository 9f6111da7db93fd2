# SPDX-License-Identifier: BSD-3-Clause
"""Generate text with a small Llama, with a static cache and, with --compile, a compiled step.

    python examples/generate.py --device sim
    python examples/generate.py --device sim --compile

The weights are random: what counts is that the device writes the same tokens as the CPU. Needs transformers and tqdm.
"""

from __future__ import annotations

import argparse
import sys
import time

import torch
from tqdm import tqdm


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="sim", help="driver to attach, or cpu")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--compile", action="store_true", help="compile the step of one token, on the device alone")
    return parser.parse_args()


def llama(width: int) -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
    )
    return LlamaForCausalLM(config).eval()


@torch.inference_mode()
def generate(model: torch.nn.Module, prompt: torch.Tensor, tokens: int, step: object, bar: tqdm) -> torch.Tensor:
    """Write tokens greedily. The cache has its whole size from the start, so every step has the same shapes."""
    from transformers import StaticCache

    cache = StaticCache(config=model.config, max_cache_len=prompt.shape[1] + tokens)
    written = [prompt]
    new, position = prompt, torch.arange(prompt.shape[1], device=prompt.device)
    for number in range(tokens):
        forward = model if number == 0 else step  # the prompt has shapes of its own
        answer = forward(input_ids=new, past_key_values=cache, cache_position=position, use_cache=True)
        new = answer.logits[:, -1:].argmax(-1)
        written.append(new)
        position = position[-1:] + 1
        bar.update()
    return torch.cat(written, 1).cpu()


def main() -> int:
    options = parse()
    device = torch.device("cpu")
    if options.device != "cpu":
        import torch_outboard

        torch_outboard.attach(options.device)
        device = torch.device(torch_outboard.attached_driver().name, 0)
    prompt = torch.randint(0, 128, (options.batch_size, 8), generator=torch.Generator().manual_seed(1))
    results = {}
    for where in dict.fromkeys([device, torch.device("cpu")]):
        model = llama(options.width).to(where)
        step = torch.compile(model) if options.compile and where.type != "cpu" else model
        start = time.perf_counter()
        with tqdm(total=options.tokens, desc=str(where)) as bar:
            results[where] = generate(model, prompt.to(where), options.tokens, step, bar)
        rate = options.tokens * options.batch_size / (time.perf_counter() - start)
        print(f"{where}: {rate:.0f} tokens a second, the first ones included")
    first, *others = results.values()
    same = all(torch.equal(first, other) for other in others)
    print("The device writes the CPU's tokens." if same else "The device writes other tokens than the CPU.")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
