"""A GGUF file of a Llama-like model in, a `Decoder` with its real weights and its tokens out, in float32 on the CPU.

By gguf-py, which takes any quantization apart. llama.cpp keeps the rows of the query and key projections in the order
of pairs that turn together; they are put back to halves here, which is how `model.py` turns them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import cast

import msgspec
import numpy as np
import torch

from dynamometer.errors import UsageError
from dynamometer.kernels.model import Decoder, build
from dynamometer.kernels.shapes import Sizes
from dynamometer.plugins import optional

_WORDS = re.compile(r"'(?:[sdmt]|ll|ve|re)| ?[^\W\d_]+| ?\d| ?[^\s\w]+|_+|\s+(?!\S)|\s+")


class Tokens(msgspec.Struct, frozen=True):
    """Byte-level pair encoding with the model's own merges."""

    numbers: dict[str, int]
    ranks: dict[tuple[str, str], int]

    def encode(self, text: str) -> list[int]:
        letters = _byte_letters()
        found: list[int] = []
        for word in _WORDS.findall(text):
            parts = [letters[byte] for byte in word.encode()]
            found += [self.numbers[part] for part in self._merged(parts)]
        return found

    def _merged(self, parts: list[str]) -> list[str]:
        while len(parts) > 1:
            ranked = [(self.ranks.get(pair, 1 << 30), i) for i, pair in enumerate(pairwise(parts))]
            rank, i = min(ranked)
            if rank == 1 << 30:
                break
            parts = [*parts[:i], parts[i] + parts[i + 1], *parts[i + 2 :]]
        return parts


class Loaded(msgspec.Struct, frozen=True):
    """`rope_base`: of its rotary positions."""

    model: Decoder
    tokens: Tokens
    rope_base: float


def _byte_letters() -> dict[int, str]:
    """The printable letter that stands for each byte in GPT-2's vocabulary: itself, or a free one from 256 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in plain}
    spare = 256
    for byte in range(256):
        if byte not in letters:
            letters[byte] = chr(spare)
            spare += 1
    return letters


def load(path: Path) -> Loaded:
    """Refuses anything but a dense Llama-like model with a byte-level vocabulary."""
    gguf = cast(ModuleType, optional("gguf", "llamacpp"))
    reader = gguf.GGUFReader(str(path))
    fields = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    kind = str(fields.get("general.architecture", ""))
    if kind != "llama" or fields.get("tokenizer.ggml.model") != "gpt2":
        raise UsageError(
            f"{path.name} holds {kind or 'no model'}; this study loads Llama-like models with GPT-2's vocabulary"
        )
    heads = int(fields["llama.attention.head_count"])
    hidden = int(fields["llama.embedding_length"])
    sizes = Sizes(
        path.stem.lower(),
        int(fields["llama.block_count"]),
        hidden,
        heads,
        int(fields["llama.attention.head_count_kv"]),
        hidden // heads,
        int(fields["llama.feed_forward_length"]),
        len(fields["tokenizer.ggml.tokens"]),
    )
    tensors = {tensor.name: tensor for tensor in reader.tensors}

    def weight(name: str) -> torch.Tensor:
        tensor = tensors[name]
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        return torch.from_numpy(np.array(values, dtype=np.float32))

    model = _filled(sizes, weight, tuple(tensors))
    names = {str(token): i for i, token in enumerate(fields["tokenizer.ggml.tokens"])}
    pairs = [tuple(str(merge).split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    ranks = {(a, b): i for i, (a, b) in enumerate(pairs)}
    return Loaded(model, Tokens(names, ranks), float(fields.get("llama.rope.freq_base", 10000.0)))


def _filled(sizes: Sizes, weight: Callable[[str], torch.Tensor], names: Sequence[str]) -> Decoder:
    """The decoder with every tensor from the file."""
    model = build(sizes, "cpu", torch.float32)
    model.embedding.data = weight("token_embd.weight")
    model.head.weight.data = weight("output.weight") if "output.weight" in names else model.embedding.data
    model.norm.weight.data = weight("output_norm.weight")
    for i, layer in enumerate(model.layers):
        q = _halves(weight(f"blk.{i}.attn_q.weight"), sizes.heads)
        k = _halves(weight(f"blk.{i}.attn_k.weight"), sizes.kv_heads)
        layer.attention.qkv.weight.data = torch.cat((q, k, weight(f"blk.{i}.attn_v.weight")))
        layer.attention.out.weight.data = weight(f"blk.{i}.attn_output.weight")
        layer.before.weight.data = weight(f"blk.{i}.attn_norm.weight")
        layer.between.weight.data = weight(f"blk.{i}.ffn_norm.weight")
        layer.feed.gate_up.weight.data = torch.cat(
            (weight(f"blk.{i}.ffn_gate.weight"), weight(f"blk.{i}.ffn_up.weight"))
        )
        layer.feed.down.weight.data = weight(f"blk.{i}.ffn_down.weight")
    return model


def _halves(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of pairs that turn together, back to a first and a second half of each head."""
    outputs, inputs = rows.shape
    return rows.view(heads, outputs // heads // 2, 2, inputs).transpose(1, 2).reshape(outputs, inputs)
