"""Floors of time by hand, and below every measured step."""

from __future__ import annotations

import pytest

from dynamometer.hardware import gpu, roofline, source
from dynamometer.hardware.model import parameters_total

# median milliseconds of one decode step, vLLM 0.26 on one H200, Llama-3.1-8B shape in bf16 at context 512, measured
# here
STEPS_MS = {1: 4.9809, 2: 4.9658, 4: 5.0726, 8: 5.1627, 16: 5.3565, 32: 5.8377, 64: 6.7349, 128: 8.7152}


def test_a_step_reads_the_weights_but_the_embedding_and_the_cache() -> None:
    model = source.load("llama-3-8b")
    weights = 2 * ((parameters_total(model) or 0) - 128256 * 4096)
    floor = roofline.decode_floor(model, 2039e9, 312e12, [2048], "fp16")
    assert floor.bytes_read == weights + 2048 * 131072
    assert floor.bound == "memory"
    assert floor.seconds == pytest.approx(floor.bytes_read / 2039e9)
    assert 1 / floor.seconds == pytest.approx(133.5, abs=0.1)


@pytest.mark.parametrize("batch", STEPS_MS)
def test_no_measured_step_is_faster_than_the_floor(batch: int) -> None:
    h200 = gpu.load("h200")
    floor = roofline.decode_floor(
        source.load("llama-3.1-8b"), h200.bandwidth.high, h200.rates["bf16"].high, [512] * batch, "bf16"
    )
    assert 0.3 < floor.seconds * 1e3 / STEPS_MS[batch] < 0.95


def test_a_tied_embedding_is_read_whole_because_it_is_the_head() -> None:
    model = source.load("llama-3.2-1b")
    assert roofline.touched_weights_bytes(model, "bf16", 1) == 2 * (parameters_total(model) or 0)


def test_experts_touched_approach_all_of_them() -> None:
    model = source.load("mixtral-8x7b")
    assert roofline.expert_share(model) == pytest.approx(2 / 8)
    one, many = (roofline.touched_weights_bytes(model, "bf16", n) for n in (1, 512))
    experts = 32 * 8 * 3 * 4096 * 14336 * 2
    assert many - one == pytest.approx(experts * 0.75, rel=1e-6)


def test_prefill_is_bound_by_compute_and_decode_by_memory() -> None:
    model, h100 = source.load("llama-3.1-8b"), gpu.load("h100-sxm")
    rate = h100.rates["bf16"].high
    assert roofline.prefill_floor(model, h100.bandwidth.high, rate, 4096).bound == "compute"
    assert roofline.decode_floor(model, h100.bandwidth.high, rate, [4096]).bound == "memory"


def test_four_bit_weights_multiply_at_sixteen_bits() -> None:
    assert roofline.arithmetic("int4") == "bf16"
    assert roofline.arithmetic("q4_k_m") == "bf16"
    assert roofline.arithmetic("fp8") == "fp8"
    rate = roofline.rate_of(gpu.load("a100-sxm"), "fp8")
    assert rate is not None
    assert rate.high == 624e12
