"""A run directory in, one row an answered request out, with the times of its tokens: what a step-time fit reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dynamometer.errors import RecordError
from dynamometer.record.store import open_run
from dynamometer.types import Float64

_QUERY = """
with first as (
  select request, min(at_ns) filter (kind = 'sent') as sent, min(at_ns) filter (kind = 'chunk') as first,
    max(at_ns) filter (kind = 'chunk') as last, max(at_ns) filter (kind = 'done') as done,
    count(*) filter (kind = 'chunk') as chunks,
    max(n) filter (kind = 'usage' and note = 'prompt') as prompt,
    max(n) filter (kind = 'usage' and note = 'output') as output,
    max(n) filter (kind = 'usage' and note = 'cached') as cached
  from events group by request)
select f.sent / 1e9, f.first / 1e9, f.last / 1e9, coalesce(f.prompt, r.input_tokens), coalesce(f.output, f.chunks),
  coalesce(f.cached, 0), f.chunks, case r.phase when 'load' then 1 else 0 end, f.request
from first f join requests r using (request)
where f.done is not null and f.chunks > 0 order by f.sent
"""
COLUMNS = ("sent_s", "first_s", "last_s", "prompt", "output", "cached", "chunks", "load")


def answer_columns(directory: Path) -> dict[str, Float64]:
    """Columns of the answered requests, warm-up included (`load` 0), in order of sending; and all `token_s` with their
    `owner`."""
    connection = open_run(directory)
    found = connection.execute(_QUERY).fetchnumpy()
    table = [np.ma.filled(np.ma.asarray(column, dtype=np.float64), 0.0) for column in found.values()]
    if not table or not len(table[0]):
        raise RecordError(f"{directory} has no answered request; nothing can be fitted to it")
    columns = dict(zip(COLUMNS, table, strict=False))
    tokens = connection.execute(
        "select request, at_ns / 1e9 from events where kind = 'chunk' order by request, at_ns"
    ).fetchnumpy()
    owner, at_s = (np.asarray(column, dtype=np.float64) for column in tokens.values())
    place = {int(request): i for i, request in enumerate(table[8])}
    keep = np.isin(owner, table[8])
    columns["owner"] = np.array([place[int(request)] for request in owner[keep]], dtype=np.float64)
    columns["token_s"] = at_s[keep]
    return columns
