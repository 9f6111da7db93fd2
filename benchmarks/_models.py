# SPDX-License-Identifier: BSD-3-Clause
"""The models of `models.py`, with random weights, and a batch for each.

Nothing is drawn in a step, so that losses can be compared: probabilities of dropout and of skipped layers are 0.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

Batch = dict[str, torch.Tensor]
Loss = Callable[[nn.Module, Batch], torch.Tensor]


class Model(NamedTuple):
    """`make(is_tiny)` returns a model, a batch for it, and what computes the loss."""

    make: Callable[[bool], tuple[nn.Module, Batch, Loss]]


def named_models(text: str) -> list[str]:
    """Return the models of the option --only, a list with commas."""
    names = text.split(",")
    if unknown := set(names) - set(MODELS):
        raise argparse.ArgumentTypeError(
            f"there is no model {', '.join(sorted(unknown))}: choose of {', '.join(MODELS)}"
        )
    return names


def make_model(name: str, is_tiny: bool) -> tuple[nn.Module, Batch, Loss]:
    """Return a model by name, its batch and its loss, on the CPU and always the same."""
    torch.manual_seed(1)
    model, batch, loss = MODELS[name].make(is_tiny)
    for module in model.modules():
        kind = type(module).__name__
        if isinstance(module, nn.modules.dropout._DropoutNd) or kind == "StochasticDepth":
            module.p = 0.0
        elif isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0
    return model.train(), batch, loss


# Of images.


def _classified(model: nn.Module, batch: Batch) -> torch.Tensor:
    return F.cross_entropy(model(batch["images"]).float(), batch["labels"])


def _segmented(model: nn.Module, batch: Batch) -> torch.Tensor:
    output = model(batch["images"])
    return F.cross_entropy((output["out"] if isinstance(output, dict) else output).float(), batch["labels"])


def _torchvisions(name: str, images: int) -> Model:
    def make(is_tiny: bool) -> tuple[nn.Module, Batch, Loss]:
        import torchvision

        count, size = (2, 64 if name not in ("vit_b_16", "swin_t", "maxvit_t") else 224) if is_tiny else (images, 224)
        batch = {"images": torch.randn(count, 3, size, size), "labels": torch.randint(1000, (count,))}
        # Only some of the models have further outputs for their training.
        options = {"aux_logits": False, "init_weights": True} if name == "googlenet" else {}
        return getattr(torchvision.models, name)(weights=None, **options), batch, _classified

    return Model(make)


def _r3d(is_tiny: bool) -> tuple[nn.Module, Batch, Loss]:
    import torchvision

    count, frames, size = (1, 4, 32) if is_tiny else (8, 16, 112)
    batch = {"images": torch.randn(count, 3, frames, size, size), "labels": torch.randint(400, (count,))}
    return torchvision.models.video.r3d_18(weights=None), batch, _classified


def _fcn(is_tiny: bool) -> tuple[nn.Module, Batch, Loss]:
    import torchvision

    count, size = (2, 64) if is_tiny else (8, 224)
    model = torchvision.models.segmentation.fcn_resnet50(weights=None, weights_backbone=None, num_classes=21)
    batch = {"images": torch.randn(count, 3, size, size), "labels": torch.randint(21, (count, size, size))}
    return model, batch, _segmented


class Unet(nn.Module):
    """The network of arXiv 1505.04597 with padding and batch normalization; `width` channels at the first level."""

    def __init__(self, width: int = 64, levels: int = 4, classes: int = 2) -> None:
        super().__init__()
        widths = [width << level for level in range(levels + 1)]
        self.down = nn.ModuleList(map(self._block, [3, *widths[:-1]], widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * channels, channels, 2, 2) for channels in widths[:-1])
        self.joined = nn.ModuleList(self._block(2 * channels, channels) for channels in widths[:-1])
        self.head = nn.Conv2d(width, classes, 1)

    @staticmethod
    def _block(channels: int, width: int) -> nn.Module:
        layers: list[nn.Module] = []
        for inputs in (channels, width):
            layers += [nn.Conv2d(inputs, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(True)]
        return nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept: list[torch.Tensor] = []
        for level, block in enumerate(self.down):
            x = block(x if level == 0 else F.max_pool2d(x, 2))
            kept.append(x)
        kept.pop()
        for up, joined in zip(reversed(self.up), reversed(self.joined), strict=True):
            x = joined(torch.cat([kept.pop(), up(x)], 1))
        return self.head(x)


def _unet(is_tiny: bool) -> tuple[nn.Module, Batch, Loss]:
    count, size, width = (2, 32, 8) if is_tiny else (4, 256, 64)
    batch = {"images": torch.randn(count, 3, size, size), "labels": torch.randint(2, (count, size, size))}
    return Unet(width), batch, _segmented


# Of sequences.


def _own_loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    loss: torch.Tensor = model(**batch).loss
    return loss


def _transformers_model(
    kind: str, config: str, rows: int, lengths: dict[str, int], small: dict[str, Any], **sizes: Any
) -> Model:
    """Return a model of transformers: the lengths of its inputs of tokens, and other sizes of its configuration."""

    def make(is_tiny: bool) -> tuple[nn.Module, Batch, Loss]:
        import transformers

        settings = getattr(transformers, config)(**{**sizes, **(small if is_tiny else {})})
        for name in vars(settings):
            if "drop" in name and isinstance(getattr(settings, name), float):
                setattr(settings, name, 0.0)
        settings.use_cache = False
        model = getattr(transformers, kind)(settings)
        count, part = (2, 8) if is_tiny else (rows, 1)
        batch = {
            name: torch.randint(1, settings.vocab_size, (count, max(length // part, 4)))
            for name, length in lengths.items()
        }
        if config == "WhisperConfig":
            batch["input_features"] = torch.randn(count, settings.num_mel_bins, 2 * settings.max_source_positions)
        return model, batch, _own_loss

    return Model(make)


class Recurrent(nn.Module):
    """A language model of LSTM layers."""

    def __init__(self, tokens: int, width: int, layers: int) -> None:
        super().__init__()
        self.embedded = nn.Embedding(tokens, width)
        self.layers = nn.LSTM(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, tokens)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.embedded(x))[0])


def _next_token(model: nn.Module, batch: Batch) -> torch.Tensor:
    tokens = batch["tokens"]
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1).float(), tokens[:, 1:].flatten())


def _lstm(is_tiny: bool) -> tuple[nn.Module, Batch, Loss]:
    tokens, width, rows, length = (50, 16, 2, 9) if is_tiny else (10_000, 512, 32, 65)
    return Recurrent(tokens, width, 2), {"tokens": torch.randint(tokens, (rows, length))}, _next_token


# Of points.


class GaussianProcess(nn.Module):
    """A Gaussian process, arXiv 2004.03178 (1): the negative logarithm of its marginal likelihood, in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.log_length, self.log_scale, self.log_noise = (nn.Parameter(torch.zeros(())) for _ in range(3))

    def forward(self, points: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        with torch.autocast(points.device.type, enabled=False):
            squares = torch.cdist(points, points).square() / (2 * self.log_length.exp().square())
            noise = (0.1 + self.log_noise.exp()) * torch.eye(points.shape[0], device=points.device)
            factor = torch.linalg.cholesky(self.log_scale.exp() * torch.exp(-squares) + noise)
            whitened = torch.linalg.solve_triangular(factor, values[:, None], upper=False)
            return whitened.square().mean() + factor.diagonal().log().mean()


def _gaussian_process(is_tiny: bool) -> tuple[nn.Module, Batch, Loss]:
    count = 20 if is_tiny else 1000
    batch = {"points": torch.randn(count, 4), "values": torch.randn(count)}
    return GaussianProcess(), batch, lambda model, batch: model(**batch)


_TINY = {"vocab_size": 99}
_TINY_WIDE = {**_TINY, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
_GROUPED = {"vocab_size": 32_000, "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8}
_DECODER_INPUTS = {"input_ids": 256, "labels": 256}

MODELS = {
    "resnet50": _torchvisions("resnet50", 32),
    "mobilenet_v3": _torchvisions("mobilenet_v3_large", 32),
    "efficientnet_b0": _torchvisions("efficientnet_b0", 32),
    "convnext_tiny": _torchvisions("convnext_tiny", 16),
    "unet": Model(_unet),
    "fcn_resnet50": Model(_fcn),
    "vit_b_16": _torchvisions("vit_b_16", 32),
    "swin_t": _torchvisions("swin_t", 32),
    "bert": _transformers_model("BertForMaskedLM", "BertConfig", 16, {"input_ids": 128, "labels": 128}, _TINY_WIDE),
    "gpt2": _transformers_model(
        "GPT2LMHeadModel",
        "GPT2Config",
        8,
        _DECODER_INPUTS,
        {**_TINY, "n_embd": 32, "n_head": 4, "n_layer": 2},
        n_layer=6,
    ),
    "llama": _transformers_model(
        *("LlamaForCausalLM", "LlamaConfig", 8, _DECODER_INPUTS, {**_TINY_WIDE, "num_key_value_heads": 2}),
        **_GROUPED,
        num_attention_heads=8,
        num_key_value_heads=4,
    ),
    "qwen3": _transformers_model(
        *("Qwen3ForCausalLM", "Qwen3Config", 8, _DECODER_INPUTS),
        {**_TINY_WIDE, "num_key_value_heads": 2, "head_dim": 8},
        **_GROUPED,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
    ),
    "t5": _transformers_model(
        *("T5ForConditionalGeneration", "T5Config", 16, {"input_ids": 128, "labels": 64}),
        {**_TINY, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4},
        decoder_start_token_id=0,
    ),
    "whisper": _transformers_model(
        *("WhisperForConditionalGeneration", "WhisperConfig", 8, {"labels": 64}),
        {
            **{"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4},
            **{"decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64},
            **{"max_source_positions": 50, "vocab_size": 60_000},
        },
        **{"d_model": 384, "encoder_layers": 4, "decoder_layers": 4, "encoder_attention_heads": 6},
        **{"decoder_attention_heads": 6, "encoder_ffn_dim": 1536, "decoder_ffn_dim": 1536},
    ),
    "lstm": Model(_lstm),
    "densenet121": _torchvisions("densenet121", 32),
    "googlenet": _torchvisions("googlenet", 32),
    "mnasnet": _torchvisions("mnasnet1_0", 32),
    "regnet": _torchvisions("regnet_y_400mf", 32),
    "shufflenet": _torchvisions("shufflenet_v2_x1_0", 32),
    "maxvit_t": _torchvisions("maxvit_t", 8),
    "r3d_18": Model(_r3d),
    "bloom": _transformers_model(
        *(
            "BloomForCausalLM",
            "BloomConfig",
            8,
            _DECODER_INPUTS,
            {**_TINY, "hidden_size": 32, "n_layer": 2, "n_head": 4},
        ),
        **{"vocab_size": 32_000, "hidden_size": 512, "n_layer": 8, "n_head": 8},
    ),
    "mixtral": _transformers_model(
        *("MixtralForCausalLM", "MixtralConfig", 8, _DECODER_INPUTS),
        {**_TINY_WIDE, "num_key_value_heads": 2, "num_local_experts": 4},
        **{**_GROUPED, "intermediate_size": 768, "num_hidden_layers": 4},
        **{"num_attention_heads": 8, "num_key_value_heads": 4, "num_local_experts": 8},
    ),
    "gaussian_process": Model(_gaussian_process),
}
