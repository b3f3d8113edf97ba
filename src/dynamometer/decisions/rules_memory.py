"""Claims about bytes in, findings out: weights, cache, peaks, what fits, and each part's share.

The bound is a count: elements of the config times the bits of the format. Printed GB may mean 10^9 or 2^30 bytes; the
reading that favours the claim is used.
"""

from __future__ import annotations

import re
from typing import Final

from dynamometer.decisions.claim import Claim, byte_range, concurrency
from dynamometer.decisions.finding import Finding, implausible, impossible, inconsistent, not_checkable, possible
from dynamometer.decisions.subject import Subject, cited
from dynamometer.hardware import formats, source
from dynamometer.hardware.memory import Deployment, breakdown
from dynamometer.hardware.model import Model, kv_bytes, kv_bytes_per_token, parameters_total, state_bytes
from dynamometer.units import show_bytes
from dynamometer.units import significant as show

WEIGHTS: Final = frozenset(
    {"weights_memory", "weight_memory", "weights", "model_size", "weights_bytes", "checkpoint_size"}
)
CACHE: Final = frozenset({"kv_memory", "kv_cache", "kv_cache_memory", "kv_bytes", "cache_memory"})
PEAKS: Final = frozenset(
    {
        "memory",
        "peak_memory",
        "gpu_memory",
        "vram",
        "memory_usage",
        "memory_used",
        "memory_footprint",
        "total_memory",
        "ram",
    }
)
PER_TOKEN: Final = frozenset({"kv_bytes_per_token", "kv_per_token", "kv_cache_per_token"})
FITS: Final = frozenset({"fits", "fit_in_memory", "runs_on"})
SHARES: Final = frozenset({"kv_share", "weights_share", "kv_cache_share", "cache_share"})
ROOMS: Final = frozenset(
    {"max_concurrency", "max_sequences", "concurrent_requests", "max_context", "max_context_length"}
)
METRICS: Final = WEIGHTS | CACHE | PEAKS | PER_TOKEN | FITS | SHARES | ROOMS

_NARROWEST: Final = "q2_k"  # no usable format here has fewer bits
_NEAR: Final = 0.98  # printed figures round by up to 2 %
_CLOSE: Final = 0.90  # below this a count is missed by more than rounding and left-out parts explain
_OVER: Final = 1.35


def judge(s: Subject) -> list[Finding]:
    """Every memory rule that applies to the claim."""
    claim, model = s.claim, s.model
    if model is None:
        return _device_only(s)
    if parameters_total(model) is None and claim.metric not in PER_TOKEN | CACHE:
        return [not_checkable(f"the config of {model.name} does not say {', '.join(model.missing)}")]
    if claim.metric in FITS:
        return [_fits(s, model)]
    if claim.value is None:
        return [not_checkable("the claim has no number")]
    if claim.metric in SHARES:
        return [_share(s, model)]
    if claim.metric in ROOMS:
        return [_rooms(s, model)]
    if claim.metric in PER_TOKEN:
        return [_per_token(s, model)]
    span = byte_range(claim.value, claim.unit)
    if span is None:
        return [not_checkable(f"the unit {claim.unit!r} is no size; give GB, GiB, MB or MiB")]
    if claim.metric in CACHE:
        return [_cache(s, model, span)]
    return [_weights(s, model, span)] if claim.metric in WEIGHTS else [_peak(s, model, span)]


def _device_only(s: Subject) -> list[Finding]:
    """Without a model only the device's size bounds a peak."""
    claim = s.claim
    named = f"model {claim.model!r} is not known here" if claim.model else "no model is stated"
    span = byte_range(claim.value, claim.unit) if claim.value is not None else None
    if span and s.device and span[0] > s.memory * 1.02:
        line = f"{claim.printed} {claim.unit} is more than {s.count} × {show_bytes(s.device.memory_bytes.high)}"
        return [impossible(line, cited(s.device, s.device.memory_bytes))]
    return [not_checkable(f"{named}, so no bytes follow", "name the model, or give its config.json as the model")]


def format_of(s: Subject, model: Model) -> tuple[str, str]:
    """(format to judge by, how to say it): the stated one, else the narrowest, which favours a small claim."""
    if s.stated:
        return s.weights, s.weights
    return _NARROWEST, f"even {_NARROWEST}, the precision is not stated"


def _weights(s: Subject, model: Model, span: tuple[float, float]) -> Finding:
    kind, said = format_of(s, model)
    need = formats.weights_bytes(model, kind) or 0
    total = parameters_total(model) or 0
    line = (
        f"{model.name}: {show(total / 1e9, 4)} B weights as {said} are "
        f"{show(need / 1e9, 4)} GB ({show_bytes(need)}); claimed {_said(s.claim)}"
    )
    ratio = span[1] / need
    if s.count > 1 and 0.9 <= ratio * s.count <= 1.15:
        return possible(f"{line} on each of {s.count}", _of(model))
    return _small_or_large(s, model, line, ratio, span)


def _small_or_large(s: Subject, model: Model, line: str, ratio: float, span: tuple[float, float]) -> Finding:
    """Verdict on a size that should equal a count: less is impossible, much more needs a reason."""
    if ratio < _CLOSE:
        remedy = "fewer tokens, or a narrower cache" if s.claim.metric in CACHE else _smaller(s, model, span[1])
        return impossible(f"{line}, {ratio:.1%} of it", _of(model), remedy)
    if ratio < _NEAR:
        return implausible(
            f"{line}, {1 - ratio:.1%} too little even if GiB is meant", _of(model), "print the exact bytes"
        )
    if s.stated and ratio > _OVER and s.claim.metric in WEIGHTS | CACHE:
        return implausible(
            f"{line}, {ratio:.2f} times as much", _of(model), "say what else is counted (buffers, a wider format)"
        )
    return possible(line, _of(model))


def _smaller(s: Subject, model: Model, room: float) -> str:
    """What would be as small as the claim: fewer parameters at this format, or a narrower format."""
    kind = s.weights if s.stated else _NARROWEST
    need = formats.weights_bytes(model, kind) or 1
    total = parameters_total(model) or 0
    fewer = total * room / need
    like = [
        name
        for name, row in source.built_ins().items()
        if 0.85 <= row.published / fewer <= 1.08 and name != model.name and name.startswith(model.name[:8])
    ]
    hint = f", e.g. {like[0]}" if like else ""
    narrow = [name for name in ("fp8", "int4", "q2_k") if (formats.weights_bytes(model, name) or 0) <= room]
    return f"a model of {show(fewer / 1e9, 3)} B parameters{hint}" + (
        f", or {narrow[0]} weights" if narrow and s.stated else ""
    )


def _cache(s: Subject, model: Model, span: tuple[float, float]) -> Finding:
    tokens = s.claim.input_tokens + s.claim.output_tokens
    if not tokens:
        return not_checkable("no tokens are stated, so no cache follows", "state the context length")
    many = max(1, concurrency(s.claim))
    element = _element(s, model)
    need = kv_bytes(model, tokens, element) * many
    wide = kv_bytes(model, tokens, element, windowed=False, expanded=True) * many
    if need == 0:
        return not_checkable(f"{model.name} keeps no cache that grows")
    line = (
        f"{model.name}: {many} × {tokens:,} tokens × {kv_bytes_per_token(model, element):,.0f} "
        f"B = {show(need / 1e9, 4)} GB; claimed {_said(s.claim)}"
    )
    if span[0] <= wide * 1.05 and span[1] >= wide * 0.95 and wide > need * 1.05:
        return possible(f"{line}; as expanded or unwindowed cache it is {show(wide / 1e9, 4)} GB", _of(model))
    return _small_or_large(s, model, line, span[1] / need, span)


def _element(s: Subject, model: Model) -> float:
    return (
        1.0
        if re.search(r"(fp8|int8|8-bit) kv|kv[- ]?(cache )?(in )?(fp8|int8)", s.claim.context, re.IGNORECASE)
        else 2.0
    )


def _per_token(s: Subject, model: Model) -> Finding:
    claim = s.claim
    need = kv_bytes_per_token(model, _element(s, model))
    span = byte_range(claim.value or 0.0, claim.unit)
    if span is None:
        return not_checkable(f"the unit {claim.unit!r} is no size; give B or KB")
    line = f"{model.name}: {need:,.0f} B a token; claimed {_said(claim)}"
    if span[0] * 0.98 <= need <= span[1] * 1.02:
        return possible(line, _of(model))
    verdict = impossible if span[1] < need * 0.5 and _element(s, model) > 1 else inconsistent
    return verdict(line, _of(model), f"{need:,.0f} B, with 16-bit keys and values")


def least_bytes(s: Subject, model: Model) -> tuple[float, str]:
    """(bytes that must be held, how they come about): weights, and the cache and state of every sequence stated."""
    kind, said = format_of(s, model)
    weights = formats.weights_bytes(model, kind) or 0
    tokens, many = s.claim.input_tokens + s.claim.output_tokens, max(1, concurrency(s.claim))
    cache = kv_bytes(model, tokens, _element(s, model)) * many if tokens else 0.0
    held = weights + cache + state_bytes(model) * many
    text = f"weights as {said} {show(weights / 1e9, 4)} GB"
    if cache:
        text += f" + cache {many} × {tokens:,} tokens {show(cache / 1e9, 4)} GB = {show(held / 1e9, 4)} GB"
    return held, text


def _peak(s: Subject, model: Model, span: tuple[float, float]) -> Finding:
    need, text = least_bytes(s, model)
    line = f"{model.name}: {text}; claimed {_said(s.claim)}"
    ratio = span[1] / need
    if s.count > 1 and ratio * s.count >= 1:
        ratio *= s.count
    if s.device and span[0] > s.memory * 1.02:
        return impossible(f"{line}, more than {s.device.label} has", cited(s.device, s.device.memory_bytes))
    if ratio < _CLOSE:
        return impossible(f"{line}, {ratio:.1%} of it", _of(model), _smaller(s, model, span[1]))
    if ratio < _NEAR:
        return implausible(f"{line}, {1 - ratio:.1%} too little", _of(model), "print the exact bytes")
    extra = _expanded(s, model)
    return possible(line + (f"; {extra}" if extra else ""), _of(model))


def _expanded(s: Subject, model: Model) -> str:
    """How much it is when latents are cached as full keys and values."""
    tokens, many = s.claim.input_tokens + s.claim.output_tokens, max(1, concurrency(s.claim))
    if not tokens or not model.latent_rank:
        return ""
    wide = kv_bytes(model, tokens, _element(s, model), expanded=True) * many
    total = (formats.weights_bytes(model, format_of(s, model)[0]) or 0) + wide
    return f"with expanded keys and values {show(total / 1e9, 4)} GB"


def _fits(s: Subject, model: Model) -> Finding:
    claim = s.claim
    capacity = s.memory or _stated_capacity(claim)
    if not capacity:
        return not_checkable("no device or memory is stated", "name the device")
    need, text = least_bytes(s, model)
    where = cited(s.device, s.device.memory_bytes) if s.device else "memory as stated"
    line = f"{model.name}: {text} against {show(capacity / 1e9, 4)} GB"
    if not s.stated:
        line += f"; as stored {show((formats.weights_bytes(model) or 0) / 1e9, 4)} GB"
    says_fits = claim.value != 0
    if says_fits and need > capacity:
        return impossible(
            line, f"{_of(model)}; {where}", f"{need / capacity:.2g} times the memory, or a narrower format"
        )
    if says_fits and need > 0.95 * capacity:
        return implausible(
            f"{line}: under 5 % is left for working memory", f"{_of(model)}; {where}", "a narrower format"
        )
    if not says_fits and need < 0.85 * capacity and s.stated:
        return inconsistent(f"{line}: it does fit", f"{_of(model)}; {where}")
    return possible(line, f"{_of(model)}; {where}")


def _stated_capacity(claim: Claim) -> float:
    match = re.search(r"([\d.]+)\s*(GB|GiB)\b", f"{claim.hardware} {claim.context}")
    span = byte_range(float(match[1]), match[2]) if match else None
    return span[1] if span else 0.0


def _share(s: Subject, model: Model) -> Finding:
    """A part's share of the memory: shares must add up, and cache against weights follows from the config."""
    claim = s.claim
    parts = [
        float(n)
        for n in re.findall(
            r"(?:weights?|buffers?|activations?|other|kv|cache|overhead)\s+(?:are\s+|is\s+)?(\d+(?:\.\d+)?)",
            claim.context,
        )
    ]
    value = claim.value or 0.0
    if len(parts) >= 2 and abs(value + sum(parts) - 100) > 1.5:
        return inconsistent(
            f"the shares {value:g} + {' + '.join(f'{p:g}' for p in parts)} = {value + sum(parts):g} %",
            "shares of one whole add up to 100 %",
        )
    tokens, many = claim.input_tokens + claim.output_tokens, max(1, concurrency(claim))
    if not tokens:
        return not_checkable("no tokens are stated, so no cache follows", "state the context length")
    kind, said = (s.weights, s.weights) if s.stated else ("auto", "stored")
    weights = formats.weights_bytes(model, kind) or 1
    cache = kv_bytes(model, tokens, _element(s, model), expanded=False) * many
    most = 100 * cache / (cache + weights)
    share = most if "weights" not in claim.metric else 100 - most
    line = (
        f"{model.name}: cache {many} × {tokens:,} tokens {show(cache / 1e9, 3)} GB beside "
        f"{show(weights / 1e9, 4)} GB of {said} weights: the cache is at most {most:.1f} %, claimed {value:g} %"
    )
    if "weights" in claim.metric:
        return possible(line, _of(model)) if value <= share + 2 else impossible(line, _of(model))
    if value > most * 1.1 + 1:
        other = next((p for p in parts if p > 0), 0.0)
        needed = value / (other or (100 - value)) * weights / (cache / many)
        return impossible(
            line, _of(model), f"about {needed:.0f} such sequences at once, or a pre-allocated pool counted as cache"
        )
    return possible(line, _of(model))


def _rooms(s: Subject, model: Model) -> Finding:
    """How many sequences, or how long a context, a device can hold."""
    claim = s.claim
    if not s.memory:
        return not_checkable("no device is stated", "name the device")
    kind, said = format_of(s, model)
    d = Deployment(context=max(1, claim.input_tokens + claim.output_tokens), weights=kind)
    b = breakdown(model, d)
    room = s.memory - (b.weights_all or 0)
    of_context = "context" in claim.metric
    value = claim.value or 0.0
    tokens = value * max(1, concurrency(claim)) if of_context else value * (claim.input_tokens + claim.output_tokens)
    if not tokens:
        return not_checkable("no tokens are stated", "state the context length")
    need = kv_bytes(model, int(value if of_context else d.context), _element(s, model)) * (
        max(1, concurrency(claim)) if of_context else value
    )
    line = (
        f"{model.name} as {said} on {s.count} × {claim.hardware}: {show_bytes(max(room, 0))} "
        f"are left beside the weights, {show_bytes(need)} of cache are needed"
    )
    if need > room:
        return impossible(line, _of(model), "shorter sequences, a narrower cache, or more devices")
    return (
        implausible(line, _of(model), "leave room for working memory")
        if need > 0.95 * room
        else possible(line, _of(model))
    )


def _said(claim: Claim) -> str:
    return f"{claim.printed} {claim.unit}".strip()


def _of(model: Model) -> str:
    return f"parameter count and cache shape from the {model.source}"
