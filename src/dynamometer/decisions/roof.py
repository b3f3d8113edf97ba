"""What a record knows of a model and its device, and the run's rate, in; the shares of the device's peaks out.

The facts are written into the record when the run is made (`model_weights_bytes`, `device_bytes_per_s`, …), so that it
can be judged later, on another machine, without the weights.
"""

from __future__ import annotations

from collections.abc import Mapping

from dynamometer.metrics.summary import Metrics
from dynamometer.models.bottleneck import Device, Model, decode_shares


def roof_shares(
    facts: Mapping[str, str | int | float], metrics: Metrics, tokens: tuple[float | None, float | None]
) -> tuple[float | None, float | None]:
    """(share of peak FLOP/s, of peak bytes/s) of the decoding; None where a fact or a figure is missing.

    `tokens`: mean prompt and answer. While it is decoded a sequence holds its prompt and, on average, half its answer.
    The batch is at most the engine's slots: what is in flight beyond them waits.
    """
    weights, cache, flop, flop_per_s, bytes_per_s, slots = (
        _number(facts, name)
        for name in (
            *("model_weights_bytes", "model_cache_bytes_per_token", "model_flop_per_token"),
            *("device_flop_per_s", "device_bytes_per_s", "slots"),
        )
    )
    prompt, answer = tokens
    rate, batch = metrics.output_tokens_per_s, metrics.concurrency_mean
    if not (rate and batch and weights and bytes_per_s and prompt is not None and answer is not None):
        return None, None
    running = min(batch, slots) if slots else batch
    model = Model(weights, cache or 0.0, flop or 0.0)
    compute, memory = decode_shares(rate, running, prompt + answer / 2, model, Device(flop_per_s or 0.0, bytes_per_s))
    return (compute if flop else None), memory


def _number(facts: Mapping[str, str | int | float], name: str) -> float | None:
    value = facts.get(name)
    return float(value) if isinstance(value, int | float) and value > 0 else None
