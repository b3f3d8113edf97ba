"""How far it is from a request to the socket: a budget, so that layers do not grow in between."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from hops import Hop, Hops, trace
from loopback import Exchange, answer, closed, drive, experiment, request, serving

from dynamometer.types import Load

FIRST_BYTE: Hop = ("client/wire.py", "Connection.send")
MOST_FUNCTIONS, MOST_FILES, MOST_BEFORE = 20, 11, 60


async def reply(exchange: Exchange) -> None:
    await exchange.send(answer("a", "b"))


def traced(load: Load, directory: Path) -> Callable[[int], Hops]:
    def of(requests: int) -> Hops:
        folder = directory / str(requests)
        folder.mkdir()
        with serving(reply) as served:
            at = experiment(served.url, load, requests=requests)
            return trace(lambda: drive(at, map(request, itertools.count()), folder), until=FIRST_BYTE)

    return of


@pytest.mark.parametrize("load", [closed(2), Load("constant", rate=100)], ids=["closed", "open"])
def test_a_request_passes_at_most_20_functions_in_11_files_on_its_way(load: Load, tmp_path: Path) -> None:
    of = traced(load, tmp_path)
    few, many = of(20), of(40)
    path = many.per_request(few, 20) - {hop for hop in many.calls if hop[1].startswith("read_frames")}
    listing = "\n".join(f"{file} {name}" for file, name in sorted(path))
    assert FIRST_BYTE in path
    assert len(path) <= MOST_FUNCTIONS, listing
    assert len({file for file, _ in path}) <= MOST_FILES, listing


@pytest.mark.parametrize("load", [closed(2), Load("constant", rate=100)], ids=["closed", "open"])
def test_the_first_byte_leaves_after_at_most_60_functions(load: Load, tmp_path: Path) -> None:
    before = traced(load, tmp_path)(5).before
    assert before
    assert len(before) <= MOST_BEFORE, "\n".join(map(str, sorted(before)))
