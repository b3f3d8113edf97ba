"""Exact quantiles and their intervals: truth from arithmetic, from repeated values and from processes of known
correlation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import signal, stats

from dynamometer.errors import UsageError
from dynamometer.metrics import intervals
from dynamometer.metrics.distribution import distribution
from dynamometer.metrics.quantiles import from_histogram, quantile, quantiles, survival, weighted
from dynamometer.metrics.views import Samples


def test_the_p99_of_three_values_is_not_their_median() -> None:
    assert quantile(np.array([10.0, 20.0, 30.0]), 0.99) == pytest.approx(29.8)


def test_quantiles_of_one_to_a_hundred_are_not_one_sample_too_high() -> None:
    found = quantiles(np.arange(1.0, 101.0), (0.5, 0.95, 0.99))
    assert found == pytest.approx([50.5, 95.05, 99.01])


def test_every_quantile_of_one_value_is_that_value_and_of_none_there_is_none() -> None:
    assert quantiles(np.array([7.0]), (0.0, 0.5, 0.999)) == [7.0, 7.0, 7.0]
    assert quantile(np.array([]), 0.5) is None


def test_pooled_samples_keep_the_slow_workers_tail() -> None:
    pooled = np.concatenate([np.full(900, 100.0), np.full(100, 1000.0)])
    assert quantile(pooled, 0.99) == 1000.0
    assert pooled.mean() == 190.0


def test_a_quantile_outside_0_to_1_is_refused() -> None:
    with pytest.raises(UsageError, match=r"give shares from 0 to 1"):
        quantile(np.array([1.0]), 99)


@given(
    st.lists(st.tuples(st.integers(-1000, 1000), st.integers(0, 5)), min_size=1, max_size=30).filter(
        lambda pairs: any(k for _, k in pairs)
    ),
    st.floats(0, 1),
)
def test_a_weight_means_that_many_equal_samples(pairs: list[tuple[int, int]], q: float) -> None:
    values, weights = np.array([v for v, _ in pairs], float), np.array([k for _, k in pairs], float)
    found = weighted(values, weights).quantile(q)
    assert found == pytest.approx(float(np.quantile(np.repeat(values, weights.astype(int)), q)), abs=1e-6)


def test_weights_below_one_are_shares_of_a_sample() -> None:
    assert weighted(np.array([1.0, 2.0, 3.0]), np.array([0.5, 0.5, 0.5])).quantile(0.0) == 1.0
    assert weighted(np.array([1.0]), np.array([0.0])).quantile(0.5) is None
    with pytest.raises(UsageError, match="negative"):
        weighted(np.array([1.0]), np.array([-1.0]))


def test_kaplan_meier_agrees_with_a_worked_example() -> None:
    """Freireich's 6-mercaptopurine arm (Cox and Oakes, 1984): S(6) = 0.857, S(10) = 0.753, S(23) = 0.448, median 23."""
    weeks = np.array([6, 6, 6, 6, 7, 9, 10, 10, 11, 13, 16, 17, 19, 20, 22, 23, 25, 32, 32, 34, 35], float)
    censored = np.array([0, 0, 0, 1, 0, 1, 0, 1, 1, 0, 0, 1, 1, 1, 0, 0, 1, 1, 1, 1, 1], bool)
    curve = survival(weeks, censored)
    at = dict(zip(curve.at.tolist(), curve.share.tolist(), strict=True))
    assert [round(at[week], 3) for week in (6, 10, 23)] == [0.857, 0.753, 0.448]
    assert curve.quantile(0.5) == 23.0
    assert curve.quantile(0.9) is None


def test_kaplan_meier_without_censoring_is_the_plain_share() -> None:
    curve = survival(np.array([3.0, 1.0, 2.0, 2.0]), np.zeros(4, bool))
    assert curve.share.tolist() == pytest.approx([0.75, 0.25, 0.0])
    assert curve.mean() == pytest.approx(2.0)


def test_dropping_unfinished_requests_hides_the_tail_and_censoring_does_not() -> None:
    """Exponential durations of mean 1 s, each cut at an independent uniform time: the true median is ln 2."""
    chance = np.random.default_rng(5)
    true, cut = chance.exponential(1000.0, 20_000), chance.uniform(0, 3000.0, 20_000)
    seen, censored = np.minimum(true, cut), true > cut
    truth = 1000 * math.log(2)
    assert np.median(seen[~censored]) < 0.75 * truth
    assert survival(seen, censored).quantile(0.5) == pytest.approx(truth, rel=0.03)


def test_histograms_without_data_give_the_reason_and_no_number() -> None:
    for buckets in ({"0.1": 0, "0.5": 0, "+Inf": 0}, {"0.1": 10, "0.5": 20}, {"+Inf": 20}, {}):
        found = from_histogram({k: float(v) for k, v in buckets.items()}, 0.99, "s")
        assert found.value is None
        assert found.method.startswith("no data: ")
    assert "`le`" in from_histogram({}, 0.99, "s").method


def test_a_histogram_quantile_is_linear_in_its_bucket() -> None:
    found = from_histogram({"0.1": 10.0, "0.5": 20.0, "+Inf": 20.0}, 0.99, "s")
    assert found.value == pytest.approx(0.492)
    assert (found.low, found.high) == (0.1, 0.5)
    same = from_histogram({"0.1": 4.0, "0.10": 6.0, "0.5": 20.0, "+Inf": 20.0}, 0.99, "s")
    assert same.value == pytest.approx(0.492)
    over = from_histogram({"0.1": 10.0, "+Inf": 20.0}, 0.99, "s")
    assert (over.value, over.low) == (None, 0.1)


@pytest.mark.parametrize(("q", "n"), [(0.5, 6), (0.9, 36), (0.95, 72), (0.99, 368), (0.999, 3688)])
def test_a_quantile_needs_so_many_samples(q: float, n: int) -> None:
    """Bounded on both sides at 95 %: 1 - q^n must exceed 97.5 %."""
    assert intervals.needed(q) == n
    assert q**n <= 0.025 < q ** (n - 1)


@pytest.mark.parametrize(("n", "q"), [(6, 0.5), (20, 0.5), (100, 0.9), (368, 0.99), (1000, 0.99), (5000, 0.999)])
def test_the_ranks_of_an_interval_hold_their_level_by_the_binomial_law(n: int, q: float) -> None:
    low, high = intervals.ranks(n, q)
    assert low is not None
    assert high is not None
    assert stats.binom.cdf(low - 1, n, q) <= 0.025 < stats.binom.cdf(low, n, q)
    assert stats.binom.sf(high - 1, n, q) <= 0.025 < stats.binom.sf(high - 2, n, q)


def test_too_few_samples_have_no_rank_above() -> None:
    assert intervals.ranks(367, 0.99)[1] is None
    assert intervals.ranks(3, 0.5) == (None, None)


@pytest.mark.parametrize("df", [1, 2, 3, 5, 10, 30, 1000])
def test_students_t_agrees_with_scipy(df: int) -> None:
    assert intervals.student(df) == pytest.approx(float(stats.t.ppf(0.975, df)), rel=3e-3)


def test_a_sample_that_cannot_carry_a_tail_gives_the_number_it_takes() -> None:
    found = distribution(Samples(np.arange(1000.0)), "ms", 1000)
    assert found.p999 is None
    assert found.estimates["p999"].method == "1,000 samples; P99.9 needs 3,688"
    assert found.p99 == pytest.approx(989.01)


def ar1(phi: float, n: int, chance: np.random.Generator) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Unit variance, autocorrelation phi^k."""
    noise = chance.standard_normal(n + 300)
    return np.asarray(signal.lfilter([1], [1, -phi], noise)[300:] * math.sqrt(1 - phi * phi), dtype=np.float64)


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.8])
def test_intervals_cover_the_truth_also_when_neighbours_are_correlated(phi: float) -> None:
    """Nominal 95 %; 300 series of 1,500 values. Independent-sample intervals would cover 50 to 70 % at phi = 0.8."""
    chance, hits = np.random.default_rng(11), dict.fromkeys(("mean", "p50", "p90", "p99"), 0)
    truth = {"mean": 0.0} | {name: float(stats.norm.ppf(q)) for name, q in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))}
    for _ in range(300):
        found = distribution(Samples(ar1(phi, 1500, chance)), "ms", 1500).estimates
        for name, true in truth.items():
            low, high = found[name].low, found[name].high
            hits[name] += (low is None or low <= true) and (high is None or true <= high)
    assert all(count >= 0.91 * 300 for count in hits.values()), hits


def test_ignoring_correlation_would_fail_that_test() -> None:
    """So the test above can fail: with the number of samples for the effective number, coverage of the mean is far
    off."""
    chance, hits = np.random.default_rng(11), 0
    for _ in range(300):
        series = ar1(0.8, 1500, chance)
        hits += abs(series.mean()) <= 1.96 * series.std() / math.sqrt(len(series))
    assert hits < 0.6 * 300


def test_the_effective_number_of_samples_follows_theory() -> None:
    """n (1 - phi) / (1 + phi) for AR(1); n for independent and for constant values."""
    series = ar1(0.6, 100_000, np.random.default_rng(2))
    assert intervals.effective_n(series) == pytest.approx(100_000 * 0.4 / 1.6, rel=0.1)
    assert intervals.effective_n(np.random.default_rng(2).standard_normal(100_000)) > 90_000
    assert intervals.effective_n(np.full(50, 3.0)) == 50


def test_tokens_of_one_request_do_not_count_as_independent() -> None:
    """200 requests of 100 tokens, each request with one speed of its own: 200 samples, not 20,000."""
    chance = np.random.default_rng(3)
    speed = chance.normal(20.0, 2.0, 200)
    group = np.repeat(np.arange(200), 100)
    pooled = distribution(Samples(speed[group], None, group), "ms", 200).estimates
    alone = distribution(Samples(speed), "ms", 200).estimates
    for name in ("mean", "p50"):
        wide = (pooled[name].high or 0) - (pooled[name].low or 0)
        assert wide == pytest.approx((alone[name].high or 0) - (alone[name].low or 0), rel=0.25)
    assert pooled["mean"].n == 20_000


@settings(max_examples=60)
@given(st.lists(st.floats(0, 1e6), max_size=80), st.data())
def test_no_input_makes_a_figure_out_of_order_or_not_finite(values: list[float], data: st.DataObject) -> None:
    censored = np.array(data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values))), bool)
    for samples in (
        Samples(np.array(values)),
        Samples(np.array(values), censored=censored if censored.any() else None),
    ):
        for estimate in distribution(samples, "ms", len(values)).estimates.values():
            numbers = [x for x in (estimate.low, estimate.value, estimate.high) if x is not None]
            assert all(map(math.isfinite, numbers))
            assert numbers == sorted(numbers) or max(numbers) - min(numbers) < 1e-6
