# SPDX-License-Identifier: BSD-3-Clause
"""Published architectures with random weights: their eager training on the device follows the CPU's."""

from __future__ import annotations

import pytest
import torch

from .training import assert_trains

transformers = pytest.importorskip("transformers", reason="the models of the test extra")

pytestmark = [
    pytest.mark.models,
    pytest.mark.filterwarnings("ignore"),  # of the models' library, about versions to come
]

# The CPU has fused kernels of attention for its own tensors; the device gets the composite form.
ROUNDING = {torch.float32: 1e-4, torch.bfloat16: 5e-2}


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def test_bert_in_bfloat16_without_autocast(device):
    config = transformers.BertConfig(
        vocab_size=40, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=16, hidden_dropout_prob=0, attention_probs_dropout_prob=0,
    )  # fmt: skip
    model = transformers.BertForMaskedLM(config).bfloat16().train()
    tokens = torch.randint(0, 40, (4, 12))
    mask = torch.ones_like(tokens)
    mask[1, 8:] = 0

    def loss_of(model, data):
        return model(input_ids=data[0], attention_mask=data[1], labels=data[0]).loss

    steps = [[(tokens, mask)]] * 5
    assert_trains(model, loss_of, steps, device, tolerance=ROUNDING[torch.bfloat16])


def test_wav2vec2_with_ctc(device):
    config = transformers.Wav2Vec2Config(
        vocab_size=12, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        conv_dim=(8, 8), conv_stride=(5, 4), conv_kernel=(10, 4), num_conv_pos_embeddings=8,
        num_conv_pos_embedding_groups=2, num_feat_extract_layers=2, apply_spec_augment=False, layerdrop=0.0,
        hidden_dropout=0.0, attention_dropout=0.0, activation_dropout=0.0, feat_proj_dropout=0.0, final_dropout=0.0,
        ctc_loss_reduction="mean", pad_token_id=0,
    )  # fmt: skip
    model = transformers.Wav2Vec2ForCTC(config).train()
    sound = torch.randn(2, 800)
    labels = torch.randint(1, 12, (2, 6))
    labels[1, 4:] = -100

    def loss_of(model, data):
        return model(input_values=data[0], labels=data[1]).loss

    steps = [[(sound, labels)]] * 5
    assert_trains(
        model, loss_of, steps, device, lambda p: torch.optim.AdamW(p, lr=1e-3), tolerance=ROUNDING[torch.float32]
    )


def test_mixtral_with_its_default_experts(device):
    config = transformers.MixtralConfig(
        vocab_size=32, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, num_local_experts=4, num_experts_per_tok=2, max_position_embeddings=16,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = transformers.MixtralForCausalLM(config).train()
    tokens = torch.randint(0, 32, (4, 12))

    def loss_of(model, tokens):
        return model(input_ids=tokens, labels=tokens, use_cache=False).loss

    assert_trains(model, loss_of, [[tokens]] * 5, device, tolerance=ROUNDING[torch.float32])
