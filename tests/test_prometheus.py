"""An engine's /metrics page: read right, under one name over versions, and never a 0 for what is not there."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from math import inf, isnan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamometer.errors import UsageError
from dynamometer.pages import names, window
from dynamometer.pages.exposition import Series, buckets_of, histogram_quantile, parse
from dynamometer.telemetry.prometheus import Prometheus

# case G04
OLD = (
    'vllm:gpu_cache_usage_perc{model_name="m"} 0.42\n'
    'vllm:time_per_output_token_seconds_sum{model_name="m"} 50\n'
    'vllm:time_per_output_token_seconds_count{model_name="m"} 1000\n'
)
NEW = (
    'vllm:kv_cache_usage_perc{model_name="m",engine="0"} 0.42\n'
    'vllm:inter_token_latency_seconds_sum{model_name="m",engine="0"} 50\n'
    'vllm:inter_token_latency_seconds_count{model_name="m",engine="0"} 1000\n'
    'vllm:prefix_cache_queries_total{model_name="m",engine="0"} 500\n'
    'vllm:prefix_cache_hits_total{model_name="m",engine="0"} 200\n'
)


@contextmanager
def page(texts: list[tuple[int, str]]) -> Iterator[str]:
    """A server that gives the texts one after the other, the last for ever; the URL of its page."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, text = texts.pop(0) if len(texts) > 1 else texts[0]
            self.send_response(status)
            self.send_header("content-length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *arguments: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/metrics"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("text", [OLD, NEW, OLD + NEW, NEW + OLD])
def test_old_and_new_names_give_the_same_figures_and_both_are_not_counted_twice(text: str) -> None:
    after = window.state(names.readings(parse(text)))
    told = window.figures({}, after)
    assert told["kv_cache_usage_ratio"].value == 0.42
    assert told["server_itl_s_mean"].value == pytest.approx(0.050)
    assert told["server_itl_s_mean"].n == 1000
    if "prefix" in text:
        assert told["prefix_hit_ratio"].value == pytest.approx(0.40)
    else:
        assert "prefix_hit_ratio" not in told


def test_figures_are_of_the_window_and_not_since_the_engine_began() -> None:
    before = window.state(names.readings(parse(NEW)))
    later = NEW.replace('_sum{model_name="m",engine="0"} 50', '_sum{model_name="m",engine="0"} 51').replace(
        " 1000", " 1010"
    )
    later = later.replace(" 500", " 600").replace(" 200", " 290")
    told = window.figures(before, window.state(names.readings(parse(later))))
    assert told["server_itl_s_mean"].value == pytest.approx(1 / 10)
    assert told["prefix_hit_ratio"].value == pytest.approx(90 / 100)


def test_a_restart_within_the_window_gives_no_figure_rather_than_a_negative_one() -> None:
    after = window.state(names.readings(parse(NEW)))
    before = {key: value * 2 for key, value in after.items()}
    told = window.figures(before, after)
    assert told["server_itl_s_mean"].value is None
    assert "restarted" in told["server_itl_s_mean"].method


def test_an_unknown_version_lists_what_is_missing_instead_of_zeros() -> None:
    series = parse('vllm:num_requests_running{engine="0"} 3\nvllm:brand_new_thing 7\n')
    assert [(r.name, r.value) for r in names.readings(series)] == [("requests_running", 3.0)]
    missing = names.absent(series)
    assert {"kv_cache_usage_ratio", "prefix_cache_hits_total", "server_ttft_s", "server_itl_s"} <= set(missing)
    assert "requests_running" not in missing
    assert "slots_busy_mean" not in missing  # llama.cpp's, not expected of vLLM


def test_replicas_are_added_and_cache_use_is_the_fullest() -> None:
    text = "".join(
        f'vllm:num_requests_running{{engine="{i}"}} {n}\nvllm:kv_cache_usage_perc{{engine="{i}"}} {use}\n'
        for i, (n, use) in enumerate([(3, 0.2), (4, 0.9)])
    )
    told = {one.name: one.value for one in names.readings(parse(text))}
    assert told == {"requests_running": 7.0, "kv_cache_usage_ratio": 0.9}


def test_llama_cpp_counts_uncached_tokens_so_lookups_are_a_sum() -> None:
    text = "llamacpp:prompt_tokens_total 300\nllamacpp:prompt_tokens_cached_total 100\n"
    told = window.figures({}, window.state(names.readings(parse(text))))
    assert told["prefix_hit_ratio"].value == pytest.approx(0.25)


def test_dcgm_units_become_ours_one_row_a_gpu() -> None:
    text = (
        'DCGM_FI_DEV_GPU_UTIL{gpu="0"} 97\nDCGM_FI_DEV_GPU_UTIL{gpu="1"} 3\n'
        'DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="0"} 5000\nDCGM_FI_DEV_FB_USED{gpu="0"} 2\n'
    )
    told = {(one.name, one.device): one.value for one in names.readings(parse(text))}
    assert told["gpu_utilization_ratio", "0"] == pytest.approx(0.97)
    assert told["gpu_utilization_ratio", "1"] == pytest.approx(0.03)
    assert told["gpu_energy_j", "0"] == pytest.approx(5.0)
    assert told["gpu_memory_used_bytes", "0"] == 2 * 1024**2


# case G01
@pytest.mark.parametrize(
    ("buckets", "reason"),
    [
        ({0.1: 0, 0.5: 0, inf: 0}, "nothing was observed"),
        ({0.1: 10, 0.5: 20}, r"no \+Inf bucket"),
        ({inf: 20}, r"only the \+Inf bucket"),
        ({}, "no buckets"),
        ({0.1: float("nan"), inf: float("nan")}, "nothing was observed"),
    ],
)
def test_a_histogram_that_cannot_tell_gives_a_reason_and_no_zero(buckets: dict[float, float], reason: str) -> None:
    told = histogram_quantile(buckets, 0.99)
    assert told.value is None
    assert re.search(reason, told.method)


def test_a_quantile_is_linear_in_its_bucket() -> None:
    told = histogram_quantile({0.1: 10, 0.5: 20, inf: 20}, 0.99)
    assert told.value == pytest.approx(0.1 + 0.4 * (19.8 - 10) / 10)  # 0.492 s
    assert (told.low, told.high) == (0.1, 0.5)
    assert told.n == 20


def test_a_quantile_above_the_last_bound_is_only_a_lower_bound() -> None:
    told = histogram_quantile({0.1: 1, inf: 100}, 0.99)
    assert (told.value, told.low, told.high) == (0.1, 0.1, None)


def test_grouping_that_lost_le_is_an_error_that_says_so() -> None:
    with pytest.raises(UsageError, match="sum by"):
        buckets_of([Series("x_bucket", {}, 12.0)], "x")


def test_bounds_are_numbers_not_texts() -> None:
    series = [
        Series("x_bucket", {"le": le}, n) for le, n in (("0.1", 1), ("0.10", 2), ("1", 3), ("1.0", 4), ("+Inf", 9))
    ]
    assert buckets_of(series, "x") == {0.1: 3, 1.0: 7, inf: 9}


@given(st.lists(st.floats(0.001, 9.9), min_size=1, max_size=200), st.floats(0.01, 0.99))
def test_the_true_quantile_lies_in_the_bucket_named(values: list[float], q: float) -> None:
    bounds = [0.01, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, inf]
    told = histogram_quantile({bound: sum(v <= bound for v in values) for bound in bounds}, q)
    rank = q * len(values)
    at_rank = next(v for i, v in enumerate(sorted(values), 1) if i >= rank)
    assert told.low is not None
    assert told.high is not None
    assert told.low < at_rank <= told.high


def test_every_way_of_writing_a_line_is_read() -> None:
    text = (
        "# HELP x some help\n# TYPE x counter\n"
        'x{a="1",b="two words",} 1.5 1700000000000\n'
        'x{path="C:\\\\dir\\n",quote="say \\"hi\\"",brace="}"} +Inf\n'
        'y NaN\nz{} 3\n\nbroken{a=\n  \nw 1e3 # {trace="x"} 1\n'
    )
    series = parse(text)
    assert series[0] == Series("x", {"a": "1", "b": "two words"}, 1.5)
    assert series[1].labels == {"path": "C:\\dir\n", "quote": 'say "hi"', "brace": "}"}
    assert series[1].value == inf
    assert isnan(series[2].value)
    assert (series[3].name, series[3].labels, series[3].value) == ("z", {}, 3.0)
    assert series[4].value == 1000


label = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=8)


@given(st.dictionaries(st.sampled_from(["a", "b", "model_name"]), label, max_size=3), st.floats(allow_nan=False))
def test_the_parser_agrees_with_the_official_one(labels: dict[str, str], value: float) -> None:
    client = pytest.importorskip("prometheus_client")
    from prometheus_client.parser import text_string_to_metric_families

    registry = client.CollectorRegistry()
    gauge = client.Gauge("dyno_test", "help", list(labels), registry=registry)
    (gauge.labels(**labels) if labels else gauge).set(value)
    text = client.generate_latest(registry).decode()
    official = [(s.name, s.labels, s.value) for f in text_string_to_metric_families(text) for s in f.samples]
    assert [(s.name, dict(s.labels), s.value) for s in parse(text)] == official


@given(st.text(max_size=200))
def test_no_text_makes_the_parser_fail(text: str) -> None:
    parse(text)
    parse("x{" + text)


def test_a_page_becomes_samples_and_buckets_at_rest_are_written_once() -> None:
    text = (
        "vllm:num_requests_running 1\n"
        'vllm:time_to_first_token_seconds_bucket{le="0.1"} 5\nvllm:time_to_first_token_seconds_bucket{le="+Inf"} 6\n'
        "vllm:time_to_first_token_seconds_sum 1.5\nvllm:time_to_first_token_seconds_count 6\n"
    )
    with page([(200, text)]) as url:
        sampler = Prometheus(url)
        first, second = sampler.read(1), sampler.read(2)
    assert {(s.name, s.device, s.value) for s in first} == {
        ("requests_running", "", 1.0),
        ("server_ttft_s_sum", "", 1.5),
        ("server_ttft_s_count", "", 6.0),
        ("server_ttft_s_bucket", "le=0.1", 5.0),
        ("server_ttft_s_bucket", "le=inf", 6.0),
    }
    assert {s.name for s in second} == {"requests_running", "server_ttft_s_sum", "server_ttft_s_count"}
    assert all(s.at_ns == 2 for s in second)
    assert any("kv_cache_usage_ratio (not on vLLM's page)" in one for one in sampler.missing)


@pytest.mark.parametrize(
    ("answer", "told"),
    [((404, "no"), "answers 404"), ((200, "# nothing\nother_metric 1\n"), "no metric of an engine known here")],
)
def test_a_page_that_says_nothing_is_named(answer: tuple[int, str], told: str) -> None:
    with page([answer]) as url:
        sampler = Prometheus(url)
        assert sampler.read(1) == []
    assert told in sampler.missing[0]


def test_an_engine_that_went_away_is_named_and_found_again() -> None:
    with page([(200, "vllm:num_requests_running 1\n")]) as url:
        sampler = Prometheus(url, timeout_s=1.0)
        assert sampler.read(1)
    assert sampler.read(2) == []
    assert "cannot be read" in sampler.missing[0]


@pytest.mark.parametrize("url", ["", "localhost:9000/metrics", "ftp://x/metrics", "http:///metrics"])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="metrics URL"):
        Prometheus(url)


def test_every_fact_has_a_unit_or_says_that_it_counts() -> None:
    ends = ("_s", "_s_total", "_total", "_ratio", "_bytes", "_w", "_j", "_mhz", "_c", "_bytes_per_s", "_mean")
    for metric in names.metrics():
        assert metric.name.endswith(ends) or metric.name.startswith("requests_"), metric.name
