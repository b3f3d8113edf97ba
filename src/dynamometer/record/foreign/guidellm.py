"""GuideLLM's benchmarks.json in, one import a benchmark out: first and last token of each request, not those between.

Source: report format 2 of GuideLLM 0.8, and format 1 of versions before, which had the same request fields.
"""

from __future__ import annotations

from collections.abc import Mapping

from dynamometer.record.foreign.taken import Imported, Taken, listed, number, table, whole
from dynamometer.types import Load

TOOL = "guidellm"
BETWEEN = "the file holds the first and the last token of an answer only: inter-token figures are each answer's mean"


def mine(content: object) -> bool:
    found = table(content)
    return isinstance(found.get("benchmarks"), list) and "guidellm_version" in table(found.get("metadata"))


def read(content: object) -> list[Imported]:
    found = table(content)
    version = str(table(found.get("metadata")).get("guidellm_version") or "")
    backend = table(table(table(found.get("config")).get("spec")).get("backend"))
    return [_one(table(part), version, backend) for part in listed(found["benchmarks"])]


def _one(part: Mapping[str, object], version: str, backend: Mapping[str, object]) -> Imported:
    groups = table(part.get("requests"))
    requests = [
        taken
        for group in ("successful", "errored", "incomplete")
        for one in listed(groups.get(group))
        if (taken := _request(table(one), group)) is not None
    ]
    strategy = table(table(part.get("config")).get("strategy"))
    streams = whole(strategy.get("streams")) or whole(strategy.get("max_concurrency"))
    rate = number(strategy.get("rate"))
    kind = str(strategy.get("kind") or strategy.get("type_") or "")
    open_law = "poisson" if "poisson" in kind else "constant"
    load = Load(open_law, 0, rate) if rate else Load("closed", streams or 1)
    began = number(part.get("start_time"))
    notes = (BETWEEN,) if requests else ("figures only: the file holds no request",)
    return Imported(
        TOOL, version, str(backend.get("model") or ""), str(backend.get("target") or ""), load,
        round((began or 0.0) * 1e9), tuple(requests), _figures(table(part.get("metrics"))), notes,
    )  # fmt: skip


def _request(one: Mapping[str, object], group: str) -> Taken | None:
    info = table(one.get("info"))
    times = table(info.get("timings"))
    sent, end = number(times.get("request_start")), number(times.get("request_end"))
    if sent is None or end is None:
        return None  # it was never sent
    first, last = number(times.get("first_token_iteration")), number(times.get("last_token_iteration"))
    chunks = tuple(dict.fromkeys(at for at in (first, last) if at is not None))
    error = str(info.get("error") or "failed").splitlines()[-1] if group == "errored" else ""
    return Taken(
        sent, end, chunks, number(times.get("targeted_start")), whole(one.get("prompt_tokens")),
        whole(one.get("output_tokens")), whole(one.get("cached_tokens")),
        error=f"imported: {error}" if error else "", cancelled=group == "incomplete",
        session=str(info.get("conversation_id") or ""), turn=whole(info.get("turn_index")) or 0,
    )  # fmt: skip


def _figures(metrics: Mapping[str, object]) -> dict[str, float]:
    found = {}
    for name, value in metrics.items():
        group = table(value)
        good = table(group.get("successful")) or group
        for statistic, held in (
            ("mean", good),
            ("p50", table(good.get("percentiles"))),
            ("p99", table(good.get("percentiles"))),
        ):
            figure = number(held.get(statistic))
            if figure is not None:
                found[f"{name} {statistic}"] = figure
    return found
