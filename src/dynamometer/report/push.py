"""The wire logs of a run that is under way in, its spans sent to an OpenTelemetry collector out.

A process of its own, by OpenTelemetry's SDK; the spans are those of `report.otlp`, ids included. It ends when its
standard input closes, after the last span was sent, and prints what became of them.

    python -m dynamometer.report.push RUN URL
"""

from __future__ import annotations

import logging
import os
import select
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from dynamometer.plugins import optional
from dynamometer.record.decode import Told
from dynamometer.record.follow import EVERY_S, Requests
from dynamometer.record.manifest import read as read_run
from dynamometer.record.rows import Plan
from dynamometer.report import otlp
from dynamometer.types import EventKind, Run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.sdk.trace import ReadableSpan

_PACKAGE: Final = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
_LIMIT_S: Final = 5.0  # for one export; a collector that is down must not hold the end of a run for long
_BATCH: Final = 500


def row(told: Told, plan: Plan) -> Mapping[str, object]:
    """The columns of `answers` that a span shows, of one request."""
    facts = told.facts
    first = {fact.kind: fact.at_ns for fact in reversed(facts)}
    notes = {fact.kind: fact.note for fact in facts}
    counts = {fact.note: fact.n for fact in facts if fact.kind is EventKind.USAGE}
    chunks = [fact for fact in facts if fact.kind is EventKind.CHUNK]
    last = facts[-1]
    answered = "ok" if chunks else "empty"
    outcome = {EventKind.DONE: answered, EventKind.CANCEL: "cancelled"}.get(last.kind, "error")
    counted = sum(fact.n for fact in chunks) if chunks and all(fact.n for fact in chunks) else len(chunks)
    return {
        "request": told.request,
        "phase": plan.phase,
        "family": plan.family,
        "session": plan.session,
        "asked_tokens": plan.output_tokens,
        "prompt_tokens": counts.get("prompt"),
        "output_tokens": counts.get("output") or counted,
        "finish": notes.get(EventKind.FINISH),
        "outcome": outcome,
        "error": last.note if outcome == "error" else None,
        "reason": last.note.partition(":")[0].strip() or outcome,
        "sent_ns": first.get(EventKind.SENT),
        "first_ns": chunks[0].at_ns if chunks else None,
        "last_ns": chunks[-1].at_ns if chunks else None,
        "ended_ns": last.at_ns,
    }


class Push:
    """A tracer of one run, and what became of its spans."""

    def __init__(self, run: Run, url: str) -> None:
        optional(_PACKAGE, "otel")
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import SpanLimits, TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
        from opentelemetry.sdk.trace.id_generator import IdGenerator

        waiting: list[ReadableSpan] = []
        self._run, self._waiting = run, waiting
        self.sent = self.lost = 0
        ids = self._ids = [0, 0]

        class Given(IdGenerator):
            def generate_trace_id(self) -> int:
                return ids[0]

            def generate_span_id(self) -> int:
                return ids[1]

        class Kept(SpanExporter):
            def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
                waiting.extend(spans)
                return SpanExportResult.SUCCESS

        about = {key: str(value) for key, value in otlp.service(run).items()}
        provider = TracerProvider(
            resource=Resource.create(about), id_generator=Given(), span_limits=SpanLimits(), shutdown_on_exit=False
        )
        provider.add_span_processor(SimpleSpanProcessor(Kept()))
        self._tracer = provider.get_tracer("dynamometer")
        self._exporter = OTLPSpanExporter(endpoint=url, timeout=_LIMIT_S)
        self._fine = SpanExportResult.SUCCESS

    def add(self, row: Mapping[str, object]) -> None:
        """One request that ended; one that was never sent has no span."""
        from opentelemetry.trace import SpanKind, StatusCode

        if row["sent_ns"] is None:
            return
        self._ids[:] = otlp.ids(self._run, row)
        known = {key: value for key, value in otlp.facts(self._run, row).items() if value is not None}
        facts = cast("dict[str, str | int | list[str]]", known)
        span = self._tracer.start_span(
            otlp.name(self._run), kind=SpanKind.CLIENT, attributes=facts, start_time=self._at(row["sent_ns"])
        )
        for which in ("first", "last"):
            if row[f"{which}_ns"] is not None:
                span.add_event(f"dyno.{which}_token", timestamp=self._at(row[f"{which}_ns"]))
        if row["outcome"] != "ok":
            span.set_status(StatusCode.ERROR, str(row["error"] or row["outcome"])[:300])
        span.end(self._at(row["ended_ns"]))

    def send(self) -> None:
        """What waits, in pieces that a collector takes. What it does not take is lost, and counted."""
        while self._waiting:
            part = self._waiting[:_BATCH]
            del self._waiting[:_BATCH]
            if self._exporter.export(part) is self._fine:
                self.sent += len(part)
            else:
                self.lost += len(part)

    def _at(self, at_ns: object) -> int:
        return self._run.origin_wall_ns + int(str(at_ns))


def main() -> None:
    """Entry point of the process."""
    directory, url = Path(sys.argv[1]), sys.argv[2]
    os.nice(10)  # the load comes first
    logging.disable()  # the SDK tells of every retry; the count of what was lost says it once
    requests, push = Requests(directory), Push(read_run(directory), url)
    under_way = True
    while under_way:
        under_way = not select.select([sys.stdin], [], [], EVERY_S)[0]
        for told, plan in requests.look():
            push.add(row(told, plan))
        push.send()
    print(push.sent, push.lost)


if __name__ == "__main__":
    main()
