"""A CSV of claims in, typed `Claim`s out; and what every rule needs of a claim: bytes, tokens, counts, printed
digits."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Final

import msgspec

from dynamometer.errors import MissingPath, UsageError
from dynamometer.units import GB, GIB, KB, KIB, MB, MIB, TB, TIB

COLUMNS: Final = (
    "id",
    "where",
    "kind",
    "model",
    "hardware",
    "precision",
    "batch",
    "input_tokens",
    "output_tokens",
    "metric",
    "value",
    "unit",
    "context",
)
_NEEDED: Final = ("metric", "value")


class Claim(msgspec.Struct, frozen=True):
    """One published figure. `printed` is the value as it was written, for its digits; 0 tokens or batch: not stated."""

    id: str
    metric: str
    value: float | None
    printed: str = ""
    unit: str = ""
    where: str = ""
    kind: str = ""
    model: str = ""
    hardware: str = ""
    precision: str = ""
    batch: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    context: str = ""


def read_csv(path: Path) -> list[Claim]:
    """Claims of a CSV with the columns of the docs; unknown columns are ignored, missing ones are empty."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as absent:
        raise MissingPath(f"{path} is not there; give a CSV of claims, or one claim as text") from absent
    except (OSError, UnicodeDecodeError) as wrong:
        raise UsageError(f"{path} cannot be read as UTF-8 text ({wrong}); give a CSV of claims") from wrong
    return parse_csv(text, str(path))


def parse_csv(text: str, name: str) -> list[Claim]:
    """Claims of CSV text. The delimiter may be a comma, a semicolon or a tab."""
    head = text.split("\n", 1)[0]
    delimiter = max(",;\t", key=head.count)
    rows = csv.DictReader(io.StringIO(text), delimiter=delimiter)
    fields = [str(field).strip().lower() for field in rows.fieldnames or []]
    absent = [column for column in _NEEDED if column not in fields]
    if absent and "claim" not in fields:
        raise UsageError(
            f"{name} has no column {', '.join(absent)}; a claims file has {', '.join(COLUMNS)}, or one column claim"
        )
    claims = []
    for number, row in enumerate(rows, start=1):
        cells = {
            str(k).strip().lower(): str(v or "").strip()
            for k, v in row.items()
            if k is not None and not isinstance(v, list)
        }
        if any(cells.values()):
            claims.append(_claim(cells, f"{name}, row {number}", f"row{number}"))
    if not claims:
        raise UsageError(f"{name} holds no claims; give a CSV with at least one row under its header")
    return claims


def _claim(cells: dict[str, str], where: str, fallback: str) -> Claim:
    text = cells.get("claim", "")
    if text and not cells.get("metric"):
        from dynamometer.decisions.claimtext import parse

        return parse(text, cells.get("id") or fallback)
    printed = cells.get("value", "")
    return Claim(
        id=cells.get("id") or fallback,
        metric=re.sub(r"[\s\-]+", "_", cells.get("metric", "").lower()),
        value=number(printed),
        printed=printed,
        unit=cells.get("unit", ""),
        where=cells.get("where", ""),
        kind=cells.get("kind", "").lower(),
        model=cells.get("model", ""),
        hardware=cells.get("hardware", ""),
        precision=cells.get("precision", "").lower(),
        batch=_whole(cells.get("batch", ""), where, "batch"),
        input_tokens=_whole(cells.get("input_tokens", ""), where, "input_tokens"),
        output_tokens=_whole(cells.get("output_tokens", ""), where, "output_tokens"),
        context=cells.get("context", ""),
    )


def number(text: str) -> float | None:
    """A printed number: "1,234.5", "2e9", "true", "45%"; None when it is none."""
    plain = text.strip().lower().replace(",", "").rstrip("%x×").strip()
    if plain in ("true", "yes"):
        return 1.0
    if plain in ("false", "no"):
        return 0.0
    try:
        value = float(plain)
    except ValueError:
        return None
    return value if abs(value) < float("inf") else None


def _whole(text: str, where: str, what: str) -> int:
    """Tokens or sequences: 2048, 2k, 32K; empty is not stated."""
    match = re.fullmatch(r"([\d,.]+)\s*([kKmM]?)", text)
    if not text:
        return 0
    if not match:
        raise UsageError(f"{where}: {what} is {text!r}; give a whole number or leave it empty")
    return round(float(match[1].replace(",", "")) * {"": 1, "k": 1024, "m": 10**6}[match[2].lower()])


_BYTES: Final = {"b": 1, "kb": KB, "mb": MB, "gb": GB, "tb": TB, "kib": KIB, "mib": MIB, "gib": GIB, "tib": TIB}
_LOOSE: Final = {"kb": KIB, "mb": MIB, "gb": GIB, "tb": TIB}


def byte_range(value: float, unit: str) -> tuple[float, float] | None:
    """(low, high) bytes of a printed size. "GB" is often written for GiB, so it spans both; None for another unit."""
    key = unit.strip().lower().replace("bytes", "b").split("/")[0]
    if key not in _BYTES:
        return None
    return value * _BYTES[key], value * _LOOSE.get(key, _BYTES[key])


def half_digit(printed: str) -> float:
    """Half a unit of the last digit that was printed: 4.4 -> 0.05, 1284 -> 0.5."""
    plain = printed.strip().replace(",", "").rstrip("%x× ")
    decimals = len(plain.split(".")[1]) if re.fullmatch(r"[-+]?\d*\.\d+", plain) else 0
    return 0.5 * 10.0**-decimals


def concurrency(claim: Claim) -> int:
    """Sequences at once: the batch column, or what the context counts ("18 concurrent 32K requests", "64 users")."""
    text = claim.context
    found = [int(n) for n in re.findall(r"(\d+)\s+(?:concurrent|simultaneous|parallel)", text)]
    found += [int(n) for n in re.findall(r"(\d+)\s+(?:\w+\s+)?(?:users|requests|sequences|streams|sessions)\b", text)]
    found += [int(n) for n in re.findall(r"(?:batch(?: size)?|concurrency)\s*(?:of|=|:)?\s*(\d+)", text, re.IGNORECASE)]
    return max([claim.batch, *found, 0])


def seconds_of(value: float, unit: str) -> float | None:
    """Seconds of a printed time, per whatever: "ms", "ms/token", "s", "us"."""
    head = unit.strip().lower().split("/")[0].split(" ")[0]
    scale = {
        "s": 1.0,
        "sec": 1.0,
        "seconds": 1.0,
        "ms": 1e-3,
        "milliseconds": 1e-3,
        "us": 1e-6,
        "µs": 1e-6,
        "ns": 1e-9,
        "min": 60.0,
    }
    return value * scale[head] if head in scale else None


_TOKENS_A_SECOND: Final = re.compile(r"tok|^tps$|^t/s$")
_TIMES: Final = re.compile(r"^(ms|s|us|µs|sec|seconds|milliseconds|min)(/|$|\b)")


def classify(claim: Claim) -> Claim:
    """The claim with a metric that the rules know, told by its unit and by words in its name; unchanged when none
    fits."""
    metric, unit = claim.metric, claim.unit.strip().lower()
    for pattern, name in _BY_UNIT:
        if pattern.search(unit):
            for words, better in name:
                if re.search(words, f"{metric} {claim.kind} {claim.hardware.lower()}"):
                    return msgspec.structs.replace(claim, metric=better)
    return claim


# unit -> words in the metric, the kind or the hardware -> the metric's usual name; the first that matches
_BY_UNIT: Final = (
    (
        re.compile(r"^(mj|j|kj|wh|mwh|kwh)(/|$)|tok\w*/j"),
        ((r"energy|joule|watt_hour|per_token|tokens", "energy_per_token"),),
    ),
    (
        re.compile(r"^[kmgtp]i?b(it|yte)?s?(/s|ps)$"),
        ((r"pci|nvlink|link|interconnect|fabric", "link_bandwidth"), (r"", "memory_bandwidth")),
    ),
    (re.compile(r"^[kmgtpe]?(fl)?ops(/s)?$"), ((r"", "peak_compute"),)),
    (re.compile(r"^k?w(atts?)?$"), ((r"", "power"),)),
    (
        _TOKENS_A_SECOND,
        (
            (r"prefill|prompt|input", "prefill_rate"),
            (r"decode|single|stream|generation|per_user", "decode_rate"),
            (r"", "throughput"),
        ),
    ),
    (
        _TIMES,
        (
            (r"ttft|first|prefill|prompt", "ttft"),
            (r"speedup|ratio|gain", "speedup"),
            (r"token|tpot|itl|decode|step", "latency_per_token"),
            (r"", "latency"),
        ),
    ),
    (
        re.compile(r"^([kmgt]i?b|b|bytes|[kmgt]i?b/token|b/token|bytes/token)$"),
        (
            (r"(kv|cache).*(per_token|/token)", "kv_bytes_per_token"),
            (r"param", "parameters"),
            (r"kv|cache", "kv_memory"),
            (r"weight|model_size|checkpoint|file", "weights_memory"),
            (r"\bspec\b|capacity", "memory_capacity"),
            (r"mem|ram|footprint|usage|peak", "peak_memory"),
        ),
    ),
    (re.compile(r"^(b|m|t|billion|million|trillion)$"), ((r"activ", "active_parameters"), (r"param", "parameters"))),
    (re.compile(r"^bool$"), ((r"fit|run|serve|load", "fits"),)),
)
