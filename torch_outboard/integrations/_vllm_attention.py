# SPDX-License-Identifier: BSD-3-Clause
"""Attention over vLLM's paged cache with torch's operators: gathered blocks, and scaled_dot_product_attention.

A layer's cache is [blocks, heads, tokens per block, keys and values], in any order of strides. Requests that add one
token come first in a batch, and share one call, padded to the longest request. Each other request, a prompt or a chunk
of a prompt, is a separate call.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch.nn.functional import scaled_dot_product_attention
from vllm.v1.attention.backend import AttentionBackend, AttentionImpl, AttentionMetadataBuilder, AttentionType
from vllm.v1.attention.backends.utils import split_decodes_and_prefills

from torch_outboard._errors import NotSupportedError

__all__ = ["OutboardAttention"]


class OutboardAttention(AttentionBackend):  # type: ignore[misc]
    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float32, torch.float16, torch.bfloat16]
    supported_kv_cache_dtypes: ClassVar[list[Any]] = ["auto", "float16", "bfloat16"]

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"  # vLLM's name for all back ends outside its tree

    @staticmethod
    def get_impl_cls() -> type[_Impl]:
        return _Impl

    @staticmethod
    def get_builder_cls() -> type[_Builder]:
        return _Builder

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supports_combination(cls, head_size: int, dtype: torch.dtype, kv_cache_dtype: Any, *others: Any) -> str | None:
        is_same = kv_cache_dtype in (None, "auto", str(dtype).removeprefix("torch."))
        return None if is_same else f"a cache of {kv_cache_dtype} for a model of {dtype}"


@dataclass(frozen=True)
class _Chunk:
    """A request's tokens in a batch: queries first:last, which are the last of the request's `length` tokens."""

    first: int
    last: int
    length: int
    blocks: torch.Tensor  # [blocks of the request]

    @property
    def before(self) -> int:
        """The number of tokens that the request had before these."""
        return self.length - (self.last - self.first)


@dataclass(frozen=True)
class _Metadata:
    tokens: int
    write_to: tuple[torch.Tensor, torch.Tensor]  # each token's block, and its place in the block
    singles: int  # the number of requests that add one token
    lengths: torch.Tensor  # [singles]
    blocks: torch.Tensor  # [singles, blocks of the longest request]
    chunks: list[_Chunk]
    masks: dict[Any, torch.Tensor] = field(default_factory=dict)  # shared by the layers

    def mask(self, chunk: _Chunk | None, tokens: int, window: int | None) -> torch.Tensor:
        """Return a mask [queries, tokens] of the tokens that each query sees.

        Without a chunk, the queries belong to the requests that add one token.
        """
        key = (chunk and chunk.first, window)
        if key not in self.masks:
            device = self.lengths.device
            places = self.lengths - 1 if chunk is None else torch.arange(chunk.before, chunk.length, device=device)
            token = torch.arange(tokens, device=device)
            seen = token <= places[:, None]
            self.masks[key] = seen if window is None else seen & (token > places[:, None] - window)
        return self.masks[key]


class _Builder(AttentionMetadataBuilder[Any]):  # type: ignore[misc]
    reorder_batch_threshold = 1  # requests that add one token come first

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self._block_size: int = kv_cache_spec.block_size

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> _Metadata:
        common = common_attn_metadata
        if common.causal is not True:
            raise NotSupportedError("torch-outboard's vLLM platform does not support non-causal attention.")
        singles, prompts, _, _ = split_decodes_and_prefills(common, decode_threshold=1)
        lengths = common.seq_lens_cpu_upper_bound.tolist()
        starts = common.query_start_loc_cpu.tolist()
        table = common.block_table_tensor
        longest = max(lengths[:singles], default=0)
        slots = common.slot_mapping[: common.num_actual_tokens]
        return _Metadata(
            tokens=common.num_actual_tokens,
            write_to=(slots // self._block_size, slots % self._block_size),
            singles=singles,
            lengths=common.seq_lens[:singles],
            blocks=table[:singles, : self._blocks(longest)],
            chunks=[
                _Chunk(starts[row], starts[row + 1], lengths[row], table[row, : self._blocks(lengths[row])])
                for row in range(singles, singles + prompts)
            ],
        )

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._block_size)


class _Impl(AttentionImpl[Any]):  # type: ignore[misc]
    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        **others: Any,
    ) -> None:
        features = {"ALiBi": alibi_slopes, "a logits soft cap": logits_soft_cap or None, **others}
        if wrong := [name for name, value in features.items() if value is not None]:
            raise NotSupportedError(
                f"torch-outboard's vLLM platform does not support attention with {', '.join(wrong)}."
            )
        self.num_heads, self.head_size, self.scale = num_heads, head_size, scale
        self.num_kv_heads = num_kv_heads or num_heads
        self.kv_cache_dtype = kv_cache_dtype
        self._window = sliding_window
        self._is_shared = kv_sharing_target_layer_name is not None

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: _Metadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Write [tokens, heads, head size] to `output`."""
        if attn_metadata is None:  # a run that only measures memory
            return output.zero_()
        batch = attn_metadata
        cache = kv_cache.transpose(1, 2)  # [blocks, tokens, heads, keys and values]
        if not self._is_shared:
            cache[batch.write_to] = torch.cat((key[: batch.tokens], value[: batch.tokens]), -1)
        if batch.singles:
            rows = slice(batch.singles)
            keys, values = self._gathered(cache[batch.blocks])
            mask = batch.mask(None, keys.shape[2], self._window)[:, None, None]
            output[rows] = self._attention(query[rows, :, None], keys, values, mask)[:, :, 0]
        for chunk in batch.chunks:
            rows = slice(chunk.first, chunk.last)
            queries = query[None, rows].transpose(1, 2)
            if chunk.before == 0 and self._window is None and not self._is_shared:
                keys, values = key[None, rows].transpose(1, 2), value[None, rows].transpose(1, 2)
                attended = self._attention(queries, keys, values)
            else:
                keys, values = self._gathered(cache[chunk.blocks[None]], chunk.length)
                attended = self._attention(queries, keys, values, batch.mask(chunk, chunk.length, self._window))
            output[rows] = attended[0].transpose(0, 1)
        return output

    def _gathered(self, blocks: torch.Tensor, length: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys and values of gathered blocks, each [requests, heads, tokens, head size]."""
        keys_and_values = blocks.flatten(1, 2)[:, :length].transpose(1, 2)
        return keys_and_values[..., : self.head_size], keys_and_values[..., self.head_size :]

    def _attention(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the attention of queries under a mask; without a mask, each query sees its own and earlier tokens."""
        is_grouped = self.num_heads != self.num_kv_heads
        return scaled_dot_product_attention(
            query, keys, values, mask, is_causal=mask is None, scale=self.scale, enable_gqa=is_grouped
        )
