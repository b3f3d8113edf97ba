"""Claims about a model's build in, findings out: parameter counts, layers, heads, experts, kind of attention, from
its config."""

from __future__ import annotations

import re
from typing import Final

from dynamometer.decisions.finding import Finding, impossible, inconsistent, not_checkable, possible
from dynamometer.decisions.subject import Subject
from dynamometer.hardware.model import Model, parameters_active, parameters_total
from dynamometer.units import significant as show

ACTIVE: Final = frozenset({"active_parameters", "parameters_active", "activated_parameters"})
TOTAL: Final = frozenset({"parameters", "total_parameters", "parameters_total", "parameter_count", "model_parameters"})
COUNTS: Final = frozenset(
    {"layers", "num_layers", "hidden_size", "vocab_size", "attention_heads", "heads", "context_length", "kv_heads"}
)
KINDS: Final = frozenset({"attention", "architecture", "attention_type", "positional", "mlp"})
METRICS: Final = ACTIVE | TOTAL | COUNTS | KINDS

_NEAR: Final = 0.03


def judge(s: Subject) -> list[Finding]:
    """Every rule on the build that applies."""
    model = s.model
    if model is None:
        return [
            not_checkable(
                f"model {s.claim.model or 'not stated'!r} is not known here", "give its config.json as the model"
            )
        ]
    if s.claim.metric in ACTIVE | TOTAL:
        return [_parameters(s, model)]
    if s.claim.metric in COUNTS:
        return [_count(s, model)]
    return [_kind(s, model)]


def _parameters(s: Subject, model: Model) -> Finding:
    claim = s.claim
    known = parameters_active(model) if claim.metric in ACTIVE else parameters_total(model)
    if known is None or claim.value is None:
        return not_checkable(f"the config of {model.name} does not say {', '.join(model.missing) or 'that'}")
    scale = {"b": 1e9, "billion": 1e9, "m": 1e6, "million": 1e6, "t": 1e12, "trillion": 1e12}.get(
        claim.unit.strip().lower(), 1.0
    )
    value = claim.value * scale
    # published active counts leave the embedding in or out, so both agree
    table = sum(part.elements for part in model.parts if part.kind == "embedding")
    low, high = sorted((known - table, known))
    line = (
        f"{model.name}: {show(known / 1e9, 4)} B {'active' if claim.metric in ACTIVE else 'in all'} "
        f"by its config; claimed {show(value / 1e9, 4)} B"
    )
    if low * (1 - _NEAR) <= value <= high * (1 + _NEAR):
        return possible(line, f"the {model.source}")
    verdict = impossible if not 0.7 <= value / known <= 1.4 else inconsistent
    return verdict(line, f"the {model.source}", f"{show(known / 1e9, 4)} B, or another model's name")


def _count(s: Subject, model: Model) -> Finding:
    known = {
        "layers": model.layers,
        "num_layers": model.layers,
        "hidden_size": model.hidden,
        "vocab_size": model.vocab,
        "heads": model.heads,
        "attention_heads": model.heads,
        "context_length": model.context_max,
        "kv_heads": max((cache.heads for cache in model.caches), default=0),
    }[s.claim.metric]
    if not known or s.claim.value is None:
        return not_checkable(f"the config of {model.name} does not give {s.claim.metric}")
    line = f"{model.name}: {s.claim.metric} {known:,} by its config; claimed {s.claim.printed}"
    same = known == s.claim.value or (s.claim.metric == "context_length" and abs(known - s.claim.value) <= 0.03 * known)
    return possible(line, f"the {model.source}") if same else inconsistent(line, f"the {model.source}", f"{known:,}")


def traits(model: Model) -> dict[str, bool]:
    """What the model is, by the words that claims use."""
    latent = model.latent_rank > 0
    heads = max((cache.heads for cache in model.caches), default=0)
    return {
        r"sliding[- ]window|local attention|window(?:ed)? attention": any(cache.window for cache in model.caches),
        r"\bMLA\b|latent attention": latent,
        r"\bGQA\b|grouped[- ]query": not latent and 1 < heads < model.heads,
        r"\bMQA\b|multi[- ]query": not latent and heads == 1,
        r"\bMHA\b|multi[- ]head attention": not latent and heads == model.heads,
        r"mixture of experts|\bMoE\b|experts": any(part.kind == "experts" for part in model.parts),
        r"\bmamba\b|state[- ]space|linear attention|recurrent": model.recurrent_layers > 0,
    }


def _kind(s: Subject, model: Model) -> Finding:
    claim = s.claim
    text = f"{claim.printed} {claim.context}"
    named = {word: has for word, has in traits(model).items() if re.search(word, text, re.IGNORECASE)}
    built = ", ".join(_words(word) for word, has in traits(model).items() if has) or "plain attention and MLPs"
    denied = re.search(r"\b(?:no|not|without|instead of)\b", text, re.IGNORECASE) is not None
    if not named:
        return not_checkable(f"{model.name} is built of {built}; the claim names nothing that is known here")
    wrong = [word for word, has in named.items() if has == denied]
    line = f"{model.name} is built of {built}; claimed: {text.strip()}"
    if wrong:
        return inconsistent(line, f"the {model.source}", f"{built}")
    return possible(line, f"the {model.source}")


def _words(pattern: str) -> str:
    """The readable name of a trait."""
    return re.sub(
        r"\\b|\(\?:.*?\)|\[- \]",
        lambda m: " " if m[0] == "[- ]" else "",
        pattern.split("|")[-1]
        if "MLA" in pattern or "GQA" in pattern or "MQA" in pattern or "MHA" in pattern
        else pattern.split("|")[0],
    ).strip()
