"""A run's rows in, OpenTelemetry spans by the GenAI semantic conventions out: OTLP as JSON, many spans a line.

Made after the run, from the record: a span costs the load nothing. Source: OTLP 1.x JSON mapping (ids in hex, 64-bit
numbers as text) and the GenAI conventions for client spans; what they have no name for is named `dyno.…`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256
from urllib.parse import urlsplit

import duckdb

from dynamometer import __version__
from dynamometer.metrics import views
from dynamometer.types import Run

SPANS = 1000  # of one line: collectors refuse requests of many MB
CLIENT, ERROR = 3, 2  # SpanKind and StatusCode
Json = dict[str, object]


def spans(connection: duckdb.DuckDBPyConnection, run: Run) -> Iterator[Json]:
    """One export request a line; `connection` has the views of `metrics.views.install`. Unsent requests are none."""
    query = "select * from answers where sent_ns is not null order by sent_ns, request"
    made = [_span(run, row) for row in views.rows(connection, query)]
    resource = {"attributes": _attributes(service(run))}
    scope = {"name": "dynamometer", "version": __version__}
    for at in range(0, len(made), SPANS):
        part = {"scope": scope, "spans": made[at : at + SPANS]}
        yield {"resourceSpans": [{"resource": resource, "scopeSpans": [part]}]}


def service(run: Run) -> Mapping[str, object]:
    """The resource that a run's spans belong to."""
    return {"service.name": "dyno", "dyno.run.id": run.id, "dyno.driver": run.driver.value}


def _span(run: Run, row: Mapping[str, object]) -> Json:
    """From the first byte sent to the end of the answer."""
    trace, own = ids(run, row)
    found: Json = {
        "traceId": f"{trace:032x}",
        "spanId": f"{own:016x}",
        "name": name(run),
        "kind": CLIENT,
        "startTimeUnixNano": _at(run, row["sent_ns"]),
        "endTimeUnixNano": _at(run, row["ended_ns"]),
        "attributes": _attributes(facts(run, row)),
        "events": [
            {"timeUnixNano": _at(run, row[f"{which}_ns"]), "name": f"dyno.{which}_token"}
            for which in ("first", "last")
            if row[f"{which}_ns"] is not None
        ],
    }
    if row["outcome"] != "ok":
        found["status"] = {"code": ERROR, "message": str(row["error"] or row["outcome"])[:300]}
    return found


def ids(run: Run, row: Mapping[str, object]) -> tuple[int, int]:
    """Trace and span of a request: the same however often they are made."""
    key = sha256(f"{run.id} {row['request']}".encode()).hexdigest()
    return int(key[:32], 16), int(key[32:48], 16)


def name(run: Run) -> str:
    """Of every span: operation and model."""
    return f"{_operation(run)} {run.experiment.target.model}".strip()


def _operation(run: Run) -> str:
    return "text_completion" if "completions" in run.experiment.target.api else "chat"


def facts(run: Run, row: Mapping[str, object]) -> Mapping[str, object]:
    """A span's attributes; what is not known is None."""
    target = run.experiment.target
    at = urlsplit(target.url)
    return {
        "gen_ai.operation.name": _operation(run),
        "gen_ai.provider.name": str(run.engine.get("engine") or target.api.split(".")[0]),
        "gen_ai.request.model": target.model or None,
        "gen_ai.request.max_tokens": row["asked_tokens"] or None,
        "gen_ai.usage.input_tokens": row["prompt_tokens"],
        "gen_ai.usage.output_tokens": row["output_tokens"],
        "gen_ai.response.finish_reasons": [row["finish"]] if row["finish"] else None,
        "gen_ai.conversation.id": row["session"] or None,
        "server.address": at.hostname,
        "server.port": at.port,
        "error.type": row["reason"] if row["outcome"] != "ok" else None,
        "dyno.request": row["request"],
        "dyno.phase": row["phase"],
        "dyno.family": row["family"] or None,
    }


def _attributes(facts: Mapping[str, object]) -> list[Json]:
    """Unknown values are left out."""
    return [{"key": key, "value": _value(value)} for key, value in facts.items() if value is not None]


def _value(value: object) -> Json:
    if isinstance(value, list):
        return {"arrayValue": {"values": [_value(one) for one in value]}}
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"stringValue": str(value)}


def _at(run: Run, at_ns: object) -> str:
    return str(run.origin_wall_ns + int(str(at_ns)))
