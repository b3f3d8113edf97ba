"""What fits where: budgets by hand, vLLM's own start-up figures, limits, and laws."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamometer.errors import UsageError
from dynamometer.hardware import choose, paging, source
from dynamometer.hardware.config import from_config
from dynamometer.hardware.memory import Deployment, breakdown, concurrency_max, judge, sequence_bytes
from dynamometer.hardware.model import Model
from dynamometer.hardware.reserve import ENGINES, engine
from dynamometer.units import GIB

H100 = 79.18 * GIB  # what a process sees
H200 = 139.8 * GIB


def small(**fields: object) -> Model:
    """28 layers of 4 KV heads of 128: 57,344 bytes a token."""
    return from_config(
        {
            "model_type": "qwen2",
            "num_hidden_layers": 28,
            "hidden_size": 3584,
            "intermediate_size": 18944,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "vocab_size": 152064,
            "max_position_embeddings": 32768,
        }
        | fields
    )


def placed(**fields: object) -> Deployment:
    base = Deployment(
        context=4096,
        weights_bytes=round(5.2 * GIB),
        activation_bytes=round(1.42 * GIB),
        runtime_bytes=round(0.03 * GIB),
        memory_bytes=8.0 * GIB,
        engine=msgspec.structs.replace(ENGINES["vllm"], block=1),
    )
    return msgspec.structs.replace(base, **fields)


def test_weights_below_the_memory_do_not_mean_that_it_fits() -> None:
    """C13: 8.00 × 0.70 − 5.20 − 1.42 − 0.03 = −1.05 GiB: it does not start, and holds 0 tokens."""
    model, d = small(), placed(utilization=0.7)
    b = breakdown(model, d)
    v = judge(model, d, b)
    assert b.room / GIB == pytest.approx(-1.05, abs=1e-6)
    assert (v.fits, v.starts, v.tokens, v.blocks, v.concurrency_max, v.context_max) == (False, False, 0, 0, 0, 0)
    assert "does not start" in v.why
    assert v.utilization_min == pytest.approx(0.859, abs=0.0005)


def test_a_larger_share_makes_room_for_so_many_tokens() -> None:
    """C13: at 0.90 there are 0.55 GiB, 10,298 tokens, 2.51 requests of 4,096."""
    model, d = small(), placed(utilization=0.9)
    b = breakdown(model, d)
    v = judge(model, d, b)
    assert b.room / GIB == pytest.approx(0.55, abs=1e-6)
    assert v.tokens == 10298
    assert v.concurrency_max == 2
    assert v.fits


# GiB on each GPU that vLLM 0.11 printed at start-up on H100 80 GB (llm-d-planner's table, Apache-2.0): cache that was
# left
PROFILES = [
    ("llama-3.1-8b", {}, 51.38),
    ("qwen3-32b", {}, 4.45),
    ("qwen3-32b", {"tp": 2}, 34.49),
    ("llama-3.3-70b", {"tp": 2, "weights": "fp8"}, 32.00),
    ("gpt-oss-20b", {}, 50.28),
    ("gpt-oss-120b", {"utilization": 0.95}, 3.33),
    ("mistral-small-24b", {"utilization": 0.95}, 28.20),
    ("qwen3-0.6b", {}, 64.45),
]


@pytest.mark.parametrize(("name", "changes", "measured_gib"), PROFILES)
def test_the_room_for_cache_is_what_vllm_found_within_five_percent(
    name: str, changes: dict[str, object], measured_gib: float
) -> None:
    profile = ENGINES["vllm-0.11"]
    if name.startswith("mistral"):  # its table entry was started with fewer sequences
        profile = msgspec.structs.replace(profile, sequences=256)
    d = msgspec.structs.replace(Deployment(memory_bytes=H100, engine=profile), **changes)
    b = breakdown(source.load(name), d)
    assert b.room / GIB == pytest.approx(measured_gib, rel=0.05)


# vLLM 0.26 on one H200, measured here: (model, share of memory, most tokens in a pass, tokens its cache held)
MEASURED = [
    ("llama-3.1-8b", 0.92, 8192, 919_824),
    ("llama-3.1-8b", 0.90, 16384, 891_392),
    ("deepseek-v2-lite", 0.90, 16384, 3_266_304),
]


@pytest.mark.parametrize(("name", "share", "batched", "tokens"), MEASURED)
def test_the_caches_tokens_are_what_vllm_counted_on_an_h200_within_five_percent(
    name: str, share: float, batched: int, tokens: int
) -> None:
    profile = msgspec.structs.replace(ENGINES["vllm"], batched_tokens=batched)
    d = Deployment(memory_bytes=H200, utilization=share, engine=profile)
    model = source.load(name)
    v = judge(model, d, breakdown(model, d))
    assert v.tokens == pytest.approx(tokens, rel=0.05)


def test_the_weights_on_the_gpu_are_what_vllm_loaded() -> None:
    assert (breakdown(source.load("llama-3.1-8b"), Deployment()).weights or 0) / GIB == pytest.approx(15.004, rel=0.005)
    assert (breakdown(source.load("deepseek-v2-lite"), Deployment()).weights or 0) / GIB == pytest.approx(
        29.32, rel=0.005
    )


def test_the_memory_flag_is_a_share_of_what_the_engine_says() -> None:
    model = source.load("llama-3.1-8b")
    rooms = {}
    for name in ("vllm", "tensorrt-llm", "sglang"):
        profile = msgspec.structs.replace(engine(name), utilization=0.9)
        d = Deployment(memory_bytes=H100, engine=profile, activation_bytes=GIB, runtime_bytes=0)
        rooms[name] = breakdown(model, d).room
    weights = breakdown(model, Deployment()).weights or 0
    assert rooms["vllm"] == pytest.approx(0.9 * H100 - weights - GIB)
    assert rooms["tensorrt-llm"] == pytest.approx(0.9 * (H100 - weights - GIB))
    assert rooms["sglang"] == pytest.approx(0.9 * H100 - weights)


def test_a_model_of_671_billion_does_not_fit_eight_cards_of_80_gib_at_sixteen_bits() -> None:
    model = source.load("deepseek-r1")
    d = Deployment(tp=8, weights="fp16", memory_bytes=H100)
    assert judge(model, d, breakdown(model, d)).fits is False
    wide = msgspec.structs.replace(d, weights="fp8", memory_bytes=H200)
    assert judge(model, wide, breakdown(model, wide)).fits is True


def test_capacity_is_what_is_left_after_each_sequences_state() -> None:
    """C07: capacity = (budget − sequences × state) / bytes a token."""
    model = from_config(
        {
            "num_hidden_layers": 20,
            "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*",
            "num_key_value_heads": 2,
            "head_dim": 128,
        }
    )
    d = Deployment(context=1000, state_bytes_per_layer=2**20, engine=engine("llama.cpp"))
    b = breakdown(model, d)
    assert b.state_per_sequence == 9 * 2**20
    assert b.kv == 3072 * 1000
    room = msgspec.structs.replace(b, room=10.0 * (9 * 2**20 + 3072 * 1000) + 5)
    assert concurrency_max(model, d, room) == 10


def test_a_state_that_nobody_gave_is_unknown_and_not_zero() -> None:
    model = from_config(
        {"num_hidden_layers": 48, "full_attention_interval": 4, "num_attention_heads": 16, "head_dim": 256}
    )
    assert breakdown(model, Deployment()).state_per_sequence is None


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"context": 0}, "context"),
        ({"concurrency": 0}, "concurrency"),
        ({"utilization": 1.2}, "utilization"),
        ({"pp": 99}, "pipeline"),
        ({"tp": 3}, "split"),
        ({"kv": "q3"}, "KV cache format"),
    ],
)
def test_a_deployment_that_cannot_be_is_refused_by_name(fields: dict[str, object], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        breakdown(small(), msgspec.structs.replace(Deployment(), **fields))


SOME = ("llama-3.1-8b", "mixtral-8x7b", "deepseek-v2-lite", "gemma-3-27b", "gpt-oss-20b", "qwen3-30b-a3b")


@settings(max_examples=80, deadline=None)
@given(
    name=st.sampled_from(SOME),
    context=st.integers(1, 60_000),
    concurrency=st.integers(1, 64),
    more=st.integers(1, 5000),
    gib=st.floats(20, 200),
)
def test_more_context_concurrency_or_bits_never_needs_less(
    name: str, context: int, concurrency: int, more: int, gib: float
) -> None:
    model = source.load(name)
    d = Deployment(context=context, concurrency=concurrency, memory_bytes=gib * GIB)
    b = breakdown(model, d)
    assert breakdown(model, msgspec.structs.replace(d, context=context + more)).kv >= b.kv
    assert breakdown(model, msgspec.structs.replace(d, concurrency=concurrency + more)).kv >= b.kv
    assert breakdown(model, msgspec.structs.replace(d, kv="fp8")).kv <= b.kv
    assert (breakdown(model, msgspec.structs.replace(d, weights="int4")).weights or 0) <= (
        breakdown(model, msgspec.structs.replace(d, weights="bf16")).weights or 0
    )
    assert breakdown(model, msgspec.structs.replace(d, memory_bytes=(gib + 1) * GIB)).room >= b.room


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(SOME), concurrency=st.integers(1, 40), gib=st.floats(10, 200), context=st.integers(1, 40_000)
)
def test_what_is_said_to_fit_does_and_one_more_does_not(name: str, concurrency: int, gib: float, context: int) -> None:
    model = source.load(name)
    d = Deployment(context=context, concurrency=concurrency, memory_bytes=gib * GIB)
    b = breakdown(model, d)
    v = judge(model, d, b)
    if v.concurrency_max:
        assert (
            sequence_bytes(model, d) * v.concurrency_max <= b.room < sequence_bytes(model, d) * (v.concurrency_max + 1)
        )
    if 0 < v.context_max < model.context_max:
        assert sequence_bytes(model, d, v.context_max) * concurrency <= b.room
        assert sequence_bytes(model, d, v.context_max + 1) * concurrency > b.room
    assert v.fits == (v.concurrency_max >= concurrency)
    assert v.tokens == v.blocks * 16


def test_paging_holds_as_many_more_as_sequences_are_shorter_than_their_limit() -> None:
    per_token, room = 131072.0, 40 * GIB
    c = paging.compare(room, per_token, 32768, 8192)
    assert c.contiguous == 10
    assert c.paged == 40
    assert c.fragmentation == 0
    assert c.waste == 0.75


def test_the_last_block_is_all_that_paging_wastes() -> None:
    c = paging.compare(GIB, 1000.0, 4096, 1001, block=16)
    assert c.fragmentation == pytest.approx((1008 - 1001) / 1008)
    assert [paging.compare(GIB, 1000.0, 4096, 1001, block=n).fragmentation for n in (1, 1001)] == [0, 0]
    assert paging.expected_fragmentation(1000, 16) == pytest.approx(7.5 / 1007.5)


def test_four_against_eighteen_at_32k_holds_for_expanded_keys_and_short_answers_only() -> None:
    """DeepSeek-V2-Lite on one 80 GB A100: with full keys and values 4 contiguous slots of 32,768 fit, as a report says;
    18 paged ones do so only at a mean of 7,282 tokens, and the latent cache holds 38 whole ones either way."""
    model = source.load("deepseek-v2-lite")
    d = Deployment(context=32768, memory_bytes=80 * GIB * 0.985, utilization=0.9)
    b = breakdown(model, d)
    expanded = 27 * 16 * (192 + 128) * 2
    assert paging.compare(b.room, expanded, 32768, 32768).contiguous == 4
    assert paging.compare(b.room, expanded, 32768, 32768).paged == 4
    assert paging.length_that_gives(18 / 4, 32768) == pytest.approx(7281.8, abs=0.1)
    assert judge(model, d, b).concurrency_max >= 36


def test_the_cheapest_device_fits_and_no_priced_one_that_fits_is_cheaper() -> None:
    model, d = source.load("llama-3.1-70b"), Deployment(context=8192, concurrency=4)
    found = choose.choices(model, d)
    prices = [choice.usd_h.low for choice in found if choice.usd_h]
    assert prices == sorted(prices)
    assert all(choice.room_bytes >= 0 for choice in found)
    assert {"h100-sxm", "mi300x"} <= {choice.device.name for choice in found}
    assert "rtx-4090" not in {choice.device.name for choice in found if choice.count < 8}
