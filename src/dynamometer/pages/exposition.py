"""The text of a Prometheus /metrics page in, its series out; histogram buckets in, a quantile or the reason for none
out.

The parser reads what engines write: the text format 0.0.4 and OpenMetrics without exemplars. It is small so that the
core needs no client library; a test holds it against the official one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import inf, isfinite, isnan

import msgspec

from dynamometer.errors import UsageError
from dynamometer.types import Estimate

_LINE = re.compile(r"([a-zA-Z_:][\w:]*)\s*(?:\{(.*)\})?\s+([^\s#]+)")
_LABEL = re.compile(r'\s*([a-zA-Z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*,?')
_ESCAPE = re.compile(r"\\(.)")


class Series(msgspec.Struct, frozen=True):
    """One line of the page."""

    name: str
    labels: Mapping[str, str]
    value: float


def parse(text: str, prefixes: tuple[str, ...] = ()) -> list[Series]:
    """The page's series in order; with `prefixes` only those whose name begins with one. A line that cannot be read,
    as at the end of a page cut short, is left out.
    """
    found = []
    for line in text.splitlines():
        if not line or line[0] == "#" or (prefixes and not line.startswith(prefixes)):
            continue
        match = _LINE.match(line)
        if match is None:
            continue
        try:
            value = float(match[3])  # takes NaN, +Inf and -Inf as the format writes them
        except ValueError:
            continue
        labels = {name: _ESCAPE.sub(_unescaped, text) for name, text in _LABEL.findall(match[2] or "")}
        found.append(Series(match[1], labels, value))
    return found


def _unescaped(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]


def buckets_of(series: Iterable[Series], name: str) -> dict[float, float]:
    """Bound -> cumulative count of the histogram `name`, summed over all other labels. Bounds are numbers: "0.1" is
    "0.10".

    Series without `le` are what is left after a grouping that dropped it; no quantile can come from them.
    """
    sums: dict[float, float] = {}
    for one in series:
        if one.name not in (name, f"{name}_bucket"):
            continue
        if "le" not in one.labels:
            if one.name == name and not one.name.endswith("_bucket"):
                continue
            raise UsageError(f"{one.name} has no label le, so it holds no buckets; keep le when grouping: sum by (le)")
        bound = float(one.labels["le"])
        sums[bound] = sums.get(bound, 0.0) + one.value
    return sums


def histogram_quantile(buckets: Mapping[float, float], q: float, unit: str = "s") -> Estimate:
    """The q-quantile by Prometheus' rule: linear within the bucket, whose width is all that is known of the error.

    `buckets` maps upper bound to cumulative count over the window. `low` and `high` are the bucket's bounds.
    """
    if not 0 < q < 1:
        raise UsageError(f"quantile is {q}; give a share between 0 and 1")
    bounds = sorted(buckets)
    total = buckets.get(inf, 0.0)
    reason = ""
    if not bounds:
        reason = "no data: there are no buckets"
    elif bounds[-1] != inf:
        reason = "no data: the histogram has no +Inf bucket, so its total is not known"
    elif len(bounds) == 1:
        reason = "no data: the histogram has only the +Inf bucket"
    elif isnan(total) or total <= 0:
        reason = "no data: nothing was observed in the window"
    if reason:
        return Estimate(None, None, None, 0, unit, method=reason)
    rank = q * total
    previous = 0.0
    lower = 0.0 if bounds[0] > 0 else -inf
    for bound in bounds:
        if buckets[bound] >= rank:
            break
        lower, previous = bound, buckets[bound]
    n = round(total)
    if bound == inf:
        told = f"above the last bound, {lower:g} {unit}: the histogram cannot say how far"
        return Estimate(lower, lower, None, n, unit, method=told)
    if not isfinite(lower):
        return Estimate(bound, None, bound, n, unit, method="in the first bucket, whose lower end is not known")
    value = lower + (bound - lower) * (rank - previous) / (buckets[bound] - previous)
    return Estimate(value, lower, bound, n, unit, level=1.0, method="linear in the histogram's bucket")
