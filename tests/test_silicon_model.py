"""The decoder that kernels are timed in, and what is done to it: pruning, experts, quantizing, shards."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from dynamometer.errors import MissingPath, UsageError  # noqa: E402
from dynamometer.kernels import prune, shards  # noqa: E402
from dynamometer.kernels.model import build, caches, rotary, weight_bytes  # noqa: E402
from dynamometer.kernels.quantized import quantize  # noqa: E402
from dynamometer.kernels.shapes import TINY, TINY_MOE, Sizes  # noqa: E402
from dynamometer.kernels.study_quant import plain  # noqa: E402
from dynamometer.kernels.weights import Tokens, _byte_letters, _halves  # noqa: E402


def logits(model: object, tokens: object, sizes: Sizes) -> object:
    rope = rotary(sizes, tokens.shape[1], "cpu", torch.float32)
    with torch.inference_mode():
        return model(tokens, rope, plain, None, 0, True)


@pytest.mark.parametrize("sizes", [TINY, TINY_MOE])
def test_a_decode_step_says_what_a_prefill_of_all_tokens_says(sizes: Sizes) -> None:
    model = build(sizes, "cpu", torch.float32)
    rope = rotary(sizes, 33, "cpu", torch.float32)
    tokens = torch.randint(sizes.vocab, (2, 33))
    kept = caches(sizes, 2, 33, "cpu", torch.float32)
    with torch.inference_mode():
        whole = model(tokens, rope, plain, None, 0)
        model(tokens[:, :32], rope[:, :32], plain, kept, 0)
        step = model(tokens[:, 32:], rope[:, 32:], plain, kept, 32)
    assert torch.allclose(whole, step, atol=1e-4)


def test_all_experts_are_the_dense_part() -> None:
    model = build(TINY, "cpu", torch.float32)
    tokens = torch.randint(TINY.vocab, (1, 40))
    rope = rotary(TINY, 40, "cpu", torch.float32)
    seen = prune.feed_inputs(model, tokens, rope, plain)
    every = prune.with_experts(model, seen, parts=8, top_k=8)
    assert torch.allclose(logits(model, tokens, TINY), logits(every, tokens, TINY), atol=1e-4)
    two = prune.with_experts(model, seen, parts=8, top_k=2)
    assert not torch.allclose(logits(model, tokens, TINY), logits(two, tokens, TINY), atol=1e-2)


def test_a_fitted_router_beats_a_random_one() -> None:
    model = build(TINY, "cpu", torch.float32)
    tokens = torch.randint(TINY.vocab, (1, 400))
    seen = prune.feed_inputs(model, tokens, rotary(TINY, 400, "cpu", torch.float32), plain)
    right = logits(model, tokens, TINY)

    def wrong(inputs: list[object]) -> float:
        torch.manual_seed(0)
        return float((logits(prune.with_experts(model, inputs, 4, 3), tokens, TINY) - right).norm())

    assert wrong(seen) < wrong([None] * TINY.layers)


def test_fewer_heads_make_the_model_and_its_cache_smaller() -> None:
    model = build(TINY, "cpu", torch.float32)
    smaller = prune.fewer_heads(model, torch.rand(TINY.layers, TINY.heads), 1)
    assert (smaller.sizes.heads, smaller.sizes.kv_heads) == (2, 1)
    assert smaller.sizes.cache_per_token == TINY.cache_per_token // 2
    assert weight_bytes(smaller) < weight_bytes(model)
    assert logits(smaller, torch.randint(TINY.vocab, (1, 9)), smaller.sizes).shape == (1, 9, TINY.vocab)
    with pytest.raises(UsageError, match="cannot go"):
        prune.fewer_heads(model, torch.rand(TINY.layers, TINY.heads), 2)


def test_pruning_keeps_the_heads_it_says_it_keeps() -> None:
    model = build(TINY, "cpu", torch.float32)
    with torch.no_grad():  # the second group of every layer answers nothing, so without it nothing changes
        for layer in model.layers:
            half = TINY.heads // 2 * TINY.head_size
            layer.attention.out.weight[:, half:] = 0
    entropy = torch.tensor([[0.1, 0.1, 0.9, 0.9]] * TINY.layers)
    smaller = prune.fewer_heads(model, entropy, 1)
    tokens = torch.randint(TINY.vocab, (1, 20))
    assert torch.allclose(logits(model, tokens, TINY), logits(smaller, tokens, TINY), atol=1e-4)


def test_the_entropy_of_even_attention_is_one_and_of_a_single_key_zero() -> None:
    model = build(TINY, "cpu", torch.float32)
    with torch.no_grad():
        for layer in model.layers:
            layer.attention.qkv.weight[: TINY.heads * TINY.head_size] = 0  # queries of 0 look everywhere alike
    tokens = torch.randint(TINY.vocab, (1, 16))
    found = prune.entropies(model, tokens, rotary(TINY, 16, "cpu", torch.float32))
    assert torch.allclose(found, torch.ones_like(found), atol=1e-5)


@pytest.mark.parametrize(("form", "most"), [("bf16", 0.02), ("fp8", 0.2), ("int8", 0.1)])
def test_quantized_products_stay_near_the_plain_ones(form: str, most: float) -> None:
    model = build(TINY, "cpu", torch.bfloat16)
    tokens = torch.randint(TINY.vocab, (1, 24))
    rope = rotary(TINY, 24, "cpu", torch.bfloat16)
    with torch.inference_mode():
        right = model(tokens, rope, plain, None, 0, True).float()
        found = quantize(model, form)(tokens, rope, plain, None, 0, True).float()
    assert float((found - right).norm() / right.norm()) < most


def test_experts_without_a_grouped_product_are_refused_and_not_faked() -> None:
    with pytest.raises(UsageError, match="no grouped product in int8"):
        quantize(build(TINY_MOE, "cpu", torch.bfloat16), "int8")


@pytest.mark.parametrize("mapped", [True, False])
def test_shards_give_the_model_back(tmp_path: Path, mapped: bool) -> None:
    model = build(TINY, "cpu", torch.float32)
    size = shards.write(model, 10000.0, tmp_path)
    assert size == sum(file.stat().st_size for file in tmp_path.glob("*.bf16"))
    again, base = shards.read(tmp_path, mapped)
    assert base == 10000.0
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor.to(torch.bfloat16)), name
    with pytest.raises(MissingPath, match=r"index\.json is not there"):
        shards.read(tmp_path / "none", mapped)


def test_rows_of_pairs_come_back_as_halves() -> None:
    heads, size, inputs = 3, 8, 5
    halves = torch.arange(heads * size * inputs).view(heads * size, inputs)
    # as llama.cpp stores them: row 2i of a head is row i of its first half, row 2i + 1 that of its second
    pairs = halves.view(heads, 2, size // 2, inputs).transpose(1, 2).reshape(heads * size, inputs)
    assert torch.equal(_halves(pairs, heads), halves)


def test_merges_are_applied_in_their_order() -> None:
    letters = _byte_letters()
    assert len(set(letters.values())) == 256
    space = letters[32]
    names = [*letters.values(), "ab", space + "c", "abab"]
    tokens = Tokens({name: i for i, name in enumerate(names)}, {("a", "b"): 0, (space, "c"): 1, ("ab", "ab"): 2})
    assert tokens.encode("abab c") == [258, 257]
    assert tokens.encode("ba") == [names.index("b"), names.index("a")]
    assert tokens.encode("é") == [names.index(letters[byte]) for byte in "é".encode()]
