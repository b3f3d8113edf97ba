"""A decoder and text in; the same decoder with fewer heads, or with its feed-forward parts split into experts, out.

Heads go by attention entropy, a whole group of query heads with its key head at a time, so that the cache shrinks
too: the groups whose attention is spread most evenly go. A feed-forward part becomes experts by clustering its
neurons on their gate weights into equal parts; a linear router is fitted to each part's contribution on the text.
With all parts chosen the answer is the dense one, to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from dynamometer.errors import UsageError
from dynamometer.kernels.model import Attention, Decoder, FeedForward, Layer
from dynamometer.kernels.shapes import Sizes


def entropies(model: Decoder, tokens: torch.Tensor, rope: torch.Tensor) -> torch.Tensor:
    """[layers, heads]: mean entropy of each head's attention over rows, as a share of the most that a row can have."""
    found: list[torch.Tensor] = []

    def watching(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        share = q.shape[1] // k.shape[1]
        keys, values = k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)
        scores = q @ keys.transpose(-1, -2) / q.shape[-1] ** 0.5
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        weights = scores.masked_fill(future, float("-inf")).softmax(-1)
        entropy = -(weights * weights.clamp(min=1e-20).log()).sum(-1)
        most = torch.arange(1, q.shape[2] + 1, device=q.device).float().log().clamp(min=1e-9)
        found.append((entropy / most)[:, :, 1:].mean(dim=(0, 2)))
        return weights @ values

    with torch.inference_mode():
        model(tokens, rope, watching, None, 0)
    return torch.stack(found)


def fewer_heads(model: Decoder, entropy: torch.Tensor, groups: int) -> Decoder:
    """A new decoder with `groups` key heads fewer in every layer, the ones with the highest entropy."""
    sizes = model.sizes
    if not 0 < groups < sizes.kv_heads:
        raise UsageError(f"{groups} of {sizes.kv_heads} key heads cannot go; give 1 to {sizes.kv_heads - 1}")
    share, size = sizes.heads // sizes.kv_heads, sizes.head_size
    smaller = msgspec.structs.replace(sizes, heads=sizes.heads - groups * share, kv_heads=sizes.kv_heads - groups)
    layers: list[nn.Module] = []
    for layer, heads in zip(model.layers, entropy, strict=True):
        kept = heads.view(sizes.kv_heads, share).mean(1).argsort()[: sizes.kv_heads - groups].sort().values
        layers.append(_pruned(layer, kept, smaller, share, size))
    return _assembled(model, layers, smaller)


def _pruned(layer: nn.Module, kept: torch.Tensor, sizes: Sizes, share: int, size: int) -> nn.Module:
    old = layer.attention
    weight = old.qkv.weight
    device, dtype = str(weight.device), weight.dtype
    new = Attention(sizes, device, dtype)
    heads = old.sizes.heads
    queries = (kept[:, None] * share + torch.arange(share, device=kept.device)).flatten()
    places = torch.cat([queries, heads + kept, heads + old.sizes.kv_heads + kept])
    rows = (places[:, None] * size + torch.arange(size, device=kept.device)).flatten()
    columns = (queries[:, None] * size + torch.arange(size, device=kept.device)).flatten()
    new.qkv.weight.data, new.out.weight.data = weight.data[rows], old.out.weight.data[:, columns]
    made = Layer(new, layer.feed, layer.before.size, device, dtype)
    made.before, made.between = layer.before, layer.between
    return made


def _assembled(model: Decoder, layers: Sequence[nn.Module], sizes: Sizes) -> Decoder:
    """A decoder of these layers that shares embedding, norm and output layer with the old one."""
    made = Decoder.__new__(Decoder)
    nn.Module.__init__(made)
    made.sizes, made.embedding, made.norm, made.head = sizes, model.embedding, model.norm, model.head
    made.layers = nn.ModuleList(layers)
    return made.eval()


class Parts(nn.Module):
    """A feed-forward part as equal experts, `top_k` of them computed for a token; all of them are the dense part."""

    def __init__(self, gate_up: torch.Tensor, down: torch.Tensor, router: torch.Tensor, top_k: int) -> None:
        super().__init__()
        self.gate_up, self.down = nn.Parameter(gate_up, False), nn.Parameter(down, False)
        self.router = nn.Parameter(router, False)
        self.top_k = top_k

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from dynamometer.kernels.experts import counts, product

        flat = x.reshape(-1, x.shape[-1])
        parts = self.gate_up.shape[0]
        chosen = F.linear(flat, self.router).topk(self.top_k, dim=-1).indices
        order = torch.argsort(chosen.reshape(-1), stable=True)
        token = order // self.top_k
        sizes = counts(chosen, parts)
        gate, up = product(flat[token], self.gate_up, sizes).chunk(2, dim=-1)
        out = product(F.silu(gate) * up, self.down, sizes)
        return torch.zeros_like(flat).index_add_(0, token, out).view_as(x)


def with_experts(model: Decoder, inputs: Sequence[torch.Tensor | None], parts: int, top_k: int) -> Decoder:
    """A new decoder whose feed-forward parts are `parts` experts.

    `inputs`: what reached each layer's part on some text, to fit the router; None takes a random router and the neurons
    in order, which is enough for speed.
    """
    layers: list[nn.Module] = []
    for layer, seen in zip(model.layers, inputs, strict=True):
        feed = layer.feed
        weight = feed.gate_up.weight
        made = Layer(
            layer.attention, _split(feed, seen, parts, top_k), layer.before.size, str(weight.device), weight.dtype
        )
        made.before, made.between = layer.before, layer.between
        layers.append(made)
    return _assembled(model, layers, model.sizes)


def _split(feed: FeedForward, seen: torch.Tensor | None, parts: int, top_k: int) -> Parts:
    gate, up = feed.gate_up.weight.data.chunk(2)
    ffn, hidden = gate.shape
    if ffn % parts or not 1 <= top_k <= parts:
        raise UsageError(f"{ffn} neurons into {parts} experts of which {top_k}; give a divisor and at most all of them")
    group = torch.arange(ffn, device=gate.device).view(parts, -1) if seen is None else _clusters(gate, parts)
    gate_up = torch.cat((gate[group], up[group]), dim=1)
    down = feed.down.weight.data.t()[group].transpose(1, 2).contiguous()
    if seen is None:
        router = torch.randn((parts, hidden), device=gate.device).to(gate.dtype)
        return Parts(gate_up, down, router, top_k)
    inner = F.silu(seen @ gate.t()) * (seen @ up.t())
    size = torch.stack([(inner[:, part] @ feed.down.weight.data.t()[part]).norm(dim=-1) for part in group], dim=1)
    square = seen.t() @ seen
    ridge = 0.01 * square.diagonal().mean() * torch.eye(hidden)
    router = torch.linalg.solve(square + ridge, seen.t() @ (size - size.mean(0))).t().contiguous()
    return Parts(gate_up, down, router, top_k)


def _clusters(gate: torch.Tensor, parts: int, rounds: int = 8) -> torch.Tensor:
    """[parts, neurons of one]: balanced k-means on the directions of the gate's rows; each part is filled in turn."""
    rows = F.normalize(gate, dim=1)
    size = len(rows) // parts
    centres = rows[torch.arange(parts) * size]
    for _ in range(rounds):
        likeness = rows @ centres.t()
        free = torch.ones(len(rows), dtype=torch.bool)
        groups = []
        for part in range(parts):
            score = torch.where(free, likeness[:, part], torch.tensor(-9.0))
            mine = score.topk(size).indices
            free[mine] = False
            groups.append(mine)
        centres = torch.stack([F.normalize(rows[mine].mean(0), dim=0) for mine in groups])
    return torch.stack(groups)


def feed_inputs(model: Decoder, tokens: torch.Tensor, rope: torch.Tensor, attend: object) -> list[torch.Tensor]:
    """What reaches each layer's feed-forward part on this text: [tokens, hidden] a layer."""
    seen: list[torch.Tensor] = []
    hooks = [
        layer.feed.register_forward_pre_hook(lambda _, args: seen.append(args[0].reshape(-1, args[0].shape[-1])))
        for layer in model.layers
    ]
    with torch.inference_mode():
        model(tokens, rope, attend, None, 0)
    for hook in hooks:
        hook.remove()
    return [one.clone() for one in seen]
