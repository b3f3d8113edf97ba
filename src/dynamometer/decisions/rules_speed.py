"""Claims about time in, findings out: tokens a second, milliseconds a token, time to first token, against the
roofline floor.

A step cannot end before its bytes have crossed the memory bus and its FLOPs have run at the dense peak. Being slower
than the floor breaks no bound.
"""

from __future__ import annotations

import re
from typing import Final

from dynamometer.decisions.claim import concurrency, seconds_of
from dynamometer.decisions.finding import Finding, implausible, impossible, not_checkable, possible
from dynamometer.decisions.rules_memory import least_bytes
from dynamometer.decisions.subject import Subject, cited
from dynamometer.hardware import gpu, roofline
from dynamometer.hardware.model import Model, attention_flops, matmul_active, prefill_flops
from dynamometer.units import significant as show

PER_TOKEN: Final = frozenset(
    {
        "latency_per_token",
        "tpot",
        "itl",
        "time_per_output_token",
        "inter_token_latency",
        "token_latency",
        "decode_latency",
        "step_time",
    }
)
RATES: Final = frozenset(
    {
        "throughput",
        "decode_rate",
        "tokens_per_second",
        "generation_speed",
        "output_throughput",
        "decode_throughput",
        "speed",
        "tps",
    }
)
PREFILL_RATES: Final = frozenset({"prefill_rate", "prefill_throughput", "prompt_throughput", "input_throughput"})
FIRST: Final = frozenset({"ttft", "time_to_first_token", "prefill_latency", "prefill_time"})
WINDOW: Final = frozenset({"speedup"})
WHOLE: Final = frozenset(
    {"latency", "e2e_latency", "total_latency", "response_time", "request_latency", "end_to_end_latency"}
)
METRICS: Final = PER_TOKEN | RATES | PREFILL_RATES | FIRST | WHOLE

_REACHED: Final = 0.92  # of the datasheet bandwidth: the best seen at batch 1 is 0.81
_CRAWL: Final = 0.01  # below this share of the floor's speed something else than the model was timed
_DRAFTS: Final = re.compile(r"specul|draft|medusa|eagle|\bmtp\b|lookahead", re.IGNORECASE)
_SOURCE: Final = "roofline: bytes read over bandwidth, FLOPs over dense peak"


def judge(s: Subject) -> list[Finding]:
    """Every speed rule that applies."""
    claim, model = s.claim, s.model
    if claim.value is None or claim.value <= 0:
        return [not_checkable("the claim has no speed above 0")]
    if model is None:
        named = f"model {claim.model!r} is not known here" if claim.model else "no model is stated"
        return [not_checkable(f"{named}, so no work per token follows", "name the model")]
    if model.missing:
        return [not_checkable(f"the config of {model.name} does not say {', '.join(model.missing)}")]
    if s.device is None:
        return [_anywhere(s, model)]
    if claim.metric in FIRST or claim.metric in PREFILL_RATES:
        return [_prefill(s, model)]
    return [_whole_answer(s, model) if claim.metric in WHOLE else _decode(s, model)]


def _whole_answer(s: Subject, model: Model) -> Finding:
    """A whole answer takes a prefill and a step for each further token."""
    assert s.device is not None
    claim = s.claim
    took = seconds_of(claim.value or 0.0, claim.unit)
    if took is None or not claim.output_tokens:
        return not_checkable("the unit is no time, or the output tokens are not stated", "state the output tokens")
    weights = s.weights or "auto"
    rate = roofline.rate_of(s.device, roofline.arithmetic(weights))
    peak = rate.high * s.count if rate else 0.0
    first = roofline.prefill_floor(model, s.bandwidth, peak, claim.input_tokens or 1, weights).seconds
    step = floor_of(s, model, max(1, concurrency(claim)), weights).seconds
    least = first + step * (claim.output_tokens - 1)
    line = (
        f"{model.name}: prefill {show(first * 1e3, 3)} ms + {claim.output_tokens - 1:,} steps × "
        f"{show(step * 1e3, 3)} ms = at least {show(least * 1e3, 3)} ms; claimed {show(took * 1e3, 3)} ms"
    )
    where = f"{_SOURCE}; {cited(s.device, s.device.bandwidth)}"
    spill = _spill(s, model, took / claim.output_tokens)
    if spill:
        return spill
    return (
        impossible(f"{line}, {show(least / took, 3)} times too fast", where, "fewer output tokens")
        if took < least * 0.98
        else possible(line, where)
    )


def _step_seconds(s: Subject, batch: int) -> float | None:
    """Seconds of one decode step that the claim implies; None when its unit is neither a time nor a rate."""
    claim, value = s.claim, s.claim.value or 0.0
    if claim.metric in PER_TOKEN:
        return seconds_of(value, claim.unit)
    unit = claim.unit.lower().replace(" ", "")
    if "tok" not in unit and unit not in ("tps", "t/s", "1/s"):
        return None
    per_user = "user" in unit or "user" in claim.metric
    per_device = re.search(r"/(gpu|device|card)", unit) is not None
    return (1 if per_user else batch) / (value * (s.count if per_device else 1))


def _decode(s: Subject, model: Model) -> Finding:
    claim = s.claim
    batch = concurrency(claim)
    if not batch and claim.metric == "throughput":
        return _unlimited(s, model)
    step = _step_seconds(s, max(1, batch))
    if step is None:
        return not_checkable(f"the unit {claim.unit!r} is neither tokens/s nor a time")
    spill = _spill(s, model, step)
    return spill or _against_floor(s, model, max(1, batch), step)


def floor_of(s: Subject, model: Model, batch: int, weights: str) -> roofline.Floor:
    """The floor of one decode step on the claim's devices, with the best published figures."""
    assert s.device is not None
    rate = roofline.rate_of(s.device, roofline.arithmetic(weights))
    return roofline.decode_floor(
        model, s.bandwidth, rate.high * s.count if rate else 0.0, [max(1, s.claim.input_tokens)] * batch, weights
    )


def _against_floor(s: Subject, model: Model, batch: int, step: float) -> Finding:
    assert s.device is not None
    weights = s.weights or "auto"
    floor = floor_of(s, model, batch, weights)
    share = floor.seconds / step
    read = (
        f"{show(floor.bytes_read / 1e9, 4)} GB" if floor.bound == "memory" else f"{show(floor.flops / 1e12, 3)} TFLOP"
    )
    line = (
        f"{model.name} {weights or 'as stored'}, batch {batch}: a step "
        f"must {'read' if floor.bound == 'memory' else 'compute'} {read}, "
        f"at least {show(floor.seconds * 1e3, 3)} ms on {s.count} × "
        f"{s.device.name}, so at most {show(batch / floor.seconds, 4)} tokens/s; "
        f"claimed {show(step * 1e3, 3)} ms a step"
    )
    where = f"{_SOURCE}; {cited(s.device, s.device.bandwidth)}"
    if share > 1.02:
        return _too_fast(s, model, line, where, share)
    if share > _REACHED:
        return implausible(
            f"{line}, {share:.0%} of the bound", where, "nobody is known to reach more than nine tenths; measure again"
        )
    if share < _CRAWL:
        return implausible(
            f"{line}, {1 / share:,.0f} times the floor",
            where,
            "something else than the model was timed; state the unit of work",
        )
    return possible(f"{line}, {share:.0%} of the bound", where)


def _too_fast(s: Subject, model: Model, line: str, where: str, share: float) -> Finding:
    """Faster than the floor: impossible, unless several tokens may come from one step or the precision is open."""
    if _DRAFTS.search(s.claim.context) and share < 5:
        return implausible(f"{line}; {share:.2g} tokens a step are needed", where, "state the accepted draft length")
    if not s.stated:
        narrow = floor_of(s, model, max(1, concurrency(s.claim)), "int4").seconds
        stored = floor_of(s, model, max(1, concurrency(s.claim)), "auto").seconds
        if narrow * share < stored:
            return implausible(f"{line}; with 4-bit weights it is within the bound", where, "state the precision")
    faster = [d.name for d in gpu.devices() if d.bandwidth.low * s.count >= s.bandwidth * share and d.kind == "gpu"]
    bits = [
        kind
        for kind in ("fp8", "int4")
        if floor_of(s, model, max(1, concurrency(s.claim)), kind).seconds * share * 1.0
        <= floor_of(s, model, max(1, concurrency(s.claim)), s.weights or "auto").seconds
    ]
    ways = [f"{bits[0]} weights"] if bits else []
    ways += [f"a device such as {faster[0]}"] if faster else []
    ways += [f"{share:.2g} accepted draft tokens a step"] if share < 5 else []
    return impossible(f"{line}, {share:.2f} times too fast", where, " or ".join(ways))


def _spill(s: Subject, model: Model, step: float) -> Finding | None:
    """When the weights do not fit, each step must fetch the rest over the host's link."""
    assert s.device is not None
    need, text = least_bytes(s, model)
    over = need - s.memory
    if over <= 0:
        return None
    link = (s.device.pcie.high if s.device.pcie else 64e9) * s.count
    active = roofline.touched_weights_bytes(model, s.weights or "q2_k", 1)
    fetched = active * over / need
    least = fetched / link
    line = (
        f"{model.name}: {text} against {show(s.memory / 1e9, 4)} GB: it does not fit; fetching "
        f"{show(fetched / 1e9, 3)} GB a token over {link / 1e9:.3g} GB/s "
        f"takes {show(least * 1e3, 3)} ms, claimed {show(step * 1e3, 3)} ms"
    )
    if step < least:
        return impossible(
            line, cited(s.device, s.device.memory_bytes), f"{need / s.memory:.2g} times the memory, or a smaller model"
        )
    return implausible(line, cited(s.device, s.device.memory_bytes), "say how the weights are offloaded")


def _unlimited(s: Subject, model: Model) -> Finding:
    """Throughput at an unstated batch: only the compute peak bounds it."""
    assert s.device is not None
    claim = s.claim
    rate = roofline.rate_of(s.device, roofline.arithmetic(s.weights or "auto"))
    need, text = least_bytes(s, model)
    if need > s.memory:
        return impossible(
            f"{model.name}: {text} against {show(s.memory / 1e9, 4)} GB: it does not fit",
            cited(s.device, s.device.memory_bytes),
        )
    if rate is None:
        return not_checkable("the batch is not stated, and no compute peak of the device is known", "state the batch")
    most = rate.high * s.count / (2 * matmul_active(model))
    line = (
        f"{model.name}: {show(2 * matmul_active(model) / 1e9, 3)} "
        f"GFLOP a token at {show(rate.high * s.count / 1e12, 4)} "
        f"TFLOPS allow {show(most, 4)} tokens/s at any batch; claimed {claim.printed}"
    )
    value = claim.value or 0.0
    if value > most * 1.02:
        return impossible(line, cited(s.device, rate))
    return (
        implausible(line, cited(s.device, rate), "state batch and lengths")
        if value > 0.6 * most
        else possible(line, cited(s.device, rate))
    )


def _prefill(s: Subject, model: Model) -> Finding:
    assert s.device is not None
    claim = s.claim
    weights = s.weights or "auto"
    tokens = claim.input_tokens
    if not tokens and claim.metric in FIRST:
        return not_checkable("the prompt length is not stated", "state the input tokens")
    rate = roofline.rate_of(s.device, roofline.arithmetic(weights))
    many = max(1, concurrency(claim)) if claim.metric in PREFILL_RATES else 1
    floor = roofline.prefill_floor(
        model, s.bandwidth, rate.high * s.count if rate else 0.0, (tokens or 2048) * many, weights
    )
    value = claim.value or 0.0
    took = seconds_of(value, claim.unit) if claim.metric in FIRST else (tokens or 2048) * many / value
    if took is None:
        return not_checkable(f"the unit {claim.unit!r} is no time")
    share = floor.seconds / took
    line = (
        f"{model.name}: prefill of {(tokens or 2048) * many:,} tokens is {show(floor.flops / 1e12, 4)} "
        f"TFLOP, at least {show(floor.seconds * 1e3, 3)} ms; claimed {show(took * 1e3, 3)} ms"
    )
    where = f"{_SOURCE}; {cited(s.device, rate or s.device.bandwidth)}"
    if share > 1.02:
        return impossible(f"{line}, {share:.2f} times too fast", where, "a cached prefix, or more devices")
    return (
        implausible(f"{line}, {share:.0%} of the peak", where)
        if share > _REACHED
        else possible(f"{line}, {share:.0%} of the peak", where)
    )


def _anywhere(s: Subject, model: Model) -> Finding:
    """Without a device: which devices could do it at all."""
    step = _step_seconds(s, max(1, concurrency(s.claim)))
    if step is None or s.claim.metric in FIRST | PREFILL_RATES:
        return not_checkable("no device is stated", "name the device")
    read = roofline.touched_weights_bytes(model, s.weights or "int4", max(1, concurrency(s.claim)))
    wanted = read / step
    able = [d.name for d in gpu.devices() if d.bandwidth.high >= wanted]
    line = (
        f"{model.name}: {show(read / 1e9, 4)} GB a step in {show(step * 1e3, 3)} ms need {show(wanted / 1e9, 4)} GB/s"
    )
    if not able:
        return implausible(f"{line}, more than any single device in the table", _SOURCE, "name the devices")
    return not_checkable(f"no device is stated; {line}, which {len(able)} devices in the table have", "name the device")


def window_speedup(s: Subject) -> Finding | None:
    """A claimed speed-up from attending to a window: Amdahl's law with attention's share of the FLOPs."""
    claim, model = s.claim, s.model
    match = re.search(r"window (?:of )?(\d+)(?:.*?(\d+) global)?", claim.context, re.IGNORECASE)
    if not match or model is None or model.missing or not claim.input_tokens or not claim.value:
        return None
    width = int(match[1]) + int(match[2] or 0)
    whole, attention = prefill_flops(model, claim.input_tokens), attention_flops(model, claim.input_tokens)
    near = attention_flops(model, claim.input_tokens, window=width)
    end_to_end, alone = whole / (whole - attention + near), attention / near
    line = (
        f"{model.name} at {claim.input_tokens:,} tokens: attention is "
        f"{attention / whole:.0%} of the prefill's FLOPs and {near / attention:.1%} of it "
        f"stays at {width} keys, so at most {end_to_end:.2f} times end to end "
        f"and {alone:.1f} times for attention alone; claimed {claim.printed}"
    )
    where = "Amdahl's law on the model's FLOPs"
    if claim.value > alone * 1.05:
        return impossible(line, where)
    if claim.value > end_to_end * 1.1:
        return implausible(line, where, "say that the times are of attention alone")
    return possible(line, where)
