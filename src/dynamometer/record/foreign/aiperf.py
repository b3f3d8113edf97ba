"""AIPerf's profile_export.jsonl in, its requests out; or its profile_export_aiperf.json, its figures only.

Source: the record model of AIPerf 0.13. A record has the time of the first token and, when streamed, each gap.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate

from dynamometer.record.foreign.taken import Imported, Taken, listed, number, table, whole
from dynamometer.types import Load

TOOL = "aiperf"
BETWEEN = "the file holds the first token and the end of an answer only: inter-token figures are each answer's mean"
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}


def mine(content: object) -> bool:
    records = listed(content)
    if records:
        return "request_start_ns" in table(table(records[0]).get("metadata"))
    found = table(content)
    return "request_start_ns" in table(found.get("metadata")) or (
        "input_config" in found and "request_latency" in found
    )


def read(content: object) -> list[Imported]:
    if isinstance(content, dict) and "input_config" in content:
        return [_figures_only(content)]
    records = [table(one) for one in (listed(content) or [content])]
    timed = [one for one in records if table(one.get("metadata")).get("benchmark_phase", "profiling") == "profiling"]
    requests = tuple(_request(one) for one in timed)
    began = min((one.sent_s for one in requests), default=0.0)
    load = Load("closed", _most_in_flight(requests))
    between = () if all(len(one.chunks_s) > 2 or one.error for one in requests) else (BETWEEN,)
    notes = (*between, "how the load was asked for is not in the file: shown is the most that was in flight")
    return [Imported(TOOL, "", "", "", load, round(began * 1e9), requests, {}, notes)]


def _request(one: Mapping[str, object]) -> Taken:
    told, metrics = table(one["metadata"]), table(one.get("metrics"))
    begin_s, end_ns = float(whole(told["request_start_ns"]) or 0) * 1e-9, whole(told.get("request_end_ns"))
    took_s = _seconds(metrics.get("request_latency"))
    end_s = begin_s + took_s if took_s is not None else (end_ns or 0) * 1e-9
    first_s = _seconds(metrics.get("time_to_first_token"))
    chunks = _chunks(begin_s, first_s, end_s, metrics)
    error = table(one.get("error"))
    words = str(error.get("message") or error.get("type") or "failed") if error else ""
    credit = whole(told.get("credit_issued_ns"))
    return Taken(
        begin_s, max(end_s, begin_s), () if words else chunks,
        None if credit is None else credit * 1e-9,
        _count(metrics, "usage_prompt_tokens", "input_sequence_length"),
        _count(metrics, "usage_completion_tokens", "output_sequence_length"),
        error=f"imported: {words.splitlines()[0]}" if words else "",
        cancelled=bool(told.get("was_cancelled")), session=str(told.get("conversation_id") or ""),
        turn=whole(told.get("turn_index")) or 0,
    )  # fmt: skip


def _chunks(begin_s: float, first_s: float | None, end_s: float, metrics: Mapping[str, object]) -> tuple[float, ...]:
    """When text came: each chunk where the gaps are in the file, else the first and the end."""
    if first_s is None:
        return ()
    gaps = listed(_value(metrics.get("inter_chunk_latency")))
    scale = _SECONDS.get(str(table(metrics.get("inter_chunk_latency")).get("unit") or "ms"), 1e-3)
    if gaps:
        return tuple(accumulate([begin_s + first_s, *((number(gap) or 0.0) * scale for gap in gaps)]))
    return tuple(dict.fromkeys((begin_s + first_s, end_s)))


def _count(metrics: Mapping[str, object], *names: str) -> int | None:
    """The server's count before the tool's own."""
    return next((found for name in names if (found := whole(_value(metrics.get(name)))) is not None), None)


def _value(metric: object) -> object:
    return table(metric).get("value")


def _seconds(metric: object) -> float | None:
    value, unit = number(_value(metric)), str(table(metric).get("unit") or "ms")
    if unit not in _SECONDS:
        raise ValueError(f"a time has the unit {unit!r}")
    return None if value is None else value * _SECONDS[unit]


def _most_in_flight(requests: tuple[Taken, ...]) -> int:
    steps = sorted([(one.sent_s, 1) for one in requests] + [(one.end_s, -1) for one in requests])
    most = now = 0
    for _, step in steps:
        now += step
        most = max(most, now)
    return max(most, 1)


def _figures_only(found: dict[str, object]) -> Imported:
    config = table(found["input_config"])
    phase = next((table(one) for one in listed(config.get("phases"))), {})
    figures = {}
    for name, value in found.items():
        held = table(value)
        for statistic in ("avg", "p50", "p90", "p95", "p99"):
            figure = number(held.get(statistic))
            if figure is not None:
                figures[f"{name} {'mean' if statistic == 'avg' else statistic} ({held.get('unit')})"] = figure
    models = listed(table(config.get("models")).get("items"))
    urls = listed(table(config.get("endpoint")).get("urls"))
    rate, streams = number(phase.get("rate")), whole(phase.get("concurrency"))
    return Imported(
        TOOL, str(found.get("aiperf_version") or ""), str(table(models[0]).get("name") or "") if models else "",
        str(urls[0]) if urls else "",
        Load("poisson", 0, rate) if rate else Load("closed", streams or 1), 0, (), figures,
        ("figures only: the requests are in profile_export.jsonl beside this file",),
    )  # fmt: skip
