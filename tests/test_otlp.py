"""A run's rows in; spans that an OpenTelemetry collector takes, one a request, out."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner
from sample_run import write_sample

from dynamometer.cli.export import command
from dynamometer.record.store import open_run, read_run


def test_each_request_is_a_client_span_with_its_tokens_and_times(tmp_path: Path) -> None:
    run = write_sample(tmp_path / "run", requests=1200, tokens=8)
    done = CliRunner().invoke(command, [str(run), "--format", "otlp", "-o", str(tmp_path)], catch_exceptions=False)
    lines = [json.loads(line) for line in Path(done.output.strip()).read_text().splitlines()]
    found = [span for line in lines for span in line["resourceSpans"][0]["scopeSpans"][0]["spans"]]
    assert [len(line["resourceSpans"][0]["scopeSpans"][0]["spans"]) for line in lines] == [1000, 200]
    assert len({span["spanId"] for span in found}) == len({span["traceId"] for span in found}) == 1200
    resource = {
        one["key"]: one["value"]["stringValue"] for one in lines[0]["resourceSpans"][0]["resource"]["attributes"]
    }
    assert resource["dyno.driver"] == "simulated"
    answered = next(span for span in found if "status" not in span)
    facts = {one["key"]: one["value"] for one in answered["attributes"]}
    assert answered["kind"] == 3
    assert answered["name"] == "chat SmolLM2-135M-Instruct"
    assert facts["gen_ai.usage.input_tokens"] == {"intValue": "180"}
    assert facts["gen_ai.usage.output_tokens"] == {"intValue": "8"}
    assert facts["gen_ai.response.finish_reasons"] == {"arrayValue": {"values": [{"stringValue": "length"}]}}
    assert facts["server.port"] == {"intValue": "8080"}
    number = int(facts["dyno.request"]["intValue"])
    query = "select min(at_ns) filter (kind = 'sent'), min(at_ns) filter (kind = 'chunk') from events where request = ?"
    sent, first = open_run(run).execute(query, [number]).fetchone() or (0, 0)
    wall = read_run(run).origin_wall_ns
    assert answered["startTimeUnixNano"] == str(wall + sent)
    assert answered["events"][0] == {"timeUnixNano": str(wall + first), "name": "dyno.first_token"}


def test_a_failure_is_a_span_with_an_error_and_no_secret(tmp_path: Path) -> None:
    run = write_sample(tmp_path / "run", requests=300, tokens=4)
    done = CliRunner().invoke(command, [str(run), "--format", "otlp", "-o", str(tmp_path)], catch_exceptions=False)
    text = Path(done.output.strip()).read_text()
    (line,) = (json.loads(one) for one in text.splitlines())
    failed = [span for span in line["resourceSpans"][0]["scopeSpans"][0]["spans"] if "status" in span]
    assert failed
    assert all(span["status"]["code"] == 2 for span in failed)
    assert "server-error" in {
        one["value"].get("stringValue") for span in failed for one in span["attributes"] if one["key"] == "error.type"
    }
    assert "secret" not in text
    assert "hunter2" not in text
