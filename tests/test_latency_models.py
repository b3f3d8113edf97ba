"""Latency against load, goodput, and the naming of bottlenecks."""

from __future__ import annotations

import numpy as np
import pytest

from dynamometer.errors import Refused, UsageError
from dynamometer.models import bottleneck, latency
from dynamometer.models.bottleneck import Device, Model, Signals, decode_shares
from dynamometer.types import Estimate, Float64

RATES = np.array([1.0, 2, 4, 6, 8, 9])
LEVELS = np.array([1.0, 2, 4, 8, 16, 32, 64])


def noisy(y: Float64, seed: int, sigma: float = 0.03) -> Float64:
    return np.asarray(y * np.exp(sigma * np.random.default_rng(seed).standard_normal(len(y))))


class TestLatency:
    def test_a_queue_s_limit_is_found(self) -> None:
        found = latency.fit(RATES, 50 + 30 * (RATES / 10) / (1 - RATES / 10), "rate", resamples=50)
        assert found.chosen.form.name == "queue"
        assert found.limit is not None
        assert found.limit.value == pytest.approx(10, rel=0.02)
        assert found.limit.unit == "1/s"

    def test_a_step_time_is_linear_in_concurrency(self) -> None:
        found = latency.fit(LEVELS, noisy(6.6 + 0.09 * LEVELS, 3, 0.01), "concurrency", resamples=50)
        assert found.chosen.form.name == "linear"
        assert found.chosen.fit.parameters["t"].value == pytest.approx(6.6, rel=0.03)
        assert found.chosen.fit.parameters["c"].value == pytest.approx(0.09, rel=0.1)
        assert found.limit is None

    def test_ninety_percent_predictions_hold_about_ninety_percent(self) -> None:
        held = n = 0
        for seed in range(80):
            found = latency.fit(LEVELS, noisy(6.6 + 0.09 * LEVELS, seed), "concurrency", resamples=2)
            for x in (3.0, 24.0):
                new = noisy(np.array([6.6 + 0.09 * x]), 7000 + 10 * seed + int(x))[0]
                said = latency.predict(found, x)
                assert said.low is not None
                assert said.high is not None
                held += said.low <= new <= said.high
                n += 1
        assert 0.83 <= held / n <= 0.98

    def test_beyond_the_measured_loads_nothing_is_said(self) -> None:
        found = latency.fit(RATES, 50 + RATES, "rate", resamples=2)
        with pytest.raises(Refused, match="rate 20 lies outside the measured range 1 to 9"):
            latency.predict(found, 20)

    def test_the_load_for_a_limit_is_where_the_law_crosses_it(self) -> None:
        found = latency.fit(LEVELS, 6.6 + 0.09 * LEVELS, "concurrency", resamples=2)
        at = latency.load_for(found, 6.6 + 0.09 * 30)
        assert at.value == pytest.approx(30, rel=0.01)
        assert latency.load_for(found, 1).value is None
        top = latency.load_for(found, 1e6)
        assert top.value == pytest.approx(64)
        assert "no load measured exceeds" in top.method
        with pytest.raises(UsageError, match="above 0"):
            latency.load_for(found, 0)


def share(value: float | None, half: float = 0.2) -> Estimate:
    if value is None:
        return Estimate(None, None, None, 0, "1/s", method="no objective")
    return Estimate(value, value - half, value + half, 100, "1/s")


class TestGoodput:
    def test_the_peak_is_the_highest_and_equals_are_named(self) -> None:
        found = latency.goodput_peak([1, 2, 4, 8, 16], [share(v) for v in (1.0, 2.0, 3.9, 4.0, 1.5)])
        assert (found.peak.value, found.at) == (4.0, 8)
        assert found.as_good == (4,)
        assert found.falls

    def test_goodput_that_still_rises_has_not_fallen(self) -> None:
        assert not latency.goodput_peak([1, 2], [share(1.0), share(2.0)]).falls

    def test_without_an_objective_there_is_none(self) -> None:
        with pytest.raises(Refused, match="--slo"):
            latency.goodput_peak([1, 2], [share(None), share(None)])


class TestBottleneck:
    @pytest.mark.parametrize(
        ("signals", "name"),
        [
            (Signals(8, client_late_p99_ms=20, ttft_p50_ms=100, cache_share=0.99, waiting=5), "client"),
            (Signals(8, client_loop_share=0.97), "client"),
            (Signals(8, network_share=0.9), "network"),
            (Signals(8, cores_share=0.5, foreign_share=0.4), "other processes"),
            (Signals(8, cores_share=0.5), "unknown"),
            (Signals(8, preemptions=12, device_busy=0.99), "KV capacity"),
            (Signals(8, cache_share=0.97, waiting=4), "KV capacity"),
            (Signals(8, cache_share=0.3, waiting=4, running=8, running_limit=8), "batch limit"),
            (Signals(8, device_busy=0.5, host_core_share=0.98), "scheduler or host CPU"),
            (Signals(8, device_busy=0.5, waiting=3), "scheduler or host CPU"),
            (Signals(1, device_busy=0.98, compute_share=0.02, memory_share=0.8), "memory bandwidth"),
            (Signals(512, device_busy=0.98, compute_share=0.7, memory_share=0.4), "compute"),
            (Signals(8, cores_share=0.99), "compute"),
            (Signals(1, cores_share=0.2, waiting=0), "none"),
            (Signals(1), "unknown"),
        ],
    )
    def test_each_is_named_from_its_own_evidence(self, signals: Signals, name: str) -> None:
        found = bottleneck.name(signals)
        assert found.name == name
        assert found.level == signals.level
        if name != "unknown":
            assert found.evidence

    def test_what_was_not_measured_is_listed(self) -> None:
        found = bottleneck.name(Signals(1))
        assert "memory_share" in found.missing
        assert "device_busy or cores_share" in found.missing

    def test_evidence_has_the_figures(self) -> None:
        (line,) = bottleneck.name(Signals(8, cache_share=0.97, waiting=4)).evidence
        assert line == "the KV cache is 97% full while 4 requests wait"

    def test_decode_shares_by_hand(self) -> None:
        model = Model(weights_bytes=16e9, cache_bytes_per_token=131_072, flop_per_token=16e9)
        compute, memory = decode_shares(200, 1, 0, model, Device(800e12, 4e12))
        assert compute == pytest.approx(200 * 16e9 / 800e12)
        assert memory == pytest.approx(200 * 16e9 / 4e12)  # 0.8: one stream reads the weights for each token
        _, memory = decode_shares(20_000, 100, 1000, model, Device(800e12, 4e12))
        assert memory == pytest.approx(200 * (16e9 + 100 * 1000 * 131_072) / 4e12)
        with pytest.raises(UsageError, match="above 0"):
            decode_shares(0, 1, 1, model, Device(1, 1))
