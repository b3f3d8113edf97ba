"""A claim in plain words in, a `Claim` out: which model, device and precision it names, and which figure it gives."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from dynamometer.decisions.claim import Claim, number
from dynamometer.decisions.formula import find
from dynamometer.errors import UsageError
from dynamometer.hardware import gpu, source

_NUM = r"([\d][\d,]*\.?\d*(?:e[-+]?\d+)?)"
_WORDS: Final = {"one": 1, "two": 2, "three": 3, "four": 4, "six": 6, "eight": 8, "sixteen": 16}
_PRECISION: Final = re.compile(
    (
        r"\b(fp32|fp16|bf16|bfloat16|float16|fp8|int8|int4|fp4|nf4|nvfp4|mxfp4|awq|gptq|q\d(?:_k)?(?:_[sml01])?|[48][- "
        r"]?bit)\b"
    ),
    re.IGNORECASE,
)


class _Pattern(msgspec.Struct, frozen=True):
    """A figure with its unit. `metric` may depend on the words around it."""

    regex: str
    metric: str
    unit: str
    unless: str = ""


_CHANGE: Final = (
    r"(?:gain|increase|improvement|reduction|drop|saving|decrease|faster|slower|higher|lower|less|more)s?\b"
)

# Tried in order: the first that matches gives the claim's metric.
_PATTERNS: Final = (
    _Pattern(rf"{_NUM}\s*(%|percent)\s*{_CHANGE}", "gain", "percent"),
    _Pattern(rf"{_CHANGE}\s*(?:of|by)\s*{_NUM}\s*(%|percent)", "gain", "percent"),
    _Pattern(rf"{_NUM}\s*(?:×|x|times)\s*(?:faster|speed-?up|slower)", "speedup", "ratio"),
    _Pattern(rf"{_NUM}\s*(J|mJ|Wh)\s*(?:/|per|a)\s*token", "energy_per_token", "J"),
    _Pattern(rf"{_NUM}\s*tokens?\s*(?:/|per)\s*(?:J|joule)", "tokens_per_joule", "tokens/J"),
    _Pattern(rf"\$\s*{_NUM}\s*(?:/|per|a)\s*(?:1?M|million)", "cost_per_million_tokens", "USD"),
    _Pattern(rf"(?:TTFT|first token)\D{{0,30}}?{_NUM}\s*(ms|s)\b", "ttft", "ms"),
    _Pattern(rf"{_NUM}\s*(ms|us|s)\s*(?:/|per|a)\s*(?:output )?token", "latency_per_token", "ms"),
    _Pattern(rf"tokens?\s+(?:every|each|in|within|takes)\s+{_NUM}\s*(ms|us|s)\b", "latency_per_token", "ms"),
    _Pattern(rf"(?:TPOT|ITL|per[- ]token latency|inter-token latency)\D{{0,30}}?{_NUM}\s*(ms|us)\b", "tpot", "ms"),
    _Pattern(
        rf"{_NUM}\s*(?:output |prompt |prefill )?(?:tokens?|tok|t)\s*(?:/|per)\s*(?:s\b|sec\b|second)",
        "rate",
        "tokens/s",
    ),
    _Pattern(rf"{_NUM}\s*([PTGM]FLOP/?S?|[PTG]OPS)\b", "peak_compute", "TFLOPS"),
    _Pattern(rf"{_NUM}\s*(TB/s|GB/s|Gb/s|Gbps)", "bandwidth", "GB/s"),
    _Pattern(rf"{_NUM}\s*([kKM]i?B|bytes|B)\s*(?:/|per|a)\s*token", "kv_bytes_per_token", "B"),
    _Pattern(rf"{_NUM}\s*(B|billion|M|million|T|trillion)\s*(?:active|activated)", "active_parameters", "billion"),
    _Pattern(rf"(?:activates?|active)\D{{0,25}}?{_NUM}\s*(B|billion)\b", "active_parameters", "billion"),
    _Pattern(rf"{_NUM}\s*(B|billion|M|million|T|trillion)\s*(?:parameters|params|weights)", "parameters", "billion"),
    _Pattern(rf"{_NUM}\s*(TiB|TB|GiB|GB|MiB|MB)\b", "size", "GB"),
    _Pattern(rf"{_NUM}\s*(?:×|x|times)\s*(?:faster|speed-?up|slower|less|more|higher|lower)?", "speedup", "ratio"),
    _Pattern(rf"{_NUM}\s*(%|percent)", "gain", "percent"),
    _Pattern(rf"{_NUM}\s*(kW|W)\b", "power", "W"),
    _Pattern(rf"{_NUM}\s*(ms|s)\b", "latency", "ms"),
)


def parse(text: str, identity: str = "claim") -> Claim:
    """A claim from one sentence. Raises UsageError for an empty one; what can't be read leaves its field empty."""
    if not text.strip():
        raise UsageError("the claim is empty; give a sentence such as 'DeepSeek-V3 in fp16 needs 24 GB'")
    rest = text
    model, rest = _cut(rest, _model_words())
    hardware, rest = _device(rest)
    precision = _PRECISION.search(rest)
    if precision:
        rest = rest[: precision.start()] + " " + rest[precision.end() :]
    metric, printed, unit = _figure(rest, text)
    return Claim(
        id=identity,
        metric=metric,
        value=number(printed) if printed else None,
        printed=printed,
        unit=unit,
        kind="text",
        model=model,
        hardware=hardware,
        precision=_canonical(precision[1]) if precision else "",
        batch=_batch(rest),
        input_tokens=_tokens(rest),
        context=text,
    )


def _canonical(text: str) -> str:
    plain = text.lower().replace(" ", "").replace("-", "")
    return {"4bit": "int4", "8bit": "int8"}.get(plain, plain)


def _model_words() -> Mapping[str, str]:
    """Spellings of models as they stand in prose."""
    return {key: value for key, value in source.names().items() if "/" not in key}


def _loose(spelling: str) -> str:
    """A spelling as a pattern: dashes, blanks and nothing are alike."""
    return r"[-_\s]?".join(re.escape(piece) for piece in re.split(r"[-_\s]+", spelling))


def _cut(text: str, spellings: Mapping[str, str]) -> tuple[str, str]:
    """The longest spelling that stands in the text, and the text without it."""
    for spelling in sorted(spellings, key=len, reverse=True):
        match = re.search(rf"(?<![\w.]){_loose(spelling)}(?![\w]|\.\d|-\d)", text, re.IGNORECASE)
        if match and len(spelling) > 1:
            return spellings[spelling], text[: match.start()] + " " + text[match.end() :]
    return "", text


def _device(text: str) -> tuple[str, str]:
    """A device with its count ("8x H100", "two A100s", "eight 80 GB H100 cards"), and the text without it."""
    link = re.search(
        r"\b(pci-?e[-\s]*(?:gen)?[-\s]*\d(?:\.0)?(?:[-\s]*x\s*\d+)?|nvlink[-\s]*\d)\b", text, re.IGNORECASE
    )
    names = {d.name: d.name for d in gpu.devices()}
    names |= {d.label: d.name for d in gpu.devices()} | dict(gpu.aliases())
    for spelling in sorted(names, key=len, reverse=True):
        match = re.search(rf"(?<![\w.]){_loose(spelling)}s?(?![\w])(?:[-\s]+\d+\s*GB\b)?", text, re.IGNORECASE)
        if match and len(spelling) > 1:
            before = text[: match.start()]
            count = re.search(
                r"(\d+|" + "|".join(_WORDS) + r")\s*(?:[x×*]\s*)?(?:\d+\s*GB\s+)?(?:NVIDIA\s+|AMD\s+)?$",
                before,
                re.IGNORECASE,
            )
            times = _count(count[1]) if count else 1
            start = count.start() if count and times > 1 else match.start()
            return (f"{times}x{names[spelling]}" if times > 1 else names[spelling]), text[:start] + " " + text[
                match.end() :
            ]
    if link:
        return link[1], text[: link.start()] + " " + text[link.end() :]
    return "", text


def _count(word: str) -> int:
    return _WORDS.get(word.lower(), int(word) if word.isdigit() and int(word) <= 1024 else 1)


def _figure(rest: str, whole: str) -> tuple[str, str, str]:
    """(metric, printed number, unit) of the claim."""
    formula = find(whole)
    equals = re.search(rf"(?:=|gives|is|predicts|equals|≈|->)\s*{_NUM}\s*(?:[a-zA-Z%/]*)\s*\.?\s*$", whole)
    if formula and equals:
        return "formula", equals[1].rstrip(".,"), ""
    fits = re.search(r"\b(?:fits?|runs?|can be served|served|serve)\b", rest, re.IGNORECASE)
    for pattern in _PATTERNS:
        match = re.search(pattern.regex, rest, re.IGNORECASE if "B|" not in pattern.regex else 0)
        if match:
            printed = match[1].rstrip(".,")
            unit = match[2] if match.lastindex and match.lastindex > 1 and match[2] else pattern.unit
            metric = _metric(pattern.metric, rest, whole)
            if (
                metric == "weights_memory"
                and fits
                and not re.search(r"weights|takes|needs|uses|size", rest, re.IGNORECASE)
            ):
                return "fits", "1" if not _denied(rest) else "0", "bool"
            return metric, printed, unit
    if fits:
        return "fits", "0" if _denied(rest) else "1", "bool"
    if re.search(r"attention|experts|MoE|\bMLA\b|\bGQA\b|mamba|window", rest, re.IGNORECASE):
        return "attention", "", "text"
    return "", "", ""


def _denied(text: str) -> bool:
    return re.search(r"\b(?:not|cannot|can't|doesn't|does not|won't|never)\b", text, re.IGNORECASE) is not None


def _metric(metric: str, rest: str, whole: str) -> str:
    """The metric's final name by the words around it."""

    def says(pattern: str) -> bool:
        return re.search(pattern, rest, re.IGNORECASE) is not None

    if metric == "size":
        if says(r"kv[- ]?cache|\bkv\b"):
            return "kv_memory"
        return (
            "peak_memory"
            if says(r"peak|vram|memory (?:use|usage|footprint)|in total|total memory|context|requests")
            else "weights_memory"
        )
    if metric == "rate":
        if says(r"prefill|prompt"):
            return "prefill_rate"
        return (
            "decode_rate"
            if says(r"single|one stream|batch (?:size )?1\b|per user|decode|batch[- ]?1\b")
            or not says(r"throughput|total|aggregate")
            else "throughput"
        )
    if metric == "bandwidth":
        if re.search(r"memory bandwidth|\bHBM|GDDR|LPDDR|VRAM", whole, re.IGNORECASE):
            return "memory_bandwidth"
        return "link_bandwidth" if re.search(r"pci|nvlink|link", whole, re.IGNORECASE) else "memory_bandwidth"
    if metric == "gain":
        if says(r"utili[sz]ation|efficiency|accuracy|hit rate|\bm[fb]u\b"):
            return "utilization"
        return "kv_share" if says(r"kv.*(share|of (?:the )?memory)|share") else "gain"
    return metric


def _batch(text: str) -> int:
    match = re.search(r"batch(?: size)?\s*(?:of|=|:)?\s*(\d+)", text, re.IGNORECASE)
    if match:
        return int(match[1])
    return (
        1
        if re.search(r"single[- ](?:stream|user|request|sequence)|one (?:stream|user|request)", text, re.IGNORECASE)
        else 0
    )


def _tokens(text: str) -> int:
    """A context or prompt length: "32K context", "at 2048 tokens", "16384-token prompt"."""
    match = re.search(
        r"(\d[\d,]*)\s*([kK]?)[-\s]*(?:tokens?\b(?!\s*(?:/|per))|token[- ](?:prompt|context)|context)", text
    )
    match = match or re.search(r"(?:context|length|prompt)\s*(?:of|=|:)?\s*(\d[\d,]*)\s*([kK]?)\b", text, re.IGNORECASE)
    match = match or re.search(r"(\d[\d,]*)\s*([kK])\b", text)
    return int(match[1].replace(",", "")) * (1024 if match[2] else 1) if match else 0
