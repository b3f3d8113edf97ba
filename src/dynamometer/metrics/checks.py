"""The rows of one run, its manifest and its window in; the reasons to doubt its figures out, each with one remedy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import duckdb
import msgspec
import numpy as np

from dynamometer.metrics.steady import STAYS, Steady
from dynamometer.metrics.views import columns_of
from dynamometer.types import Doubt, Float64, Run
from dynamometer.units import significant

KEPT_RATE = frozenset({"constant", "poisson", "gamma", "burst"})  # laws whose mean rate is the asked one
CACHED_ON_PURPOSE = frozenset(
    {"prefix", "session", "trace", "sharegpt", "jsonl", "csv"}
)  # workloads that repeat themselves

LITTLE_STAYS = 10  # in a shorter window the requests at its ends weigh too much
LITTLE_MISS = 0.15
MUCH_CUT = 0.25  # share of the requests


class Evidence(msgspec.Struct, frozen=True):
    """All that a check may look at. `facts`: the columns of the views facts and evidence, nan where there is none."""

    run: Run
    window: Steady
    facts: Mapping[str, float]
    due_ns: Float64
    sent_ns: Float64
    in_flight: float  # mean over the window
    turned: float  # ended in the window per second, times their mean time from sent to end
    stays: float  # length of the window in such times

    def share(self, name: str, of: str = "requests") -> float:
        """One count over another; 0 of nothing."""
        return self.facts[name] / self.facts[of] if self.facts[of] > 0 else 0.0


Check = Callable[[Evidence], Doubt | None]


def check(connection: duckdb.DuckDBPyConnection, run: Run, window: Steady) -> tuple[Doubt, ...]:
    """Needs the views, with the span set to the window."""
    evidence = gather(connection, run, window)
    if not evidence.facts["requests"] > 0:
        return (Doubt("no-requests", "no request was sent in the load", "look at the start of the run", fatal=True),)
    return tuple(doubt for one in CHECKS if (doubt := one(evidence)) is not None)


def gather(connection: duckdb.DuckDBPyConnection, run: Run, window: Steady) -> Evidence:
    facts = {
        name: float(column[0])
        for view in ("facts", "evidence")
        for name, column in columns_of(connection, f"select * from {view}").items()
    }
    times = columns_of(
        connection,
        "select due_ns, sent_ns from answers where phase = 'load' and sent_ns is not null order by sent_ns, request",
    )
    flow = columns_of(connection, "select * from flow")
    return Evidence(
        run,
        window,
        facts,
        times["due_ns"],
        times["sent_ns"],
        float(flow["in_flight"][0]),
        float(flow["turned"][0]),
        float(flow["stays"][0]),
    )


def no_answers(e: Evidence) -> Doubt | None:
    if e.facts["ok"] > 0:
        return None
    message = f"no request was answered with a token: {_count(e, 'failed')} failed, {_count(e, 'empty')} were empty"
    return Doubt("no-answers", message, "read the error table; send one request by hand", fatal=True)


def failed(e: Evidence) -> Doubt | None:
    if e.share("failed") < 0.01 or not e.facts["ok"]:
        return None
    message = f"{_percent(e.share('failed'))} of the requests failed; latencies are those of the others"
    return Doubt("failed", message, "lower the load until the error table is empty, or report the failures with it")


def empty(e: Evidence) -> Doubt | None:
    if e.share("empty") < 0.01 or not e.facts["ok"]:
        return None
    message = f"{_percent(e.share('empty'))} of the answers held no token; they give no latency"
    return Doubt("empty-answers", message, "look at one such prompt and its finish reason")


def unfinished(e: Evidence) -> Doubt | None:
    if e.share("cancelled") < 0.05:
        return None
    message = (
        f"{_percent(e.share('cancelled'))} of the requests were unfinished at the end; TPOT and ITL leave them out"
    )
    return Doubt("censored", message, "run longer, or set a number of requests instead of a time")


def retried(e: Evidence) -> Doubt | None:
    if e.share("retried") < 0.01:
        return None
    message = f"{_percent(e.share('retried'))} of the requests were sent again; their latency counts from the first try"
    return Doubt("retries", message, "raise the server's keep-alive time or its queue limit")


def ended_early(e: Evidence) -> Doubt | None:
    if e.run.status not in ("interrupted", "running"):
        return None
    return Doubt("interrupted", "the run did not come to its end", "go on with: dyno bench --resume DIR")


def backward(e: Evidence) -> Doubt | None:
    if not e.facts["backward"]:
        return None
    message = f"{_count(e, 'backward')} requests have times in the wrong order, so a duration is negative"
    return Doubt("negative-time", message, "this is a fault of the record or the client: report it", fatal=True)


def late_client(e: Evidence) -> Doubt | None:
    middle, tail, scale = e.facts["late_p50_ms"], e.facts["late_p99_ms"], e.facts["ttft_p50_ms"]
    scale = 0.0 if math.isnan(scale) else scale
    if math.isnan(tail) or tail <= max(2.0, 0.1 * scale):
        return None
    message = f"the client sent late: median {significant(middle)} ms, P99 {significant(tail)} ms after due"
    # a closed loop has no schedule to break: a late client held less in flight than it says, and that is measured
    beyond = e.run.experiment.load.law != "closed" and (tail > max(100.0, scale) or middle > max(10.0, 0.25 * scale))
    return Doubt("late-client", message, "use more workers, a lower rate, or a client machine of its own", beyond)


def achieved_rate(e: Evidence) -> Doubt | None:
    """Against the schedule that was made, so that chance in the schedule is no reason."""
    sent, due = _rate(e.sent_ns), _rate(np.sort(e.due_ns[np.isfinite(e.due_ns)]))
    if e.run.experiment.load.law == "closed" or not sent or not due or abs(sent / due - 1) <= 0.02:
        return None
    message = f"sent {significant(sent)} requests/s where {significant(due)} were due ({100 * (sent / due - 1):+.0f} %)"
    remedy = "use more workers or a lower rate; the figures hold for the rate that was sent"
    return Doubt("rate-not-reached", message, remedy, abs(sent / due - 1) > 0.1)


def asked_rate(e: Evidence) -> Doubt | None:
    """The schedule itself against the rate that was asked for; four standard errors are allowed."""
    load, due = e.run.experiment.load, np.sort(e.due_ns[np.isfinite(e.due_ns)])
    rate = _rate(due)
    if load.law not in KEPT_RATE or not rate or load.rate <= 0 or len(due) < 20:
        return None
    scatter = {"constant": 0.0, "burst": 3.0}.get(load.law, _asked_cv(e))
    if abs(rate / load.rate - 1) <= 0.02 + 4 * scatter / math.sqrt(len(due)):
        return None
    message = f"{significant(rate)} requests/s were due where {significant(load.rate)} were asked for"
    return Doubt("rate-not-asked", message, "the load ended early or was cut; give it more requests")


def arrival_law(e: Evidence) -> Doubt | None:
    """Gap coefficient of variation and index of dispersion of what was sent, against the law's."""
    law, gaps = e.run.experiment.load.law, np.diff(e.sent_ns) / 1e9
    if law not in ("constant", "poisson", "gamma") or len(gaps) < 50 or not gaps.mean() > 0:
        return None
    asked, found = _asked_cv(e), float(gaps.std() / gaps.mean())
    allowed = 0.15 if asked == 0 else 0.05 + 4 * asked * math.sqrt((0.5 + asked**2) / len(gaps))
    slices, dispersion = _dispersion(e.sent_ns)
    scattered = asked > 0 and slices >= 20 and dispersion > asked**2 * (1 + 5 * math.sqrt(2 / (slices - 1))) + 0.2
    if abs(found - asked) <= allowed and not scattered:
        return None
    message = (
        f"arrivals are not {law}: gap CV {found:.2f} where {asked:.2f} is right, index of dispersion {dispersion:.1f}"
    )
    return Doubt("arrival-law", message, "use more workers or a lower rate; compare sent with due in the rows")


def noisy_machine(e: Evidence) -> Doubt | None:
    used, cores = e.facts["foreign_cores"], _cores(e.run)
    if math.isnan(used) or used <= 0.25 or used / cores <= 0.05:
        return None
    message = f"other processes used {used:.2f} of {cores:g} cores on average, {e.facts['foreign_peak']:.2f} at most"
    return Doubt("noisy-machine", message, "stop them, or pin the engine and the client to cores of their own")


def short_answers(e: Evidence) -> Doubt | None:
    if not e.facts["short"]:
        return None
    message = (
        f"{_count(e, 'short')} of {_count(e, 'fixed')} answers are shorter than requested under ignore_eos"
        f" (mean {significant(e.facts['fixed_tokens'])} tokens)"
    )
    return Doubt("short-answers", message, "use an engine option that ignores EOS, or compare by tokens only")


def long_answers(e: Evidence) -> Doubt | None:
    if not e.facts["too_long"]:
        return None
    message = f"{_count(e, 'too_long')} answers hold more tokens than the limit that was asked for"
    return Doubt("long-answers", message, "check the limit's field name: max_tokens or max_completion_tokens")


def little_law(e: Evidence) -> Doubt | None:
    """L = λW holds for any stable flow; where it does not, rows are missing or the window is no steady state."""
    if not (e.in_flight > 0.05 and math.isfinite(e.turned)) or not e.stays >= LITTLE_STAYS:
        return None
    if abs(e.turned / e.in_flight - 1) <= LITTLE_MISS:
        return None
    message = f"{significant(e.in_flight)} requests in flight on average; rate times stay gives {significant(e.turned)}"
    return Doubt("little-law", message, "run longer than ten answers last, or look for a queue that grows")


def short_run(e: Evidence) -> Doubt | None:
    """Requests that begin and end together, as at the start of a closed loop, make rates depend on where one stops."""
    if e.run.experiment.load.law != "closed" or not e.stays < 0.95 * STAYS or e.facts["ok"] < 2:
        return None
    message = f"the measured part lasts only {e.stays:.1f} times as long as an answer"
    return Doubt("short-run", message, "ask more requests a stream, or run longer: ten answers' time gives sound rates")


def concurrency(e: Evidence) -> Doubt | None:
    load = e.run.experiment.load
    if (
        load.law != "closed"
        or load.concurrency < 2
        or e.window.drain_s == 0
        or not e.facts["ok"]
        or e.facts["requests"] < 3 * load.concurrency
    ):
        return None
    if e.in_flight >= 0.9 * load.concurrency:
        return None
    message = f"{e.in_flight:.1f} requests were in flight on average where {load.concurrency} were asked for"
    return Doubt("concurrency-not-reached", message, "use more workers; check connection limits on the way")


def warm_cache(e: Evidence) -> Doubt | None:
    """Synthetic prompts should not be known to the server; a chat template's few tokens may be."""
    shares = [share for share in (e.facts["hits"], e.facts["cached_share"]) if not math.isnan(share)]
    if e.run.experiment.workload.name in CACHED_ON_PURPOSE or not shares or max(shares) <= 0.25:
        return None
    message = f"{_percent(max(shares))} of the prompt tokens came from the server's prefix cache in the window"
    return Doubt("warm-cache", message, "use fresh prompts in each run, or reset or switch off the prefix cache")


def odd_timings(e: Evidence) -> Doubt | None:
    share = max((s for s in (e.facts["odd_decode"], e.facts["odd_total"]) if not math.isnan(s)), default=0.0)
    if share <= 0.1:
        return None
    message = f"the server's own durations do not fit the clock in {_percent(share)} of the answers; they are not used"
    return Doubt("odd-server-timings", message, "check the unit in which this server reports durations")


def cut_prompts(e: Evidence) -> Doubt | None:
    if not e.facts["cut_prompts"]:
        return None
    message = (
        f"prompt truncated by server in {_count(e, 'cut_prompts')} requests: up to {_count(e, 'cut_from')} tokens"
        f" planned, at most {_count(e, 'cut_to')} counted"
    )
    return Doubt("prompt-truncated", message, "leave out prompts beyond the context length, or raise it")


def coalesced(e: Evidence) -> Doubt | None:
    share = e.facts["coalesced"]
    if math.isnan(share) or share <= 0.1:
        return None
    message = (
        f"{_percent(share)} of the chunks came in one read with the chunk before; quantiles of ITL and ICL show it"
    )
    return Doubt("coalesced-reads", message, "judge by TPOT; look for a buffering proxy, or a client that is too busy")


def estimated(e: Evidence) -> Doubt | None:
    if not e.facts["estimated"]:
        return None
    message = (
        f"{_count(e, 'estimated')} answers came without a token count; their chunks are counted, which is an estimate"
    )
    return Doubt("estimated-tokens", message, "switch on usage in the stream (stream_options.include_usage)")


def miscounted(e: Evidence) -> Doubt | None:
    if e.share("miscounted") < 0.01:
        return None
    message = f"usage and the counts in the chunks differ in {_count(e, 'miscounted')} answers; usage is taken"
    return Doubt("token-count-mismatch", message, "compare one answer's text with the model's tokenizer")


def not_steady(e: Evidence) -> Doubt | None:
    if e.window.state != "not steady":
        return None
    message = f"no steady state found: {e.window.reason}"
    return Doubt("not-steady", message, "lower the rate below saturation, or run longer")


def much_cut(e: Evidence) -> Doubt | None:
    if e.window.state != "cut" or e.window.cut_requests <= MUCH_CUT * e.facts["requests"]:
        return None
    share = _percent(e.window.cut_requests / e.facts["requests"])
    message = f"{share} of the requests were cut as warm-up: something changed in the middle of the run"
    return Doubt("much-cut", message, "look at the plot of the run in its report, and run again")


CHECKS: tuple[Check, ...] = (
    *(no_answers, backward, ended_early, late_client, achieved_rate, asked_rate, arrival_law, concurrency),
    *(
        noisy_machine,
        not_steady,
        much_cut,
        short_run,
        little_law,
        failed,
        empty,
        unfinished,
        retried,
        short_answers,
        long_answers,
    ),
    *(warm_cache, cut_prompts, odd_timings, estimated, miscounted, coalesced),
)


def _rate(times_ns: Float64) -> float:
    span_s = float(times_ns[-1] - times_ns[0]) / 1e9 if len(times_ns) >= 20 else 0.0
    return (len(times_ns) - 1) / span_s if span_s > 0 else 0.0


def _asked_cv(e: Evidence) -> float:
    """Coefficient of variation of the gaps that the law promises."""
    load = e.run.experiment.load
    if load.law == "constant":
        return 0.0
    shape = float(load.options.get("burstiness", "1")) if load.law == "gamma" else 1.0
    return 1 / math.sqrt(shape)


def _dispersion(times_ns: Float64) -> tuple[int, float]:
    """(slices, variance over mean of the arrivals in slices of ten mean gaps)."""
    slices = (len(times_ns) - 1) // 10
    if slices < 2:
        return slices, math.nan
    counts, _ = np.histogram(times_ns, bins=slices)
    return slices, float(counts.var(ddof=1) / counts.mean())


def _cores(run: Run) -> float:
    found = next((run.machine[name] for name in ("cores_usable", "cores") if name in run.machine), 1)
    return float(found) if isinstance(found, int | float) and found > 0 else 1.0


def _count(e: Evidence, name: str) -> str:
    return f"{e.facts[name]:,.0f}"


def _percent(share: float) -> str:
    return f"{significant(100 * share, 2)} %"
