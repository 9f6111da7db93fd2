# SPDX-License-Identifier: BSD-3-Clause
"""The training set of packs: the architectures and programs whose calls `record_calls` records, with random weights.

The sizes are ordinary ones: without a device nothing is computed, and plans depend on the order of magnitude of
sizes. Layers are few, because further layers repeat the same calls. Models of `benchmarks/_models.py` keep their sizes.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from own_networks import NETWORKS, TrainingCase
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))
from _models import MODELS, make_model

__all__ = ["CHANNELS_LAST", "NAMES", "PROGRAMS", "training_case_of"]

Batch = dict[str, torch.Tensor]

# Also recorded with their images and weights in channels-last.
CHANNELS_LAST = ("resnet50", "mobilenet_v3", "convnext_tiny", "unet", "resnext50", "efficientnet_b0", "autoencoder")


# Of images.


def _classified(model: nn.Module, batch: Batch) -> torch.Tensor:
    output = model(batch["images"])
    if isinstance(output, (tuple, list)):
        output = output[0]
    return F.cross_entropy(output.float(), batch["labels"], label_smoothing=0.1)


def _labelled(*sizes: int) -> Batch:
    return {"images": torch.randn(*sizes), "labels": torch.randint(10, (sizes[0],))}


def _torchvisions(name: str, count: int = 16, size: int = 224, **options: Any) -> Callable[[], TrainingCase]:
    def make() -> TrainingCase:
        torchvision = importlib.import_module("torchvision")
        model = getattr(torchvision.models, name)(weights=None, num_classes=10, **options)
        return model, _labelled(count, 3, size, size), _classified

    return make


def _segments(name: str) -> Callable[[], TrainingCase]:
    def make() -> TrainingCase:
        builder = getattr(importlib.import_module("torchvision").models.segmentation, name)
        model = builder(weights=None, weights_backbone=None, num_classes=21)
        batch = {"images": torch.randn(4, 3, 224, 224), "labels": torch.randint(21, (4, 224, 224))}
        return model, batch, lambda net, data: F.cross_entropy(net(data["images"])["out"].float(), data["labels"])

    return make


def _videos(name: str, frames: int = 8, size: int = 112) -> Callable[[], TrainingCase]:
    def make() -> TrainingCase:
        builder = getattr(importlib.import_module("torchvision").models.video, name)
        return builder(weights=None, num_classes=10), _labelled(4, 3, frames, size, size), _classified

    return make


def _timms(name: str, count: int = 16, size: int = 224, **options: Any) -> Callable[[], TrainingCase]:
    def make() -> TrainingCase:
        timm = importlib.import_module("timm")
        model = timm.create_model(name, pretrained=False, num_classes=10, drop_rate=0.1, **options)
        return model, _labelled(count, 3, size, size), _classified

    return make


# Of transformers.


def _own_loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    loss: torch.Tensor = model(**batch).loss
    return loss


def _first_result(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Return a loss for a model that has none."""
    return model(**batch)[0].float().square().mean()


_TEXT = {"input_ids": (8, 128), "labels": (8, 128)}
_WIDE = {
    **{"vocab_size": 32_000, "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "pad_token_id": 0},
}
_GROUPED = {**_WIDE, "num_key_value_heads": 2}


def _transformer(
    kind: str, config: str, inputs: dict[str, tuple[int, ...]], loss: Any = _own_loss, **sizes: Any
) -> Callable[[], TrainingCase]:
    """Return a model of transformers and a batch: tokens for inputs whose names end in ids or labels, else numbers."""

    def make() -> TrainingCase:
        transformers = importlib.import_module("transformers")
        settings = getattr(transformers, config)(**sizes)
        settings.use_cache = False
        most = getattr(settings, "vocab_size", None) or 10
        batch = {
            name: torch.randint(1, min(most, 1000), shape)
            if name.endswith(("ids", "labels"))
            else torch.randn(shape)
            if len(shape) > 2
            else torch.ones(shape, dtype=torch.long)
            for name, shape in inputs.items()
        }
        return getattr(transformers, kind)(settings), batch, loss

    return make


def _decoder(name: str, **sizes: Any) -> Callable[[], TrainingCase]:
    return _transformer(f"{name}ForCausalLM", f"{name}Config", _TEXT, **sizes)


def _encoder(name: str, **sizes: Any) -> Callable[[], TrainingCase]:
    inputs = {**_TEXT, "attention_mask": (8, 128)}
    return _transformer(f"{name}ForMaskedLM", f"{name}Config", inputs, **{**_WIDE, **sizes})


def _of_pixels(kind: str, config: str, size: int = 224, **sizes: Any) -> Callable[[], TrainingCase]:
    return _transformer(kind, config, {"pixel_values": (8, 3, size, size)}, _first_result, **sizes)


# Of graphs.


def _graph(name: str, **options: Any) -> Callable[[], TrainingCase]:
    def make() -> TrainingCase:
        models = importlib.import_module("torch_geometric.nn.models")
        model = getattr(models, name)(64, 128, num_layers=2, out_channels=7, dropout=0.1, **options)
        edges = torch.randint(2000, (2, 10_000))
        batch = {"x": torch.randn(2000, 64), "edge_index": edges, "labels": torch.randint(7, (2000,))}
        return (
            model,
            batch,
            lambda net, data: F.cross_entropy(net(data["x"], data["edge_index"]).float(), data["labels"]),
        )

    return make


def _of_benchmarks(name: str) -> Callable[[], TrainingCase]:
    return lambda: make_model(name, False)


_SPEECH = {"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 1024}
_VISION = {**_SPEECH}

ARCHITECTURES: dict[str, Callable[[], TrainingCase]] = {
    **{name: _of_benchmarks(name) for name in MODELS},
    **NETWORKS,
    # torchvision
    "resnet18": _torchvisions("resnet18", 64),
    "resnext50": _torchvisions("resnext50_32x4d"),
    "wide_resnet50": _torchvisions("wide_resnet50_2"),
    "vgg11_bn": _torchvisions("vgg11_bn"),
    "alexnet": _torchvisions("alexnet", 128),
    "squeezenet": _torchvisions("squeezenet1_1"),
    "inception_v3": _torchvisions("inception_v3", 8, 299, init_weights=False),
    "mobilenet_v2": _torchvisions("mobilenet_v2"),
    "mobilenet_v3_small": _torchvisions("mobilenet_v3_small"),
    "efficientnet_v2_s": _torchvisions("efficientnet_v2_s", 8),
    "swin_v2_t": _torchvisions("swin_v2_t", 8, 256),
    "deeplabv3": _segments("deeplabv3_resnet50"),
    "lraspp": _segments("lraspp_mobilenet_v3_large"),
    "mc3_18": _videos("mc3_18"),
    "r2plus1d_18": _videos("r2plus1d_18"),
    "s3d": _videos("s3d", 16, 224),
    "mvit_v1_b": _videos("mvit_v1_b", 16, 224),
    # timm
    "deit_tiny": _timms("deit_tiny_patch16_224"),
    "mixer_b16": _timms("mixer_b16_224"),
    "resmlp_12": _timms("resmlp_12_224"),
    "poolformer_s12": _timms("poolformer_s12"),
    "convmixer": _timms("convmixer_768_32", 4),
    "convnextv2_nano": _timms("convnextv2_nano"),
    "edgenext_small": _timms("edgenext_small"),
    "ghostnet": _timms("ghostnet_100"),
    "mobilevit_s": _timms("mobilevit_s", 8, 256),
    "levit_128s": _timms("levit_128s"),
    "nfnet_l0": _timms("eca_nfnet_l0", 8),
    "res2net50": _timms("res2net50_26w_4s", 8),
    "resnest14d": _timms("resnest14d", 8),
    "seresnet50": _timms("seresnet50", 8),
    "cait_xxs24": _timms("cait_xxs24_224", 8, depth=2),
    "beit_base": _timms("beit_base_patch16_224", 8, depth=2),
    "eva02_tiny": _timms("eva02_tiny_patch14_224", 8, depth=2),
    "xcit_nano": _timms("xcit_nano_12_p16_224", 8, depth=2),
    "coatnet_0": _timms("coatnet_0_rw_224", 4),
    "focalnet_tiny": _timms("focalnet_tiny_srf", 8),
    "hrnet_w18": _timms("hrnet_w18_small", 8),
    "fastvit_t8": _timms("fastvit_t8", 8, 256),
    "repvgg_a0": _timms("repvgg_a0"),
    "sequencer2d_s": _timms("sequencer2d_s", 8),
    # transformers: texts
    "distilbert": _transformer(
        *("DistilBertForMaskedLM", "DistilBertConfig", {**_TEXT, "attention_mask": (8, 128)}),
        **{"dim": 256, "hidden_dim": 1024, "n_layers": 2, "n_heads": 4},
    ),
    "roberta": _encoder("Roberta"),
    "albert": _encoder("Albert", embedding_size=128),
    "electra": _encoder("Electra", embedding_size=128),
    "deberta_v2": _encoder("DebertaV2", relative_attention=True, pos_att_type=["c2p", "p2c"]),
    "mpnet": _encoder("MPNet"),
    "fnet": _transformer("FNetForMaskedLM", "FNetConfig", _TEXT, **{**_WIDE, "num_attention_heads": 4}),
    "modernbert": _encoder(
        "ModernBert", **{"bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
    ),
    "esm": _encoder("Esm", position_embedding_type="rotary", mask_token_id=3),
    "opt": _decoder(
        "OPT", hidden_size=256, ffn_dim=1024, num_hidden_layers=2, num_attention_heads=4, word_embed_proj_dim=256
    ),
    "gpt_neo": _decoder(
        "GPTNeo", hidden_size=256, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]]
    ),
    "gptj": _decoder("GPTJ", vocab_size=32_000, n_embd=256, n_layer=2, n_head=4, rotary_dim=32),
    "gpt_neox": _decoder("GPTNeoX", **_WIDE),
    "falcon": _decoder("Falcon", vocab_size=32_000, hidden_size=256, num_hidden_layers=2, num_attention_heads=4),
    "mistral": _decoder("Mistral", **_GROUPED),
    "phi": _decoder("Phi", **_WIDE),
    "gemma2": _decoder("Gemma2", **_GROUPED, head_dim=64),
    "gemma3": _transformer("Gemma3ForCausalLM", "Gemma3TextConfig", _TEXT, **_GROUPED, head_dim=64),
    "olmo": _decoder("Olmo", **_WIDE),
    "stablelm": _decoder("StableLm", **_GROUPED),
    "qwen2_moe": _decoder(
        *("Qwen2Moe",),
        **{**_GROUPED, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 512},
        shared_expert_intermediate_size=512,
    ),
    "mamba": _decoder("Mamba", vocab_size=32_000, hidden_size=128, num_hidden_layers=1, state_size=8),
    "bart": _transformer(
        *("BartForConditionalGeneration", "BartConfig", {"input_ids": (8, 128), "labels": (8, 64)}),
        **{"d_model": 256, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 1024},
        **{"decoder_ffn_dim": 1024, "encoder_attention_heads": 4, "decoder_attention_heads": 4},
    ),
    "xlnet": _transformer(
        "XLNetLMHeadModel", "XLNetConfig", _TEXT, vocab_size=32_000, d_model=256, n_layer=2, n_head=4, d_inner=1024
    ),
    # transformers: images, sounds and series
    "vit": _of_pixels("ViTForImageClassification", "ViTConfig", **_VISION),
    "dinov2": _of_pixels("Dinov2ForImageClassification", "Dinov2Config", **_SPEECH),
    "segformer": _of_pixels("SegformerForSemanticSegmentation", "SegformerConfig", depths=[1, 1, 1, 1]),
    "clip_vision": _of_pixels("CLIPVisionModel", "CLIPVisionConfig", **_VISION),
    "siglip_vision": _of_pixels("SiglipVisionModel", "SiglipVisionConfig", **_VISION),
    "wav2vec2": _transformer(
        *("Wav2Vec2Model", "Wav2Vec2Config", {"input_values": (4, 16_000, 1)}),
        lambda model, batch: model(batch["input_values"][..., 0])[0].float().square().mean(),
        **_SPEECH,
    ),
    "audio_spectrogram": _transformer(
        *("ASTForAudioClassification", "ASTConfig", {"input_values": (4, 256, 128)}, _first_result),
        **_SPEECH,
        max_length=256,
    ),
    "patchtst": _transformer(
        *("PatchTSTForPrediction", "PatchTSTConfig", {"past_values": (16, 128, 7), "future_values": (16, 24, 7)}),
        **{"context_length": 128, "prediction_length": 24, "num_input_channels": 7, "num_hidden_layers": 2},
    ),
    # torch_geometric
    "gcn": _graph("GCN", norm="batch"),
    "graph_sage": _graph("GraphSAGE"),
    "gin": _graph("GIN"),
    "gat": _graph("GAT", heads=4),
    "edge_cnn": _graph("EdgeCNN"),
}


# Programs that are more than a training step.


def _with_gradients(device: torch.device, dtype: torch.dtype) -> list[nn.Parameter]:
    params = [nn.Parameter(torch.empty(sizes, device=device, dtype=dtype)) for sizes in ((6, 10), (10,), (8, 3, 5, 5))]
    for param in params:
        param.grad = torch.empty_like(param)
    return params


def _optimizers() -> Iterator[Callable[..., torch.optim.Optimizer]]:
    """Yield each optimizer with the options that change its operators; a step of `foreach` and `fused` is one call."""
    optim = torch.optim
    yield from (optim.Adam, optim.AdamW, optim.Adagrad, optim.Adadelta, optim.Adamax, optim.NAdam, optim.RAdam)
    yield from (optim.RMSprop, optim.Rprop, optim.ASGD, optim.SGD)
    yield lambda params, **options: optim.SGD(params, 0.1, momentum=0.9, nesterov=True, weight_decay=1e-4, **options)
    yield lambda params, **options: optim.Adam(params, amsgrad=True, weight_decay=1e-2, **options)
    yield lambda params, **options: optim.RMSprop(params, momentum=0.9, centered=True, **options)


def _optimize(device: torch.device) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for kind in _optimizers():
            optimizer = kind(_with_gradients(device, dtype), foreach=False)
            for _ in range(2):  # the second step finds states
                optimizer.step()
            optimizer.zero_grad(set_to_none=False)
        torch.optim.Adafactor(_with_gradients(device, dtype), foreach=False).step()
    params = _with_gradients(device, torch.float32)
    optimizer, scaler = torch.optim.SGD(params, 0.1), torch.amp.GradScaler(device.type)
    scaler.scale(params[0].sum()).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_value_(params, 1.0, foreach=False)
    nn.utils.clip_grad_norm_(params, 1.0, foreach=False)
    scaler.step(optimizer)
    scaler.update()
    averaged = torch.optim.swa_utils.AveragedModel(nn.Linear(6, 10).to(device))
    for _ in range(2):
        averaged.update_parameters(averaged.module)


class _GenerationDone(Exception):
    pass


class _StopAfterFewTokens:
    """A streamer that ends generation, which without a device never finds that it is finished."""

    def __init__(self) -> None:
        self._left = 4

    def put(self, tokens: torch.Tensor) -> None:
        self._left -= 1
        if not self._left:
            raise _GenerationDone

    def end(self) -> None:
        pass


def _generate(device: torch.device, **options: Any) -> None:
    """Generate a few tokens with static caches and with growing ones; more tokens would be the same calls."""
    transformers = importlib.import_module("transformers")
    for name, sizes in (("GPT2", {}), ("Llama", _GROUPED), ("Qwen3", {**_GROUPED, "head_dim": 64})):
        few = {"n_layer": 2, "n_embd": 256, "n_head": 4} if name == "GPT2" else sizes
        config = getattr(transformers, f"{name}Config")(**few)
        kind = "GPT2LMHeadModel" if name == "GPT2" else f"{name}ForCausalLM"
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            model = getattr(transformers, kind)(config).to(device, dtype).eval()
            for rows, cache in ((1, "static"), (4, "static"), (2, "dynamic")):
                tokens = torch.randint(1, 1000, (rows, 12)).to(device)
                mask = torch.ones_like(tokens)
                fixed = {"attention_mask": mask, "max_new_tokens": 8, "cache_implementation": cache, "pad_token_id": 0}
                try:
                    model.generate(tokens, streamer=_StopAfterFewTokens(), **fixed, **options)
                except _GenerationDone:
                    pass
                except RuntimeError as error:  # a draw looks at probabilities, which without a device are zeros
                    if "multinomial" not in str(error):
                        raise


def _sample(device: torch.device) -> None:
    options = {"top_k": 40, "top_p": 0.9, "temperature": 0.8, "repetition_penalty": 1.1}
    _generate(device, do_sample=True, **options)


PROGRAMS: dict[str, Callable[[torch.device], None]] = {
    "optimizers": _optimize,
    "generation": lambda device: _generate(device, do_sample=False),
    "sampling": _sample,
}

NAMES = (*ARCHITECTURES, *PROGRAMS)


def training_case_of(name: str) -> TrainingCase:
    """Return an architecture by name, its batch and its loss, on the CPU."""
    torch.manual_seed(1)
    model, batch, loss = ARCHITECTURES[name]()
    return model.train(), batch, loss
