# SPDX-License-Identifier: BSD-3-Clause
"""The hand-written networks of `architectures.py`: what people write without a library of models."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

__all__ = ["NETWORKS", "TrainingCase"]

Batch = dict[str, torch.Tensor]
TrainingCase = tuple[nn.Module, Batch, Callable[[nn.Module, Batch], torch.Tensor]]


def _classified(model: nn.Module, batch: Batch) -> torch.Tensor:
    return F.cross_entropy(model(batch["x"]).flatten(0, -2), batch["labels"].flatten())


def _own_loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    loss: torch.Tensor = model(**batch)
    return loss


def _perceptron() -> TrainingCase:
    layers = [nn.Flatten(), nn.Linear(784, 512), nn.BatchNorm1d(512), nn.LeakyReLU(0.1), nn.Dropout(0.2)]
    model = nn.Sequential(*layers, nn.Linear(512, 256), nn.ELU(), nn.Linear(256, 10), nn.Softplus())
    return model, {"x": torch.randn(128, 1, 28, 28), "labels": torch.randint(10, (128,))}, _classified


class _RecurrentTagger(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.embedded = nn.Embedding(5000, 128, padding_idx=0)
        self.layers = kind(128, 256, 2, batch_first=True, bidirectional=True, dropout=0.1)
        self.head = nn.Linear(512, 20)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tagged: torch.Tensor = self.head(self.layers(self.embedded(x))[0])
        return tagged


def _tagger(kind: type[nn.RNNBase]) -> TrainingCase:
    batch = {"x": torch.randint(1, 5000, (32, 40)), "labels": torch.randint(20, (32, 40))}
    return _RecurrentTagger(kind), batch, _classified


class _Transformer(nn.Module):
    """Encoder and decoder of torch.nn, with a causal mask and padded keys."""

    def __init__(self) -> None:
        super().__init__()
        self.embedded = nn.Embedding(8000, 256)
        self.place = nn.Parameter(torch.zeros(64, 256))
        self.layers = nn.Transformer(256, 4, 2, 2, 1024, batch_first=True)
        self.head = nn.Linear(256, 8000)

    def forward(self, source: torch.Tensor, target: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        length = target.shape[1]
        mask = torch.full((length, length), -math.inf, device=target.device).triu(1)
        input, wanted = (self.embedded(tokens) * 16 + self.place[: tokens.shape[1]] for tokens in (source, target))
        output = self.head(self.layers(input, wanted, tgt_mask=mask, src_key_padding_mask=padding))
        return F.cross_entropy(output[:, :-1].flatten(0, 1), target[:, 1:].flatten(), label_smoothing=0.1)


def _transformer() -> TrainingCase:
    padding = torch.zeros(16, 50, dtype=torch.bool)
    padding[:, 40:] = True
    tokens = {"source": torch.randint(8000, (16, 50)), "target": torch.randint(8000, (16, 48)), "padding": padding}
    return _Transformer(), tokens, _own_loss


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        parts = self.qkv(self.first(x)).split(width, 2)
        q, k, v = (part.view(rows, length, self.heads, width // self.heads).transpose(1, 2) for part in parts)
        joined = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(rows, length, width)
        x = x + self.out(joined)
        output: torch.Tensor = x + self.wide(self.second(x))
        return output


class _NanoGpt(nn.Module):
    def __init__(self, tokens: int, width: int, heads: int, layers: int, length: int) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(tokens, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(_Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, tokens, bias=False)
        self.head.weight = self.token.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        output: torch.Tensor = self.head(self.norm(self.blocks(self.token(x) + self.place(places))))
        return output


def _nano_gpt() -> TrainingCase:
    tokens = torch.randint(50304, (12, 257))
    batch = {"x": tokens[:, :-1].contiguous(), "labels": tokens[:, 1:].contiguous()}
    return _NanoGpt(50304, 384, 6, 4, 256), batch, _classified


class _Autoencoder(nn.Module):
    """A variational autoencoder, arXiv 1312.6114."""

    def __init__(self) -> None:
        super().__init__()
        down = [nn.Conv2d(3, 32, 4, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 4, 2, 1), nn.ReLU(), nn.Flatten()]
        self.encoder = nn.Sequential(*down, nn.Linear(64 * 16 * 16, 256))
        up = [nn.Linear(128, 64 * 16 * 16), nn.Unflatten(1, (64, 16, 16)), nn.ConvTranspose2d(64, 32, 4, 2, 1)]
        self.decoder = nn.Sequential(*up, nn.ReLU(), nn.ConvTranspose2d(32, 3, 4, 2, 1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        mean, spread = self.encoder(images).chunk(2, 1)
        drawn = mean + torch.randn_like(mean) * (0.5 * spread).exp()
        loss = F.binary_cross_entropy_with_logits(self.decoder(drawn).float(), images.float().sigmoid())
        return loss - 0.5 * (1 + spread - mean.square() - spread.exp()).sum(1).mean()


class _Gan(nn.Module):
    """The losses of both networks of a DCGAN, arXiv 1511.06434."""

    def __init__(self) -> None:
        super().__init__()
        widths = [100, 256, 128, 64]
        layers: list[nn.Module] = []
        for number, (depth, width) in enumerate(zip(widths, widths[1:], strict=False)):
            layers += [nn.ConvTranspose2d(depth, width, 4, 2 if number else 1, 1 if number else 0, bias=False)]
            layers += [nn.BatchNorm2d(width), nn.ReLU(True)]
        self.generator = nn.Sequential(*layers, nn.ConvTranspose2d(64, 3, 4, 2, 1, bias=False), nn.Tanh())
        layers = [nn.Conv2d(3, 64, 4, 2, 1), nn.LeakyReLU(0.2, True)]
        for depth, width in ((64, 128), (128, 256)):
            layers += [nn.Conv2d(depth, width, 4, 2, 1), nn.InstanceNorm2d(width, affine=True), nn.LeakyReLU(0.2, True)]
        self.discriminator = nn.Sequential(*layers, nn.utils.parametrizations.spectral_norm(nn.Conv2d(256, 1, 4)))

    def forward(self, images: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        fake = self.generator(noise)
        real, false = self.discriminator(images).flatten(), self.discriminator(fake).flatten()
        ones, zero = torch.ones_like(real), torch.zeros_like(real)
        loss = F.binary_cross_entropy_with_logits(real, ones) + F.binary_cross_entropy_with_logits(false, zero)
        return loss + F.softplus(-false).mean() + F.relu(1 - real).mean()


class _Denoiser(nn.Module):
    """A small network of a diffusion model: group norms, attention over pixels, an embedding of the time."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width))
        self.begin, self.down = nn.Conv2d(3, width, 3, 1, 1), nn.Conv2d(width, width, 3, 2, 1)
        self.norms = nn.ModuleList(nn.GroupNorm(16, width) for _ in range(4))
        self.middle = nn.Conv2d(width, width, 3, 1, 1)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.up, self.end = nn.Conv2d(width, width, 3, 1, 1), nn.Conv2d(2 * width, 3, 3, 1, 1)

    def forward(self, images: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        noise = torch.randn_like(images)
        kept = torch.cos(times / 1000 * math.pi / 2)[:, None, None, None].to(images.dtype)
        noised = kept * images + (1 - kept.square()).clamp(min=1e-4).sqrt() * noise
        angles = times[:, None] * torch.exp(torch.arange(self.width // 2, device=times.device) * -0.3)
        time = self.time(torch.cat([angles.sin(), angles.cos()], 1).to(images.dtype))[:, :, None, None]
        first = self.begin(noised)
        x = self.down(F.silu(self.norms[0](first)))
        x = x + self.middle(F.silu(self.norms[1](x + time)))
        pixels = self.norms[2](x).flatten(2).transpose(1, 2)
        x = x + self.attention(pixels, pixels, pixels, need_weights=False)[0].transpose(1, 2).view_as(x)
        x = F.silu(self.norms[3](self.up(F.interpolate(x, scale_factor=2.0, mode="nearest"))))
        return F.mse_loss(self.end(torch.cat([x, first], 1)), noise)


class _WaveNet(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.begin = nn.Conv1d(1, width, 1)
        self.layers = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=1 << number) for number in range(5))
        self.passed = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(5))
        self.end = nn.Conv1d(width, 256, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.begin(x)
        for layer, passed in zip(self.layers, self.passed, strict=True):
            padded = F.pad(x, (int(layer.dilation[0]), 0))
            x = x + passed(F.glu(layer(padded), 1) * torch.tanh(x))
        return F.cross_entropy(self.end(x), labels)


class _Clicks(nn.Module):
    """A recommender: bags of embeddings, crossed features, and a perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(1000 * number, 16, mode="sum") for number in (1, 2, 3))
        self.first, self.last = nn.Sequential(nn.Linear(13, 16), nn.ReLU()), nn.Linear(22, 1)

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        vectors = [self.first(dense), *(table(sparse[:, number]) for number, table in enumerate(self.tables))]
        stacked = torch.stack(vectors, 1)
        crossed = torch.bmm(stacked, stacked.transpose(1, 2))
        rows, columns = torch.tril_indices(4, 4, -1, device=dense.device)
        logits = self.last(torch.cat([vectors[0], crossed[:, rows, columns]], 1)).squeeze(1)
        return F.binary_cross_entropy_with_logits(logits, labels)


class _Radiance(nn.Module):
    """Rays through a field of densities and colours, arXiv 2003.08934."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.field = nn.Sequential(nn.Linear(60, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.head = nn.Linear(width, 4)

    def forward(self, origins: torch.Tensor, directions: torch.Tensor, colours: torch.Tensor) -> torch.Tensor:
        depths = torch.linspace(2, 6, 64, device=origins.device) + torch.rand(64, device=origins.device) / 16
        points = origins[:, None] + directions[:, None] * depths[None, :, None]
        waves = points[..., None] * (2.0 ** torch.arange(10, device=points.device)) * math.pi
        output = self.head(self.field(torch.cat([waves.sin(), waves.cos()], -1).flatten(-2).to(origins.dtype)))
        alpha = 1 - torch.exp(-F.relu(output[..., 3].float()) * 0.06)
        passed = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], 1), 1)[:, :-1]
        return F.mse_loss(((alpha * passed)[..., None] * output[..., :3].sigmoid()).sum(1), colours.float())


class _Points(nn.Module):
    """Point clouds with shared perceptrons and nearest neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(6, 64, 1), nn.BatchNorm2d(64), nn.LeakyReLU(0.2))
        self.second = nn.Sequential(nn.Conv1d(64, 256, 1), nn.BatchNorm1d(256), nn.ReLU())
        self.head = nn.Linear(256, 40)

    def forward(self, points: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        near = torch.cdist(points.float(), points.float()).topk(8, largest=False).indices
        rows = torch.arange(len(points), device=points.device)[:, None, None]
        around = points[rows, near]
        edges = torch.cat([around - points[:, :, None], points[:, :, None].expand_as(around)], -1)
        pooled = self.second(self.first(edges.permute(0, 3, 1, 2)).amax(-1)).amax(-1)
        return F.nll_loss(F.log_softmax(self.head(pooled), 1), labels)


class _Reader(nn.Module):
    """Text in images: convolutions, a recurrent net, and CTC."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for depth, width in ((1, 32), (32, 64), (64, 128)):
            layers += [nn.Conv2d(depth, width, 3, 1, 1), nn.BatchNorm2d(width), nn.ReLU(True), nn.MaxPool2d(2)]
        self.images, self.layers = nn.Sequential(*layers), nn.GRU(128 * 4, 128, bidirectional=True)
        self.head = nn.Linear(256, 37)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        features = self.images(images)
        steps = self.layers(features.permute(3, 0, 1, 2).flatten(2))[0]
        logs = F.log_softmax(self.head(steps).float(), 2)
        lengths = torch.full((len(labels),), labels.shape[1]), torch.full((len(labels),), logs.shape[0])
        return F.ctc_loss(logs, labels, lengths[1], lengths[0], zero_infinity=True)


class _Actor(nn.Module):
    """An actor and a critic, with the clipped objective of arXiv 1707.06347 and a Q-network's loss."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = nn.Sequential(nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Flatten())
        self.body = nn.Sequential(nn.Linear(64 * 81, 256), nn.Tanh())
        self.policy, self.value = nn.Linear(256, 6), nn.Linear(256, 1)

    def forward(self, frames: torch.Tensor, actions: torch.Tensor, rewards: torch.Tensor) -> torch.Tensor:
        features = self.body(self.seen(frames))
        policy = torch.distributions.Categorical(logits=self.policy(features).float(), validate_args=False)
        ratio = (policy.log_prob(actions) - policy.log_prob(actions).detach()).exp()
        gain = (rewards - rewards.mean()) / (rewards.std() + 1e-8)
        actor = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
        critic = F.smooth_l1_loss(self.value(features).squeeze(1).float(), rewards)
        return actor + 0.5 * critic - 0.01 * policy.entropy().mean()


class _Flow(nn.Module):
    """Affine couplings, arXiv 1605.08803."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 64), nn.SiLU(), nn.Linear(64, 64), nn.Mish(), nn.Linear(64, 16))
            for _ in range(4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logs = torch.zeros(len(x), device=x.device)
        for net in self.nets:
            kept, changed = x.chunk(2, 1)
            scale, shift = net(kept).chunk(2, 1)
            scale = torch.tanh(scale)
            x, logs = torch.cat([changed * scale.exp() + shift, kept], 1), logs + scale.sum(1)
        normal = torch.distributions.Normal(0.0, 1.0, validate_args=False)
        return -(normal.log_prob(x.float()).sum(1) + logs).mean()


class _Embeddings(nn.Module):
    """Metric learning: triplets, cosines, and a contrastive loss over a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(128, 256), nn.PReLU(), nn.Dropout(0.1), nn.Linear(256, 64))
        self.scale = nn.Parameter(torch.tensor(2.6))

    def forward(self, anchor: torch.Tensor, positive: torch.Tensor, far: torch.Tensor) -> torch.Tensor:
        a, b, c = (F.normalize(self.net(each).float(), dim=1) for each in (anchor, positive, far))
        logits = self.scale.exp() * a @ b.t()
        places = torch.arange(len(a), device=a.device)
        both = (F.cross_entropy(logits, places) + F.cross_entropy(logits.t(), places)) / 2
        same = F.cosine_embedding_loss(a, b, torch.ones(len(a), device=a.device))
        return both + same + F.triplet_margin_loss(a, b, c) + F.kl_div(a.log_softmax(1), b.softmax(1), reduction="sum")


class _Larger(nn.Module):
    """Super-resolution with shuffled pixels, and bilinear and bicubic references."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 64, 5, 1, 2), nn.Tanh(), nn.Conv2d(64, 32, 3, 1, 1), nn.Hardtanh())
        self.end = nn.Sequential(nn.ReflectionPad2d(1), nn.Conv2d(32, 12, 3), nn.PixelShuffle(2))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        small = F.avg_pool2d(images, 2)
        image = self.end(self.net(small)) + F.interpolate(small, scale_factor=2, mode="bilinear", align_corners=False)
        smooth = (image[..., 1:] - image[..., :-1]).abs().mean() + (image[..., 1:, :] - image[..., :-1, :]).abs().mean()
        grid = F.affine_grid(torch.eye(2, 3, device=images.device).expand(len(images), 2, 3), list(images.shape), False)
        warped = F.grid_sample(image.float(), grid, align_corners=False)
        return F.l1_loss(image, images) + 0.1 * smooth + F.huber_loss(warped, images.float())


class _Spectral(nn.Module):
    """A Fourier neural operator in one dimension, arXiv 2010.08895, in float32."""

    def __init__(self, width: int = 32, modes: int = 16) -> None:
        super().__init__()
        self.first, self.last, self.modes = nn.Linear(2, width), nn.Linear(width, 1), modes
        self.weight = nn.Parameter(torch.randn(width, width, modes, 2) / width)
        self.point = nn.Conv1d(width, width, 1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, enabled=False):
            lifted = self.first(x).transpose(1, 2)
            waves = torch.fft.rfft(lifted.float())[:, :, : self.modes]
            turned = torch.einsum("bix,iox->box", waves, torch.view_as_complex(self.weight.float()))
            output = F.gelu(torch.fft.irfft(turned, n=lifted.shape[-1]).to(lifted.dtype) + self.point(lifted))
            return F.mse_loss(self.last(output.transpose(1, 2)).squeeze(-1), y)


class _Mixer(nn.Module):
    """Experts that the router's best scores choose, and state-space recurrence by a loop."""

    def __init__(self, width: int = 128, experts: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.up, self.down = (nn.Parameter(torch.randn(experts, *sizes) / 12) for sizes in ((width, 256), (256, width)))
        self.norm, self.decay = nn.RMSNorm(width), nn.Parameter(torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = self.norm(x).flatten(0, 1)
        weights, chosen = self.router(flat).softmax(-1).topk(2, -1)
        routed = F.one_hot(chosen, self.up.shape[0]).to(flat.dtype) * weights[..., None].to(flat.dtype)
        inner = F.silu(torch.einsum("td,edh->eth", flat, self.up.to(flat.dtype)))
        mixed = torch.einsum("eth,ehd,te->td", inner, self.down.to(flat.dtype), routed.sum(1)).view_as(x)
        state, outputs = torch.zeros_like(mixed[:, 0]), []
        for step in mixed.unbind(1):
            state = torch.lerp(step, state, torch.sigmoid(self.decay).to(step.dtype))
            outputs.append(state)
        return F.mse_loss(torch.stack(outputs, 1), x)


def _images(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes)


NETWORKS: dict[str, Callable[[], TrainingCase]] = {
    "perceptron": _perceptron,
    "gru_tagger": lambda: _tagger(nn.GRU),
    "rnn_tagger": lambda: _tagger(nn.RNN),
    "lstm_tagger": lambda: _tagger(nn.LSTM),
    "nn_transformer": _transformer,
    "nano_gpt": _nano_gpt,
    "autoencoder": lambda: (_Autoencoder(), {"images": _images(32, 3, 64, 64)}, _own_loss),
    "dcgan": lambda: (_Gan(), {"images": _images(32, 3, 32, 32), "noise": _images(32, 100, 1, 1)}, _own_loss),
    "denoiser": lambda: (
        *(_Denoiser(), {"images": _images(16, 3, 32, 32), "times": torch.randint(1000, (16,))}),
        _own_loss,
    ),
    "wavenet": lambda: (
        *(_WaveNet(), {"x": _images(8, 1, 4000), "labels": torch.randint(256, (8, 4000))}),
        _own_loss,
    ),
    "clicks": lambda: (
        _Clicks(),
        {"dense": _images(256, 13), "sparse": torch.randint(1000, (256, 3, 4)), "labels": torch.rand(256)},
        _own_loss,
    ),
    "radiance": lambda: (
        *(_Radiance(), {name: _images(512, 3) for name in ("origins", "directions", "colours")}),
        _own_loss,
    ),
    "points": lambda: (
        *(_Points(), {"points": _images(8, 256, 3), "labels": torch.randint(40, (8,))}),
        _own_loss,
    ),
    "reader": lambda: (
        *(_Reader(), {"images": _images(16, 1, 32, 160), "labels": torch.randint(1, 37, (16, 8))}),
        _own_loss,
    ),
    "actor": lambda: (
        _Actor(),
        {"frames": _images(32, 4, 84, 84), "actions": torch.randint(6, (32,)), "rewards": torch.rand(32)},
        _own_loss,
    ),
    "flow": lambda: (_Flow(), {"x": _images(256, 16)}, _own_loss),
    "embeddings": lambda: (_Embeddings(), {name: _images(64, 128) for name in ("one", "other", "far")}, _own_loss),
    "larger": lambda: (_Larger(), {"images": _images(8, 3, 64, 64)}, _own_loss),
    "spectral": lambda: (_Spectral(), {"x": _images(16, 256, 2), "y": _images(16, 256)}, _own_loss),
    "mixer": lambda: (_Mixer(), {"x": _images(8, 32, 128)}, _own_loss),
}
