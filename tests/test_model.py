"""From a config to parameters, cache and state: published counts, public faults, and laws that hold for every model."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamometer.errors import DynoError, UsageError
from dynamometer.hardware import source
from dynamometer.hardware.config import from_config
from dynamometer.hardware.memory import Deployment, breakdown, judge
from dynamometer.hardware.model import (
    Model,
    attention_flops,
    check_tp,
    decode_flops,
    kv_bytes,
    kv_bytes_per_token,
    matmul_active,
    parameters_active,
    parameters_total,
    prefill_flops,
    state_bytes,
)

CASES = Path(__file__).parent / "cases"
# counted by the architectures' reference implementations, whose weights were laid out without memory and added up
ARCHITECTURES = [json.loads(line) for line in (CASES / "architectures.jsonl").read_text().splitlines()]
# configs as their makers wrote them, with every old name of a field, and the counts that the makers publish
PUBLISHED = [json.loads(line) for line in (CASES / "published.jsonl").read_text().splitlines()]
BUILT_IN = sorted(source.built_ins())


def config(**fields: object) -> Model:
    return from_config(fields)


def dense(**fields: object) -> Model:
    """A small Llama-like model with the given changes."""
    base = {
        "model_type": "llama",
        "num_hidden_layers": 4,
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "vocab_size": 1000,
        "torch_dtype": "bfloat16",
    }
    return from_config(base | fields)


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_built_in_has_exactly_the_parameters_that_its_maker_publishes(name: str) -> None:
    assert parameters_total(source.load(name)) == source.built_ins()[name].published


@pytest.mark.parametrize("row", ARCHITECTURES, ids=lambda row: row["name"])
def test_the_count_is_that_of_the_architectures_reference_implementation(row: dict[str, object]) -> None:
    table = row["config"]
    assert isinstance(table, dict)
    assert parameters_total(from_config(table)) == int(str(row["parameters"])) + int(str(row["buffers"]))


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: row["name"])
def test_a_config_as_its_maker_wrote_it_gives_the_published_count(row: dict[str, object]) -> None:
    table = row["config"]
    assert isinstance(table, dict)
    assert parameters_total(from_config(table)) == row["parameters"]


ODD = [None, 0, -1, 1, 2, "x", [], [1], {}, {"a": 1}, 1.5, True, 10**12, "float16", ["full_attention"]]


@settings(max_examples=400, deadline=None)
@given(
    row=st.sampled_from([*ARCHITECTURES, *PUBLISHED]),
    changes=st.lists(st.tuples(st.integers(0, 30), st.sampled_from(ODD), st.booleans()), min_size=1, max_size=4),
)
def test_a_config_with_odd_values_gives_numbers_or_one_clear_error(
    row: dict[str, dict[str, object]], changes: list[tuple[int, object, bool]]
) -> None:
    table = dict(row["config"])
    for at, value, drop in changes:
        key = list(table)[at % len(table)] if table else "x"
        table[key] = value
        if drop:
            del table[key]
    with suppress(DynoError):  # anything else is a fault
        model = from_config(table)
        d = Deployment(memory_bytes=8e10, weights="q4_k_m")
        judge(model, d, breakdown(model, d))
        decode_flops(model, [10])
        prefill_flops(model, 10)


def test_a_dense_layer_adds_up_by_hand() -> None:
    model = dense()
    attention = 64 * 64 + 2 * 64 * 16 + 64 * 64
    layer = attention + 3 * 64 * 160 + 2 * 64
    assert parameters_total(model) == 2 * 1000 * 64 + 4 * layer + 64
    assert parameters_active(model) == parameters_total(model)
    assert matmul_active(model) == 4 * (attention + 3 * 64 * 160) + 1000 * 64


def test_a_tied_head_is_one_table_but_still_multiplies() -> None:
    tied, untied = dense(tie_word_embeddings=True), dense(tie_word_embeddings=False)
    assert (parameters_total(untied) or 0) - (parameters_total(tied) or 0) == 1000 * 64
    assert matmul_active(tied) == matmul_active(untied)


def test_the_stated_head_size_wins_over_hidden_size_by_heads() -> None:
    """C01: derived from hidden size it would be 37.5 % low for q and 25 % high for m; null means derived."""
    common = {"num_attention_heads": 32, "num_key_value_heads": 8, "torch_dtype": "bfloat16"}
    q = config(num_hidden_layers=36, hidden_size=2560, head_dim=128, **common)
    m = config(num_hidden_layers=40, hidden_size=5120, head_dim=128, **common)
    o = config(num_hidden_layers=32, hidden_size=4096, head_dim=None, **common)
    assert [kv_bytes_per_token(model) for model in (q, m, o)] == [147456, 163840, 131072]


def test_kv_heads_default_to_all_heads_and_multi_query_has_one() -> None:
    """C02: with query heads grouped-query models come out four times too big."""
    gqa = config(num_hidden_layers=32, hidden_size=4096, num_attention_heads=32, num_key_value_heads=8)
    mha = config(num_hidden_layers=32, hidden_size=4096, num_attention_heads=32)
    mqa = config(n_layer=32, hidden_size=4544, num_attention_heads=71, multi_query=True)
    assert [kv_bytes(m, 8192) / 2**30 for m in (gqa, mha, mqa)] == [1.0, 4.0, 0.0625]
    assert kv_bytes_per_token(mqa) == 2 * 32 * 1 * 64 * 2


MLA = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "num_nextn_predict_layers": 1,
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
}


def test_latent_attention_keeps_one_latent_a_token_on_every_rank() -> None:
    """C03: not doubled for K and V, not without the rope part, not divided by tensor parallelism."""
    model = from_config(MLA)
    assert kv_bytes_per_token(model) == 61 * (512 + 64) * 2 == 70272
    assert kv_bytes(model, 131072) == 9210691584
    assert kv_bytes_per_token(model, tp=8) == 70272
    assert kv_bytes_per_token(model, expanded=True) == 61 * 128 * (192 + 128) * 2 == 4997120


def test_interleaved_windows_are_charged_their_window_and_never_left_out() -> None:
    """C05: at full context the sliding layers would be 2 times too big, at one token half would be missing."""
    kinds = ["sliding_attention", "full_attention"] * 18
    model = config(
        model_type="gpt_oss",
        num_hidden_layers=36,
        num_attention_heads=64,
        num_key_value_heads=8,
        head_dim=64,
        hidden_size=2880,
        sliding_window=128,
        layer_types=kinds,
    )
    assert [kv_bytes(model, n) for n in (1, 128, 131072)] == [73728, 9437184, 4836556800]
    assert kv_bytes(model, 131072, windowed=False) == 9663676416


def test_hybrid_models_cache_in_attention_layers_only() -> None:
    """C07: charged on every layer they come out 4 to 7 times too big."""
    linear = config(
        num_hidden_layers=48, full_attention_interval=4, num_attention_heads=16, num_key_value_heads=2, head_dim=256
    )
    pattern = config(
        num_hidden_layers=20, hybrid_override_pattern="MEMEM*EMEMEM*EMEMEM*", num_key_value_heads=2, head_dim=128
    )
    assert kv_bytes_per_token(linear) == 24576
    assert kv_bytes_per_token(pattern) == 3072
    assert pattern.recurrent_layers == 9
    assert any("9 mamba2" in note for note in pattern.notes)


def test_the_language_part_of_a_multimodal_config_is_found_however_deep() -> None:
    """C09: the top level's 24 layers belong to something else."""
    text = {"num_hidden_layers": 28, "hidden_size": 3584, "num_attention_heads": 28, "num_key_value_heads": 4}
    one = config(
        model_type="v",
        num_hidden_layers=24,
        hidden_size=1024,
        text_config=text,
        vision_config={"num_hidden_layers": 24, "hidden_size": 1024},
    )
    two = config(thinker_config={"text_config": text, "audio_config": {"num_hidden_layers": 32}})
    assert kv_bytes_per_token(one) == kv_bytes_per_token(two) == 57344


def test_a_config_without_layers_and_heads_gives_an_error_and_no_number() -> None:
    """C09: no result from made-up defaults such as 32 layers."""
    with pytest.raises(UsageError, match="num_hidden_layers, num_attention_heads"):
        from_config({"model_type": "z", "hidden_size": 4096})


def test_a_missing_field_leaves_the_count_open_but_not_the_cache() -> None:
    model = config(num_hidden_layers=2, hidden_size=64, num_attention_heads=4)
    assert parameters_total(model) is None
    assert "vocab_size" in model.missing
    assert kv_bytes_per_token(model) == 2 * 2 * 64 * 2


def test_all_experts_are_in_memory_and_two_compute() -> None:
    """C11: active parameters are for FLOPs and bandwidth, never for memory."""
    model = source.load("mixtral-8x7b")
    assert parameters_total(model) == 46702792704
    assert parameters_active(model) == 12879925248


def test_kv_heads_are_replicated_beyond_their_number_and_odd_splits_refused() -> None:
    """C15: fractional heads would make the cache of 8 ranks half of what it is."""
    model = config(num_hidden_layers=48, num_key_value_heads=4, head_dim=128, num_attention_heads=32)
    assert [kv_bytes_per_token(model, tp=n) for n in (1, 2, 4, 8)] == [98304, 49152, 24576, 24576]
    with pytest.raises(UsageError, match="32 attention heads leave 4 over"):
        check_tp(model, 7)
    for n in (1, 2, 4, 8):
        check_tp(model, n)


def test_state_does_not_grow_with_the_context() -> None:
    model = source.resolve("qwen3-8b")
    assert state_bytes(model) == 0
    hybrid = next(from_config(row["config"]) for row in ARCHITECTURES if row["name"] == "qwen3_next")
    conv = (2 * 16 * 128 + 32 * 128) * 3 * 2
    assert state_bytes(hybrid) == 36 * (conv + 32 * 128 * 128 * 2)


def test_prefill_flops_are_two_a_weight_and_token_plus_causal_attention() -> None:
    model, n = dense(), 100
    pairs = n * (n + 1) / 2
    attention = 4 * 2 * 8 * (8 + 8) * pairs
    head = 2 * 1000 * 64
    assert prefill_flops(model, n) == 2 * (matmul_active(model) - 64000) * n + head + attention
    assert attention_flops(model, n) == attention


def test_decode_flops_of_a_window_stop_growing_at_the_window() -> None:
    model = dense(model_type="mistral", sliding_window=50)
    assert decode_flops(model, [50]) == decode_flops(model, [5000])
    assert decode_flops(model, [49]) < decode_flops(model, [50])


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(BUILT_IN), context=st.integers(1, 200_000), more=st.integers(1, 5000))
def test_a_longer_context_never_takes_less(name: str, context: int, more: int) -> None:
    model = source.load(name)
    assert kv_bytes(model, context) <= kv_bytes(model, context + more)
    assert kv_bytes(model, context) <= kv_bytes(model, context, windowed=False)


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(BUILT_IN), tokens=st.integers(2, 4000), cut=st.integers(1, 3999))
def test_a_prefill_in_two_chunks_attends_to_as_much_as_in_one(name: str, tokens: int, cut: int) -> None:
    cut = min(cut, tokens - 1)
    model = source.load(name)
    head = 2.0 * (matmul_active(model) - matmul_active(model, head=False))
    chunked = prefill_flops(model, cut) + prefill_flops(model, tokens - cut, cached=cut) - head
    assert chunked == pytest.approx(prefill_flops(model, tokens), rel=1e-9)


@pytest.mark.parametrize("bad", [[], "text", None, 3])
def test_what_is_no_object_is_refused(bad: object) -> None:
    with pytest.raises(UsageError):
        from_config(bad)  # type: ignore[arg-type]


def test_a_type_that_is_not_known_is_said_to_be_a_guess() -> None:
    assert any("'brand_new'" in note for note in dense(model_type="brand_new").notes)


def test_dbrx_keeps_its_heads_and_experts_in_tables_of_their_own() -> None:
    model = config(
        model_type="dbrx",
        d_model=6144,
        n_heads=48,
        n_layers=40,
        vocab_size=100352,
        attn_config={"kv_n_heads": 8},
        ffn_config={"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
    )
    assert parameters_total(model) == 131_596_523_520
    assert kv_bytes_per_token(model) == 2 * 40 * 8 * 128 * 2


@pytest.mark.parametrize("kind", ["t5", "whisper", "bert"])
def test_what_does_not_decode_alone_is_refused(kind: str) -> None:
    with pytest.raises(UsageError, match="encoder"):
        dense(model_type=kind)
