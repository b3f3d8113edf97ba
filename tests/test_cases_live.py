"""Streams that broke other clients, sent over a real socket at their times, in; the rows of `dyno bench` out.

What each row must say is tested on the record (test_dialects.py); here the whole way gives the same rows and times.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from loopback import LAST, STREAM, Exchange, chunk, serving
from wire_run import MS, answers, reads_of, record

from dynamometer.cli import main

CASES = {
    case["id"]: case
    for case in map(json.loads, (Path(__file__).parent / "cases" / "dialects.jsonl").read_text().splitlines())
    if isinstance(case["input"], dict) and "reads" in case["input"] and case["input"].get("status", 200) == 200
}
SAME = ("outcome", "reason", "finish", "output_tokens", "prompt_tokens", "output_tokens_source", "chunks", "text_bytes")
LATE_MS = 40.0  # of a server and a client that share a busy machine


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_case_over_the_wire_gives_the_rows_of_its_record(name: str, tmp_path: Path) -> None:
    given = CASES[name]["input"]
    reads, end_ms = reads_of(given["reads"])
    api = str(given["api"]).split()[0]

    async def replay(exchange: Exchange) -> None:
        if "/models" in exchange.head or exchange.head.startswith("GET"):
            await exchange.send(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
            return
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        await exchange.send(STREAM)
        for at_ms, data in reads:
            await asyncio.sleep(max(0.0, begun_s + at_ms / 1e3 - loop.time()))
            await exchange.send(chunk(data))
        await asyncio.sleep(max(0.0, begun_s + end_ms / 1e3 - loop.time()))
        await exchange.send(LAST)

    load = ("--requests", "1", "--warmup", "0", "-c", "1", "--no-sense-check", "-q", "--output-tokens", "64")
    with serving(replay) as served, pytest.raises(SystemExit):
        main(["bench", "--url", served.url, "--api", api, "--model", "m", "--out", str(tmp_path / "live"), *load])
    (live,) = answers(tmp_path / "live")
    (known,) = answers(record(tmp_path / "known", {name: given["reads"]}, api))
    assert {key: live[key] for key in SAME} == {key: known[key] for key in SAME}
    for key in ("first_ns", "first_content_ns", "last_ns"):
        if known[key] is None:
            assert live[key] is None
        else:
            apart_ms = ((live[key] - live["sent_ns"]) - (known[key] - known["sent_ns"])) / MS  # type: ignore[operator]
            assert -1 <= apart_ms <= LATE_MS
