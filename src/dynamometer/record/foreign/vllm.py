"""The JSON of `vllm bench serve` in, its figures and, with --save-detailed, its requests out.

Source: the file that vLLM 0.32 writes. Times of each chunk are in it; `itls` are gaps between chunks, not tokens.
"""

from __future__ import annotations

from itertools import accumulate

from dynamometer.record.foreign.taken import Imported, Taken, listed, number, table, whole
from dynamometer.types import Load

TOOL = "vllm bench serve"


def mine(content: object) -> bool:
    found = table(content)
    return "backend" in found and "request_throughput" in found and "mean_ttft_ms" in found


def read(content: object) -> list[Imported]:
    found = table(content)
    requests = tuple(_requests(found))
    notes = []
    if not requests:
        notes.append("figures only: the file was written without --save-detailed, so nothing can be computed again")
    if requests and not listed(found.get("start_times")):
        notes.append("the file has no start times: every request is placed at 0, so rates and concurrency mean nothing")
    rate, streams = number(found.get("request_rate")), whole(found.get("max_concurrency"))
    load = (
        Load("poisson", 0, rate) if rate and rate != float("inf") else Load("closed", streams or max(len(requests), 1))
    )
    figures = {
        name: value
        for name, value in ((name, number(value)) for name, value in found.items())
        if value is not None and (name.endswith(("_ms", "_throughput")) or name in ("completed", "failed", "duration"))
    }
    return [Imported(TOOL, "", str(found.get("model_id") or ""), "", load, 0, requests, figures, tuple(notes))]


def _requests(found: dict[str, object] | object) -> list[Taken]:
    parts = table(found)
    ttfts, itls = listed(parts.get("ttfts")), listed(parts.get("itls"))
    prompts, outputs = listed(parts.get("input_lens")), listed(parts.get("output_lens"))
    starts, errors = listed(parts.get("start_times")), listed(parts.get("errors"))
    latencies = listed(parts.get("latencies"))
    requests = []
    for at, ttft in enumerate(ttfts):
        begin_s = number(starts[at]) if at < len(starts) else 0.0
        first_s = number(ttft)
        if begin_s is None or first_s is None:
            raise ValueError(f"request {at} has no time of its first token")
        gaps = [number(gap) or 0.0 for gap in listed(itls[at])] if at < len(itls) else []
        error = str(errors[at]) if at < len(errors) else ""
        chunks = () if error else tuple(begin_s + since for since in accumulate([first_s, *gaps]))
        took_s = number(latencies[at]) if at < len(latencies) else None
        end_s = begin_s + took_s if took_s is not None else chunks[-1] if chunks else begin_s
        requests.append(
            Taken(begin_s, end_s, chunks, None, _at(prompts, at), _at(outputs, at),
                  error=f"imported: {error.strip().splitlines()[-1]}" if error.strip() else "")
        )  # fmt: skip
    return requests


def _at(values: list[object], at: int) -> int | None:
    return whole(values[at]) if at < len(values) else None
