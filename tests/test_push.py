"""A load with --otlp in; spans at a collector on loopback, the same as those that are exported from the record, out."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from dynamometer.cli.export import command as export
from dynamometer.errors import UsageError
from dynamometer.record.live_page import traced_live, traces_url

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

import slow_engine
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from slow_engine import Asked


@contextmanager
def collector(status: int = 200) -> Iterator[tuple[str, list[ExportTraceServiceRequest]]]:
    """Takes OTLP over HTTP as a collector does."""
    got: list[ExportTraceServiceRequest] = []

    class Traces(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.path == "/v1/traces" and status == 200:
                got.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Traces)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", got
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def spans(got: list[ExportTraceServiceRequest]) -> list[Span]:
    return [span for one in got for part in one.resource_spans for scope in part.scope_spans for span in scope.spans]


def fault(number: int, random: object) -> Asked:
    return Asked(retries=number % 7 == 0)


def test_what_is_sent_while_the_load_runs_is_what_the_record_exports(tmp_path: Path) -> None:
    slow_engine.run(tmp_path / "run", fault)
    with collector() as (url, got):
        with traced_live(tmp_path / "run", url) as said:
            pass
        assert said == [f"{slow_engine.N} spans sent to {url}"]
    done = CliRunner().invoke(export, [str(tmp_path / "run"), "--format", "otlp", "-o", str(tmp_path)])
    line = json.loads(Path(done.output.strip()).read_text())
    exported = line["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert len(exported) == slow_engine.N
    pushed = {span.span_id.hex(): span for span in spans(got)}
    for one in exported:
        span = pushed[one["spanId"]]
        assert span.trace_id.hex() == one["traceId"]
        assert span.name == one["name"]
        assert (span.kind, span.status.code) == (one["kind"], one.get("status", {}).get("code", 0))
        assert (span.start_time_unix_nano, span.end_time_unix_nano) == (
            int(one["startTimeUnixNano"]),
            int(one["endTimeUnixNano"]),
        )
        assert {(e.name, str(e.time_unix_nano)) for e in span.events} == {
            (e["name"], e["timeUnixNano"]) for e in one["events"]
        }
        assert {a.key: shown(a.value) for a in span.attributes} == {
            a["key"]: plain(a["value"]) for a in one["attributes"]
        }


def shown(value: object) -> str:
    if value.HasField("array_value"):  # type: ignore[attr-defined]
        return str([shown(one) for one in value.array_value.values])  # type: ignore[attr-defined]
    which = value.WhichOneof("value")  # type: ignore[attr-defined]
    return str(getattr(value, which))


def plain(value: dict[str, object]) -> str:
    ((kind, held),) = value.items()
    if kind == "arrayValue":
        return str([plain(one) for one in held["values"]])  # type: ignore[index]
    return str(held)


def test_spans_that_a_collector_refuses_are_counted_and_cost_the_run_nothing(tmp_path: Path) -> None:
    slow_engine.run(tmp_path, fault)
    with collector(400) as (url, _), traced_live(tmp_path, url) as said:
        pass
    assert said == [f"0 spans sent to {url}; it did not take {slow_engine.N}"]


def test_the_collectors_address_is_a_base_url_or_a_whole_one() -> None:
    assert traces_url("http://h:4318/") == "http://h:4318/v1/traces"
    assert traces_url("https://h/otel/v1/traces") == "https://h/otel/v1/traces"
    with pytest.raises(UsageError, match="--otlp"):
        traces_url("h:4318")
