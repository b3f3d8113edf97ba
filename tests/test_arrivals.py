"""The laws of arrival against what theory says of them."""

from __future__ import annotations

import math
import subprocess
import sys

import msgspec
import numpy as np
import pytest
from scipy import stats

from dynamometer import plugins, schedule
from dynamometer.errors import UsageError
from dynamometer.schedule.arrivals import gamma
from dynamometer.schedule.shape import shape
from dynamometer.types import Load

N = 20_000


def gaps_of(law: str, rate: float = 10.0, seed: int = 7, requests: int = N, **options: str) -> np.ndarray:
    due_s = schedule.build(Load(law, rate=rate, options=options), seed, requests).due_s
    return np.diff(due_s, prepend=0.0)


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_poisson_gaps_are_independent_and_exponential(seed: int) -> None:
    gaps_s = gaps_of("poisson", seed=seed)
    assert stats.kstest(gaps_s, "expon", args=(0, 0.1)).pvalue > 0.001
    assert gaps_s.mean() == pytest.approx(0.1, abs=3 * 0.1 / math.sqrt(N))
    measured = shape(np.cumsum(gaps_s))
    assert measured.gap_cv == pytest.approx(1, abs=0.03)
    assert measured.lag1 == pytest.approx(0, abs=4 / math.sqrt(N))
    # the variance of a sample variance over m windows is about 2/m
    assert measured.dispersion == pytest.approx(1, abs=4 * math.sqrt(2 / (N / 20)))


def test_poisson_is_not_rescaled_to_a_fixed_end() -> None:
    last_s = [schedule.build(Load("poisson", rate=10), seed, 100).due_s[-1] for seed in range(400)]
    assert np.std(last_s) == pytest.approx(math.sqrt(100) / 10, rel=0.15)


def test_constant_send_k_is_due_at_k_over_rate() -> None:  # case B11
    due_s = schedule.build(Load("constant", rate=200), 0, 10_000).due_s
    assert due_s[-1] == pytest.approx(49.995, abs=1e-9)
    assert np.array_equal(due_s, np.arange(10_000) / 200)
    assert shape(due_s).gap_cv == pytest.approx(0, abs=1e-9)
    assert shape(due_s).dispersion == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(("burstiness", "cv"), [("1", 1.0), ("0.25", 2.0), ("4", 0.5)])
def test_gamma_keeps_the_rate_and_its_cv_is_one_over_root_b(burstiness: str, cv: float) -> None:  # case B12
    gaps_s = gaps_of("gamma", burstiness=burstiness)
    assert gaps_s.mean() == pytest.approx(0.1, abs=3 * 0.1 * cv / math.sqrt(N))
    assert gaps_s.std() / gaps_s.mean() == pytest.approx(cv, rel=0.05)
    assert stats.kstest(gaps_s[1:], "gamma", args=(float(burstiness), 0, 0.1 / float(burstiness))).pvalue > 0.001


def test_gamma_of_infinite_burstiness_is_constant_without_nan() -> None:  # case B12
    gaps_s = np.diff(schedule.build(Load("gamma", rate=10, options={"burstiness": "inf"}), 7, N).due_s)
    assert np.allclose(gaps_s, 0.1, rtol=0, atol=1e-9)


@pytest.mark.parametrize("burstiness", ["0", "-1", "nan", "lots"])
def test_gamma_refuses_a_burstiness_that_is_no_shape(burstiness: str) -> None:  # case B12
    with pytest.raises(UsageError, match="burstiness"):
        schedule.build(Load("gamma", rate=10, options={"burstiness": burstiness}), 7, 10)


@pytest.mark.parametrize("burstiness", ["0.1", "1", "5"])
def test_gamma_expects_rate_times_time_in_any_window(burstiness: str) -> None:
    load = Load("gamma", rate=10, options={"burstiness": burstiness})
    window, seeds = schedule.Window(0, 1.0), range(3000)
    counts = [len(gamma(10, load.options, window, np.random.default_rng(seed))) for seed in seeds]
    assert np.mean(counts) == pytest.approx(10, abs=4 * np.std(counts) / math.sqrt(3000))


@pytest.mark.parametrize(
    "load",
    [
        Load("poisson", rate=50),
        Load("constant", rate=50),
        Load("gamma", rate=50, options={"burstiness": "0.5"}),
        Load("burst", rate=50, options={"share": "0.4", "spread": "100ms"}),
        Load("ramp", rate=10, options={"to": "90", "over": "20s"}),
        Load("step", options={"steps": "10:5s,80:20s"}),
    ],
    ids=lambda load: load.law,
)
class TestEveryLaw:
    def test_the_same_seed_gives_the_same_array_in_another_process(self, load: Load) -> None:
        code = (
            "import sys, msgspec; from dynamometer import schedule; from dynamometer.types import Load;"
            "load = msgspec.json.decode(sys.argv[1], type=Load);"
            "sys.stdout.write(schedule.build(load, 11, 500).due_s.tobytes().hex())"
        )
        other = subprocess.run(
            [sys.executable, "-c", code, msgspec.json.encode(load).decode()], capture_output=True, text=True, check=True
        )
        assert other.stdout == schedule.build(load, 11, 500).due_s.tobytes().hex()

    def test_eight_slices_merged_are_one_worker(self, load: Load) -> None:
        due_s = schedule.build(load, 3, 1001).due_s
        merged = np.sort(np.concatenate([due_s[i::8] for i in range(8)]))
        assert np.array_equal(merged, due_s)
        assert len(due_s) == 1001

    def test_a_longer_load_begins_with_the_shorter_one(self, load: Load) -> None:
        short, long = (schedule.build(load, 3, n).due_s for n in (200, 1700))
        assert np.array_equal(short, long[:200])
        timed = schedule.build(load, 3, duration_s=3).due_s
        assert np.array_equal(timed, long[long < 3])

    def test_due_times_ascend_from_zero_and_stay_inside_the_duration(self, load: Load) -> None:
        due_s = schedule.build(load, 5, duration_s=12).due_s
        assert due_s[0] >= 0
        assert due_s[-1] < 12
        assert (np.diff(due_s) >= 0).all()

    def test_the_end_that_comes_first_ends_it(self, load: Load) -> None:
        assert len(schedule.build(load, 5, requests=7, duration_s=1000).due_s) == 7
        assert len(schedule.build(load, 5, requests=10_000, duration_s=2).due_s) < 1000

    def test_another_seed_gives_other_times_unless_the_law_has_no_chance(self, load: Load) -> None:
        same = np.array_equal(schedule.build(load, 1, 100).due_s, schedule.build(load, 2, 100).due_s)
        assert same == (load.law == "constant")


def test_different_seeds_are_uncorrelated() -> None:
    first, second = (gaps_of("poisson", seed=seed) for seed in (1, 2))
    assert np.corrcoef(first, second)[0, 1] == pytest.approx(0, abs=4 / math.sqrt(N))


def test_eight_workers_on_one_poisson_schedule_keep_the_dispersion_of_one() -> None:
    # eight workers that each seed the same generator would give an index of dispersion near 8
    due_s = schedule.build(Load("poisson", rate=100), 0, N).due_s
    merged = np.sort(np.concatenate([due_s[i::8] for i in range(8)]))
    assert shape(merged).dispersion == pytest.approx(1, abs=0.2)


class TestBurst:
    def test_the_mean_rate_is_the_asked_rate_and_the_share_is_in_bursts(self) -> None:
        load = Load("burst", rate=100, options={"share": "0.3", "size": "20"})
        due_s = schedule.build(load, 1, duration_s=2000).due_s
        bursts = 2000 * 100 * 0.3 / 20
        assert len(due_s) == pytest.approx(200_000, abs=4 * 20 * math.sqrt(bursts))
        _, counts = np.unique(due_s, return_counts=True)
        assert counts[counts > 1].sum() / len(due_s) == pytest.approx(0.3, rel=0.08)
        assert set(counts[counts > 1]) <= {20, 40}

    def test_a_share_of_zero_is_even_and_a_share_of_one_is_only_bursts(self) -> None:
        even = schedule.build(Load("burst", rate=10, options={"share": "0"}), 1, 100).due_s
        assert np.allclose(np.diff(even), 0.1)
        only = schedule.build(Load("burst", rate=10, options={"share": "1", "bursts": "even"}), 1, 100).due_s
        assert len(np.unique(only)) == 10

    def test_dispersion_of_poisson_bursts_over_a_poisson_base_is_that_of_a_compound_process(self) -> None:
        # Var/mean of a sum of Poisson(rate(1-s)) and size·Poisson(rate·s/size) is (1-s) + s·size
        load = Load("burst", rate=100, options={"share": "0.5", "size": "4", "base": "poisson"})
        due_s = schedule.build(load, 2, duration_s=4000).due_s
        counts, _ = np.histogram(due_s, bins=4000, range=(0, 4000))
        assert counts.var() / counts.mean() == pytest.approx(0.5 + 0.5 * 4, rel=0.1)

    def test_a_spread_burst_stays_within_its_spread(self) -> None:
        load = Load("burst", rate=10, options={"share": "1", "size": "5", "spread": "1s", "bursts": "even"})
        due_s = schedule.build(load, 4, 50).due_s
        starts_s = (np.arange(10) + 0.5) / 2
        for i, start_s in enumerate(starts_s):
            assert ((due_s >= start_s) & (due_s < start_s + 1)).sum() >= 5, i


class TestRamp:
    def test_the_counts_follow_the_line(self) -> None:
        load = Load("ramp", rate=10, options={"to": "50"})
        counts = np.sum(
            [np.histogram(schedule.build(load, s, duration_s=40).due_s, bins=4, range=(0, 40))[0] for s in range(50)], 0
        )
        expected = 50 * 10 * np.array([15, 25, 35, 45])
        assert (np.abs(counts - expected) < 4 * np.sqrt(expected)).all()

    def test_even_spacing_puts_request_k_where_the_integral_is_k(self) -> None:
        due_s = schedule.build(Load("ramp", options={"to": "10", "spacing": "even"}), 0, duration_s=10).due_s
        assert np.allclose(due_s, np.sqrt(2 * np.arange(50)))  # the integral of t is t²/2

    def test_a_ramp_down_to_zero_ends(self) -> None:
        due_s = schedule.build(Load("ramp", rate=10, options={"to": "0", "spacing": "even"}), 0, duration_s=10).due_s
        assert len(due_s) == 50
        with pytest.raises(UsageError, match="falls to 0"):
            schedule.build(Load("ramp", rate=10, options={"to": "0", "over": "10s"}), 0, 51)

    def test_by_count_the_line_is_as_long_as_the_requests(self) -> None:
        due_s = schedule.build(Load("ramp", rate=10, options={"to": "30", "spacing": "even"}), 0, 200).due_s
        assert due_s[-1] == pytest.approx(10, abs=0.05)  # 200 requests at 20/s on average

    def test_the_time_change_of_a_ramp_is_a_unit_poisson_process(self) -> None:
        due_s = schedule.build(Load("ramp", rate=5, options={"to": "45"}), 9, duration_s=400).due_s
        integral = 5 * due_s + 0.05 * due_s**2
        assert stats.kstest(np.diff(integral, prepend=0), "expon").pvalue > 0.001

    def test_rate_at_gives_the_line(self) -> None:
        load = Load("ramp", rate=10, options={"to": "30", "over": "20s"})
        assert schedule.rate_at(load, np.array([0.0, 5.0, 20.0, 99.0])) == pytest.approx([10, 15, 30, 30])

    def test_a_rise_that_begins_late_holds_the_first_rate_until_then(self) -> None:
        load = Load("ramp", rate=10, options={"to": "50", "over": "5s", "after": "10s", "spacing": "even"})
        due_s = schedule.build(load, 0, duration_s=20).due_s
        counts, _ = np.histogram(due_s, bins=[0, 10 - 1e-9, 15 - 1e-9, 20])
        assert counts == pytest.approx([100, 150, 250], abs=1)
        assert schedule.rate_at(load, np.array([9.0, 12.5, 16.0])) == pytest.approx([10, 30, 50])


class TestStep:
    def test_each_level_has_its_rate_and_the_list_ends_the_load(self) -> None:
        load = Load("step", options={"steps": "10:10s,0:5s,40:20s", "spacing": "even"})
        due_s = schedule.build(load, 0).due_s
        counts, _ = np.histogram(due_s, bins=[0, 10 - 1e-9, 15 - 1e-9, 35])
        assert counts.tolist() == [100, 0, 800]

    def test_the_last_level_is_held_when_more_is_asked_for(self) -> None:
        due_s = schedule.build(
            Load("step", options={"steps": "10:1s,20:1s", "spacing": "even"}), 0, duration_s=10
        ).due_s
        assert len(due_s) == 10 + 20 * 9

    def test_rate_at_gives_the_level(self) -> None:
        load = Load("step", options={"steps": "10:1s,20:1s"})
        assert schedule.rate_at(load, np.array([0.0, 0.99, 1.0, 7.0])) == pytest.approx([10, 10, 20, 20])

    @pytest.mark.parametrize("steps", ["", "10", "10:0s", "x:1s", "10:1parsec", "-1:1s", "0:10s", ",", "nan:1s"])
    def test_a_list_that_is_none_is_refused_in_one_line(self, steps: str) -> None:
        with pytest.raises(UsageError, match="step") as wrong:
            schedule.build(Load("step", options={"steps": steps}), 0)
        assert "\n" not in str(wrong.value)


@pytest.mark.parametrize(
    ("load", "requests", "duration_s", "words"),
    [
        (Load("closed"), 1, 0, "has no schedule"),
        (Load("poisson", rate=0), 1, 0, "rate is 0"),
        (Load("poisson", rate=-1), 1, 0, "rate is -1"),
        (Load("poisson", rate=math.nan), 1, 0, "rate is nan"),
        (Load("poisson", rate=math.inf), 1, 0, "rate is inf"),
        (Load("constant", rate=1), 0, 0, "no end"),
        (Load("constant", rate=1e12), 0, 1e6, "the most is"),
        (Load("poisson", rate=1e12), 0, 1e6, "the most is"),
        (Load("ramp", rate=1, options={"to": "1e12"}), 0, 1e6, "the most is"),
        (Load("constant", rate=1), -1, 0, "at least 0"),
        (Load("constant", rate=1), 0, math.inf, "at least 0"),
        (Load("poisson", rate=1, options={"burstiness": "2"}), 1, 0, "no option 'burstiness'"),
        (Load("poison", rate=1), 1, 0, "unknown law 'poison'"),
        (Load("ramp", rate=1), 1, 0, "set option to=RATE"),
        (Load("ramp", rate=1, options={"to": "5"}), 0, 0, "no length"),
        (Load("ramp", rate=0, options={"to": "0"}), 1, 0, "above 0"),
        (Load("burst", rate=1, options={"share": "1.5"}), 1, 0, "share is '1.5'"),
        (Load("burst", rate=1, options={"size": "0"}), 1, 0, "size is '0'"),
        (Load("burst", rate=1, options={"base": "odd"}), 1, 0, "one of even, poisson"),
    ],
)
def test_a_load_that_makes_no_sense_is_refused(load: Load, requests: int, duration_s: float, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        schedule.build(load, 0, requests, duration_s)


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(UsageError, match="seed is -1"):
        schedule.build(Load("poisson", rate=1), -1, 1)


def test_every_law_is_a_plugin() -> None:
    assert {"poisson", "constant", "gamma", "burst", "ramp", "step", "trace"} <= set(plugins.names("law"))


def test_a_shape_of_too_few_times_says_nothing() -> None:
    assert shape(np.array([0.0, 1.0])).gap_cv is None
    assert shape(np.zeros(100)).rate is None
    assert shape(np.arange(20.0)).dispersion is None
