"""An open-loop run with an objective in, a trial of the rate search out: how many of its requests met all limits."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np

from dynamometer.decisions.account import conclude
from dynamometer.decisions.gate import text
from dynamometer.errors import UsageError
from dynamometer.metrics import views
from dynamometer.metrics.intervals import effective_n
from dynamometer.models.search import Trial
from dynamometer.record.store import open_run, read_run
from dynamometer.types import Objective

SHARES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
CLIENT = frozenset({"late-client", "rate-not-reached", "negative-time"})  # fatal doubts that the engine is no cause of


class Tried(msgspec.Struct, frozen=True):
    """`spoilt`: why the run says nothing of the engine."""

    run: str
    trial: Trial
    spoilt: str = ""


def attainment_of(slo: Sequence[Objective]) -> float:
    """The share of requests that the objective asks for: ttft_p99 < 500 ms is 99 % of them below 500 ms.

    A search judges request by request, so every limit must be one on a request's own time and all on the same share.
    """
    for one in slo:
        if one.metric not in views.LIMITS or one.op not in ("<", "<="):
            wanted = ", ".join(f"{name}_p99<…" for name in sorted(views.LIMITS))
            raise UsageError(
                f"objective {text(one)!r} is no limit on a request's own time; a rate search takes {wanted}"
            )
        if one.statistic not in SHARES:
            raise UsageError(
                f"objective {text(one)!r} is no share of the requests; give a percentile such as {one.metric}_p99, "
                "or say --attainment 0.99"
            )
    shares = {SHARES[one.statistic] for one in slo}
    if len(shares) > 1:
        raise UsageError(
            "the objective names several percentiles; a rate search counts requests that meet all limits at once: "
            "name one percentile, or say --attainment 0.99"
        )
    return shares.pop()


def read_trial(directory: Path) -> Tried:
    """Counts over the whole load, without a cut for a steady state: a queue that grows is what is looked for. A request
    that was still unanswered at the end of the grace time counts as a miss."""
    run = read_run(directory)
    with closing(open_run(directory)) as connection:
        account = conclude(connection, run, run.experiment.slo, steady=False)
        good = views.columns_of(connection, "select coalesce(good, false)::int as good from goodput")["good"]
        late = views.rows(
            connection,
            "select count(*) as n from answers where phase = 'load' and outcome in ('cancelled', 'not sent')",
        )[0]["n"]
    unanswered = int(late) if isinstance(late, int) else 0
    series = np.concatenate([good, np.zeros(unanswered)])
    effect = len(series) / effective_n(series) if len(series) else 1.0
    trial = Trial(run.experiment.load.rate, int(series.sum()), max(1, len(series)), max(1.0, effect))
    fatal = [doubt.message for doubt in account.summary.doubts if doubt.fatal and doubt.kind in CLIENT]
    return Tried(run.id, trial, fatal[0] if fatal else "")
