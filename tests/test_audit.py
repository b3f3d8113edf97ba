"""Verdicts on claims: the published examples, true and false pairs of every kind, and no special cases."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamometer.decisions import claimtext
from dynamometer.decisions.audit import Audited, audit
from dynamometer.decisions.claim import Claim, parse_csv, read_csv
from dynamometer.errors import MissingPath, UsageError
from dynamometer.hardware import formats, gpu, roofline, source

ROOT = Path(__file__).parent.parent
CLAIMS = ROOT / "examples" / "claims.csv"

# by hand: the bound that each breaks, or none
VERDICTS = {
    "possible": "c01 c02 c03 c04 c05 c06 c08 c16 c23 c24 c25 c30 c33 c36 c37 c38 c41 c45 c46 c47 c48 c50",
    "implausible": "c21 c29",
    "impossible": "c07 c11 c12 c13 c14 c15 c20 c26 c27 c28 c31 c32 c39 c44",
    "inconsistent": "c09 c10 c18 c19 c22 c34 c35 c40 c42 c43 c49",
    "not_checkable": "c17",
}


def one(**fields: object) -> Audited:
    claim = Claim(id="x", metric="", value=None)
    value = fields.get("value")
    printed = {"printed": f"{value:g}"} if isinstance(value, (int, float)) else {}
    return audit([msgspec.structs.replace(claim, **{**printed, **fields})])[0]


def said(text: str) -> str:
    return str(audit([claimtext.parse(text)])[0].verdict)


def test_the_example_claims_get_the_verdicts_worked_out_by_hand() -> None:
    found = {row.id: str(row.verdict) for row in audit(read_csv(CLAIMS))}
    wanted = {name: verdict for verdict, names in VERDICTS.items() for name in names.split()}
    assert found == wanted


def test_no_verdict_depends_on_an_id_or_a_place() -> None:
    claims = read_csv(CLAIMS)
    renamed = [msgspec.structs.replace(claim, id=f"z{i}", where="") for i, claim in enumerate(claims)]
    assert [row.verdict for row in audit(renamed)] == [row.verdict for row in audit(claims)]
    code = "".join(path.read_text() for path in (ROOT / "src/dynamometer/decisions").glob("*.py"))
    assert not re.search(r"[\"']c\d\d[\"']", code)


def test_every_verdict_but_not_checkable_shows_its_arithmetic_and_its_source() -> None:
    for row in audit(read_csv(CLAIMS)):
        assert re.search(r"\d", row.arithmetic) or row.verdict == "not_checkable" or "built of" in row.arithmetic
        assert row.source or row.verdict == "not_checkable"
        if row.verdict in ("impossible", "inconsistent"):
            assert row.remedy or row.source


def test_the_docs_show_the_verdicts_that_the_audit_gives() -> None:
    page = (ROOT / "docs" / "audit.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| (c\d\d) \| ([a-z_]+) \|", page, re.M))
    assert rows == {row.id: str(row.verdict) for row in audit(read_csv(CLAIMS))}


TRUE_AND_FALSE = [
    ({"metric": "weights_memory", "model": "llama-3.1-70b", "precision": "bf16", "unit": "GB"}, 141, 40, "impossible"),
    ({"metric": "weights_memory", "model": "mixtral-8x7b", "precision": "bf16", "unit": "GiB"}, 87, 25.8, "impossible"),
    ({"metric": "weights_memory", "model": "falcon-40b", "precision": "fp16", "unit": "GB"}, 80, 20, "impossible"),
    (
        {"metric": "kv_cache_memory", "model": "llama-3.1-8b", "batch": 4, "input_tokens": 8192, "unit": "GB"},
        4.3,
        0.5,
        "impossible",
    ),
    ({"metric": "kv_bytes_per_token", "model": "deepseek-v3", "unit": "B"}, 70272, 4997120, "inconsistent"),
    (
        {
            "metric": "decode_rate",
            "model": "llama-3.1-8b",
            "hardware": "RTX 4090",
            "precision": "fp16",
            "batch": 1,
            "unit": "tokens/s",
        },
        52,
        90,
        "impossible",
    ),
    (
        {
            "metric": "latency_per_token",
            "model": "llama-2-13b",
            "hardware": "A100",
            "precision": "fp16",
            "batch": 1,
            "unit": "ms",
        },
        20,
        5,
        "impossible",
    ),
    (
        {
            "metric": "ttft",
            "model": "qwen3-32b",
            "hardware": "H100",
            "precision": "bf16",
            "input_tokens": 4096,
            "unit": "ms",
        },
        500,
        30,
        "impossible",
    ),
    (
        {
            "metric": "latency",
            "model": "llama-3.1-8b",
            "hardware": "H100",
            "precision": "fp16",
            "batch": 1,
            "input_tokens": 1024,
            "output_tokens": 128,
            "unit": "ms",
        },
        900,
        300,
        "impossible",
    ),
    (
        {"metric": "throughput", "model": "llama-3.1-8b", "hardware": "H100", "precision": "bf16", "unit": "tokens/s"},
        12000,
        90000,
        "impossible",
    ),
    ({"metric": "memory_bandwidth", "hardware": "MI300X", "unit": "TB/s"}, 5.3, 8, "impossible"),
    ({"metric": "memory_bandwidth", "hardware": "H100-SXM", "unit": "GB/s"}, 3350, 2000, "inconsistent"),
    (
        {"metric": "peak_compute", "hardware": "H100", "precision": "fp16", "unit": "TFLOPS", "kind": "spec"},
        989,
        1979,
        "inconsistent",
    ),
    (
        {"metric": "peak_compute", "hardware": "L40S", "precision": "fp8", "unit": "TFLOPS", "kind": "spec"},
        733,
        1200,
        "impossible",
    ),
    ({"metric": "memory_capacity", "hardware": "H200", "unit": "GB"}, 141, 192, "impossible"),
    ({"metric": "tdp_w", "hardware": "RTX 4090", "unit": "W"}, 450, 900, "impossible"),
    (
        {"metric": "link_bandwidth", "hardware": "PCIe-4.0-x16", "unit": "GB/s", "kind": "spec"},
        31.5,
        12,
        "inconsistent",
    ),
    (
        {"metric": "link_bandwidth", "hardware": "NVLink-4", "unit": "GB/s", "context": "one direction"},
        450,
        900,
        "inconsistent",
    ),
    (
        {
            "metric": "energy_per_token",
            "model": "llama-3.1-8b",
            "hardware": "H100",
            "precision": "fp16",
            "batch": 1,
            "unit": "J",
        },
        3,
        0.05,
        "impossible",
    ),
    ({"metric": "active_parameters", "model": "qwen3-30b-a3b", "unit": "billion"}, 3.3, 30, "impossible"),
    ({"metric": "layers", "model": "llama-3.1-70b"}, 80, 64, "inconsistent"),
    (
        {"metric": "fits", "model": "llama-3.1-70b", "hardware": "2xH100", "precision": "fp8", "unit": "bool"},
        1,
        0,
        "inconsistent",
    ),
    (
        {
            "metric": "kv_share",
            "model": "llama-2-7b",
            "precision": "fp16",
            "batch": 8,
            "input_tokens": 4096,
            "unit": "percent",
        },
        50,
        90,
        "impossible",
    ),
    ({"metric": "speedup", "unit": "ratio", "context": "from 200 ms to 80 ms"}, 2.5, 4, "inconsistent"),
    ({"metric": "latency_reduction", "unit": "percent", "context": "from 200 ms to 80 ms"}, 60, 40, "inconsistent"),
    ({"metric": "cost_saving", "unit": "percent", "context": "from $10 to $4"}, 60, 50, "inconsistent"),
    ({"metric": "accuracy_drop", "unit": "points", "context": "84.2 to 79.6"}, 4.6, 2.1, "inconsistent"),
    ({"metric": "objective", "context": "3*4+1"}, 13, 10, "inconsistent"),
    ({"metric": "latency", "unit": "ms", "batch": 16, "context": "latency = 20 + 5*batch"}, 100, 80, "inconsistent"),
    (
        {"metric": "pcie_bandwidth", "hardware": "L40S", "unit": "GB/s", "context": "50% of a theoretical 32 GB/s"},
        16,
        12,
        "inconsistent",
    ),
    ({"metric": "gpu_utilization", "unit": "percent"}, None, 130, "impossible"),
    (
        {"metric": "cost_per_million_tokens", "unit": "USD", "context": "at $2/h per GPU and 1000 tokens/s"},
        0.556,
        0.1,
        "inconsistent",
    ),
]


@pytest.mark.parametrize(("fields", "right", "wrong", "verdict"), TRUE_AND_FALSE, ids=lambda v: str(v)[:60])
def test_the_true_figure_passes_and_the_false_one_does_not(
    fields: dict[str, object], right: float | None, wrong: float, verdict: str
) -> None:
    if right is not None:
        assert one(**fields, value=right).verdict == "possible", one(**fields, value=right).arithmetic
    assert one(**fields, value=wrong).verdict == verdict, one(**fields, value=wrong).arithmetic


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("DeepSeek-V3 fits in 24 GB in fp16", "impossible"),
        ("DeepSeek-R1 in FP16 runs on eight 80 GB H100 cards", "impossible"),
        ("DeepSeek-R1 FP8 runs on 8x H200", "possible"),
        ("Llama-3-8B in fp16 decodes 198.7 tokens/s single stream on an A100 80GB", "impossible"),
        ("Llama 3.1 70B int4 fits on an RTX 4090", "impossible"),
        ("Llama-3.1-8B int4 fits on an RTX 4090", "possible"),
        ("Mixtral 8x7B needs 25.8 GB in bf16", "impossible"),
        ("Mixtral-8x7B activates 12.9B parameters per token", "possible"),
        ("L40S delivers 1.32 PFLOPS INT8", "impossible"),
        ("H100 SXM has 3.35 TB/s memory bandwidth", "possible"),
        ("H100 reaches 1979 TFLOPS in fp16", "inconsistent"),
        ("PCIe 5.0 x16 gives 32 GB/s in one direction", "inconsistent"),
        ("Llama-2-7B on an A10 in fp16 uses 0.001 J/token", "impossible"),
        ("y = 1182*x/(22.3+x) at x = 16 gives 521", "inconsistent"),
        ("y = 1182*x/(22.3+x) at x = 16 gives 493.8", "possible"),
        ("Latency fell from 187.3 ms to 92.1 ms, a 2.03x speedup", "possible"),
        ("Throughput rose from 100 to 150 tokens/s, a 75% gain", "inconsistent"),
        ("Qwen2.5-7B needs 57344 bytes per token of KV cache", "possible"),
        ("DeepSeek-V3 uses sliding window attention", "inconsistent"),
        ("DeepSeek-V3 uses multi-head latent attention (MLA)", "possible"),
        ("Llama-3.1-70B bf16 throughput 50000 tokens/s on 2x H100", "impossible"),
        ("the moon is made of cheese", "not_checkable"),
    ],
)
def test_a_sentence_is_judged_like_a_row(text: str, verdict: str) -> None:
    assert said(text) == verdict


def test_drafted_tokens_may_pass_the_floor_of_single_steps() -> None:
    fields = {"metric": "decode_rate", "model": "llama-3-8b", "hardware": "A100", "precision": "fp16", "batch": 1}
    plain = one(**fields, value=198.7, unit="tokens/s")
    drafted = one(**fields, value=198.7, unit="tokens/s", context="with speculative decoding")
    assert (plain.verdict, drafted.verdict) == ("impossible", "implausible")


def test_a_formula_is_inherited_only_by_a_row_that_refers_to_it() -> None:
    first = Claim(
        "a",
        "throughput",
        216.2,
        "216.2",
        "tokens/s",
        batch=32,
        input_tokens=128,
        context="by 12500/(1+0.0043*batch^0.82*seq^1.37)",
    )
    again = msgspec.structs.replace(
        first, id="b", batch=64, input_tokens=256, context="by the same formula", printed="11310", value=11310.0
    )
    other = msgspec.structs.replace(again, id="c", context="measured")
    assert [row.verdict for row in audit([first, again, other])] == ["possible", "inconsistent", "not_checkable"]


@settings(max_examples=50, deadline=None)
@given(
    name=st.sampled_from(["llama-3.1-8b", "qwen2.5-7b", "mixtral-8x7b", "gemma-2-27b"]),
    device=st.sampled_from(["a100-sxm", "h100-sxm", "h200", "mi300x"]),
    share=st.floats(0.05, 3.0),
)
def test_a_speed_is_impossible_exactly_beyond_the_floor(name: str, device: str, share: float) -> None:
    model, found = source.load(name), gpu.load(device)
    if (formats.weights_bytes(model, "fp16") or 0) > found.memory_bytes.high:
        return
    floor = roofline.decode_floor(model, found.bandwidth.high, found.rates["bf16"].high, [1], "fp16").seconds
    rate = share / floor
    verdict = one(
        metric="decode_rate", model=name, hardware=device, precision="fp16", batch=1, value=rate, unit="tokens/s"
    ).verdict
    assert (verdict == "impossible") == (share > 1.02)


def test_a_file_without_the_needed_columns_or_rows_says_which() -> None:
    with pytest.raises(UsageError, match="metric"):
        parse_csv("a,b\n1,2\n", "f.csv")
    with pytest.raises(UsageError, match="no claims"):
        parse_csv("id,metric,value\n", "f.csv")
    with pytest.raises(MissingPath):
        read_csv(Path("nowhere.csv"))
    with pytest.raises(UsageError, match=r"row 1.*batch"):
        parse_csv("id,metric,value,batch\nx,fits,1,many\n", "f.csv")


def test_semicolons_tabs_quotes_blanks_and_sentences_in_a_file_are_read() -> None:
    assert parse_csv("id;metric;value\nx;fits;1\n", "f")[0].metric == "fits"
    assert parse_csv("id\tmetric\tvalue\nx\tKV share\t12\n", "f")[0].metric == "kv_share"
    rows = parse_csv('claim\n"DeepSeek-V3 fits in 24 GB in fp16"\n\nthe moon\n', "f")
    assert [str(row.verdict) for row in audit(rows)] == ["impossible", "not_checkable"]


@settings(max_examples=150, deadline=None)
@given(text=st.text(max_size=120).filter(lambda t: t.strip()))
def test_no_sentence_breaks_the_reader(text: str) -> None:
    audit([claimtext.parse(text)])


@settings(max_examples=100, deadline=None)
@given(
    metric=st.sampled_from(
        ["weights_memory", "decode_rate", "fits", "peak_compute", "speedup", "energy_per_token", "x"]
    ),
    value=st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False)),
    unit=st.sampled_from(["GB", "tokens/s", "J", "", "percent", "TFLOPS", "bananas"]),
    model=st.sampled_from(["", "llama-3.1-8b", "unknown-7b", "deepseek-v4"]),
    hardware=st.sampled_from(["", "H100", "cpu", "PCIe-5.0-x16", "0xH100"]),
)
def test_no_row_breaks_the_rules(metric: str, value: float | None, unit: str, model: str, hardware: str) -> None:
    one(metric=metric, value=value, unit=unit, model=model, hardware=hardware, batch=1)


@pytest.mark.parametrize(
    ("sentence", "verdict"),
    [
        ("KV cache takes 30%, weights 60%, buffers 20% of memory", "inconsistent"),
        ("KV cache is 30%, weights 60% and buffers 10% of memory", "possible"),
        ("H100 PCIe has 3.35 TB/s memory bandwidth", "impossible"),
        ("H100 PCIe has 2 TB/s memory bandwidth", "possible"),
        ("Llama-2-7B int4 on one A100 generates a token in 0.2 ms at batch 1", "impossible"),
        ("Llama-3-8B bf16 on H100 decodes one token every 6 ms at batch 1", "possible"),
    ],
)
def test_shares_bandwidths_and_times_in_plain_words(sentence: str, verdict: str) -> None:
    (found,) = audit([claimtext.parse(sentence)])
    assert found.verdict == verdict, found.arithmetic
