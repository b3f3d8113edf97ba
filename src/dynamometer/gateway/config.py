"""A gateway's TOML file in, checked and frozen settings out; a mistake is one line with its place and remedy."""

from __future__ import annotations

import os
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from dynamometer.decisions.canary import METRICS, Design
from dynamometer.errors import MissingPath, UsageError
from dynamometer.policies.routing import RULES
from dynamometer.units import seconds

COMPARISONS: Final = ("exact", "normalized", "words", "embedding", "judge")
_STRICT = {"forbid_unknown_fields": True}

EXAMPLE: Final = """\
# A canary beside the engine that serves today. Start it with: dyno gateway gateway.toml
listen = "127.0.0.1:8080"      # clients; beyond loopback [auth] is required
admin = "127.0.0.1:9465"       # status, metrics, promote, rollback; loopback only
folder = "gateway"             # journal and record

[baseline]
urls = ["http://127.0.0.1:8001"]

[canary]
urls = ["http://127.0.0.1:8002"]

[[stage]]
share = 0.01
hold = "10m"

[[stage]]
share = 0.1
hold = "10m"

[[stage]]
share = 1.0
hold = "10m"

[gates]                        # the harm that must be excluded before a stage is passed
errors = 0.02                  # 2 % points more failed requests
ttft = 0.2                     # 20 % more time to the first token
text = 0.1                     # 10 % points more answers that differ from the baseline's, beyond its own variation

[shadow]
share = 0.1                    # of the baseline's requests, asked again of both for comparison
compare = "normalized"
"""


class Side(msgspec.Struct, frozen=True, **_STRICT):
    """Replicas of one engine. `api_key_env` names the variable with their key; the client's own is never passed on."""

    urls: tuple[str, ...]
    api_key_env: str = ""
    model: str = ""  # put in place of the request's `model`; "" leaves it
    routing: str = "least-loaded"
    insecure: bool = False


class Stage(msgspec.Struct, frozen=True, **_STRICT):
    """A share of the tenants from 0 (shadow only) to 1, the time it lasts at least, gates in place of the file's."""

    share: float
    hold: str = "10m"
    gates: Mapping[str, float] | None = None

    @property
    def hold_s(self) -> float:
        return seconds(self.hold, "hold")


class Shadow(msgspec.Struct, frozen=True, **_STRICT):
    """`url`: where embeddings or a judge are asked, for those comparisons."""

    share: float = 0.0
    compare: str = "normalized"
    url: str = ""
    model: str = ""
    in_flight: int = 8


class Limits(msgspec.Struct, frozen=True, **_STRICT):
    """Times in seconds, sizes in bytes."""

    head_bytes: int = 32_768
    body_bytes: int = 8_388_608
    answer_bytes: int = 67_108_864
    connections: int = 4096
    in_flight: int = 1024
    queue: int = 256
    queue_s: float = 10.0
    retry_after_s: int = 1
    request_s: float = 10.0  # for a whole request to come in: slow senders end here
    keep_s: float = 75.0  # an idle connection of a client
    stall_s: float = 60.0  # a client that does not read its answer
    connect_s: float = 5.0
    first_byte_s: float = 120.0
    idle_s: float = 60.0  # no byte from the engine
    total_s: float = 600.0
    drain_s: float = 60.0
    hedge_s: float = 0.0  # 0: no hedging


class Breaker(msgspec.Struct, frozen=True, **_STRICT):
    """Opens a replica's circuit after so many failures in a row; `probes` good answers close it again."""

    failures: int = 5
    open_s: float = 10.0
    probes: int = 2


class Batch(msgspec.Struct, frozen=True, **_STRICT):
    """Non-streaming text completions with equal parameters, joined into one request."""

    enabled: bool = False
    wait_s: float = 0.1
    most: int = 32


class Record(msgspec.Struct, frozen=True, **_STRICT):
    keep: str = "7d"
    segment: str = "1h"
    prompts: bool = False
    redact: tuple[str, ...] = ()  # regular expressions; what they match in a prompt is written as (redacted)

    @property
    def keep_s(self) -> float:
        return _days(self.keep, "record.keep")

    @property
    def segment_s(self) -> float:
        return _days(self.segment, "record.segment")


class Auth(msgspec.Struct, frozen=True, **_STRICT):
    """`keys_env`: the variable that holds the accepted keys, separated by commas."""

    keys_env: str = ""


class Tls(msgspec.Struct, frozen=True, **_STRICT):
    cert: str = ""
    key: str = ""


class Config(msgspec.Struct, frozen=True, **_STRICT):
    """The file, as it stands."""

    baseline: Side
    canary: Side | None = None
    stage: tuple[Stage, ...] = ()
    gates: Mapping[str, float] = {}
    test: Design = Design()
    shadow: Shadow = Shadow()
    limits: Limits = Limits()
    breaker: Breaker = Breaker()
    batch: Batch = Batch()
    record: Record = Record()
    auth: Auth = Auth()
    tls: Tls = Tls()
    listen: str = "127.0.0.1:8080"
    admin: str = "127.0.0.1:9465"
    folder: str = "gateway"
    sticky: str = "tenant"  # tenant | request
    tenant_header: str = "x-tenant"
    salt: str = ""
    otlp: str = ""  # base URL of an OpenTelemetry collector, e.g. http://127.0.0.1:4318

    def gates_at(self, stage: int) -> Mapping[str, float]:
        own = self.stage[stage].gates if stage < len(self.stage) else None
        return self.gates if own is None else own


def load(path: Path) -> Config:
    """Relative paths in the file start at its folder."""
    try:
        text = path.read_bytes()
    except OSError as wrong:
        raise MissingPath(
            f"{path} cannot be read: {wrong.strerror}; dyno gateway example > {path} writes one"
        ) from None
    try:
        config = msgspec.toml.decode(text, type=Config)
    except UsageError as wrong:
        raise UsageError(f"{path}: {wrong}") from wrong
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError, ValueError) as wrong:
        raise UsageError(f"{path}: {wrong}; see dyno gateway example") from wrong
    here = path.resolve().parent
    tls = Tls(*(str(here / name) if name else "" for name in (config.tls.cert, config.tls.key)))
    config = msgspec.structs.replace(config, folder=str(here / config.folder), tls=tls)
    wrong_text = fault(config)
    if wrong_text:
        raise UsageError(f"{path}: {wrong_text}")
    return config


def fault(config: Config) -> str:
    """The first thing that is wrong, or nothing."""
    for check in (_addresses, _sides, _stages, _numbers, _secrets):
        said = check(config)
        if said:
            return said
    return ""


def address(text: str) -> tuple[str, int]:
    """HOST:PORT; raises UsageError."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"the address is {text!r}; give HOST:PORT, e.g. 127.0.0.1:8080")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def keys(config: Config, environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Accepted keys; none: anybody may ask."""
    if not config.auth.keys_env:
        return ()
    found = tuple(key.strip() for key in environ.get(config.auth.keys_env, "").split(",") if key.strip())
    if not found:
        raise UsageError(f"auth.keys_env names {config.auth.keys_env}, which is not set; export it with the keys")
    if any(len(key) < 16 for key in found):
        raise UsageError(f"a key in {config.auth.keys_env} has fewer than 16 characters; make long random ones")
    return found


def _addresses(config: Config) -> str:
    host, _ = address(config.listen)
    admin, _ = address(config.admin)
    if not is_loopback(admin):
        return f"admin listens on {admin}; it changes the rollout, so give a loopback address"
    if not is_loopback(host) and not config.auth.keys_env:
        return f"listen is {host}, beyond loopback, without a key; set keys_env under [auth]"
    if bool(config.tls.cert) != bool(config.tls.key):
        return "[tls] needs both cert and key"
    return ""


def _sides(config: Config) -> str:
    for name, side in (("baseline", config.baseline), ("canary", config.canary)):
        if side is None:
            continue
        if not side.urls:
            return f"{name}.urls is empty; give at least one http://HOST:PORT"
        if side.routing not in RULES:
            return f"{name}.routing is {side.routing!r}; one of {', '.join(RULES)}"
        for url in side.urls:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
                return f"{name}.urls has {url!r}; give http://HOST:PORT or https://HOST, without a user name"
    return ""


def _stages(config: Config) -> str:
    shares = [stage.share for stage in config.stage]
    if any(not 0 <= share <= 1 for share in shares) or shares != sorted(set(shares)):
        return f"stage shares are {shares}; give rising shares from 0 to 1"
    if bool(config.stage) != (config.canary is not None):
        return "[canary] and [[stage]] belong together; give both or neither"
    for at in range(len(shares)):
        config.stage[at].hold_s  # noqa: B018  # raises with the place
        for name, margin in config.gates_at(at).items():
            if name not in METRICS:
                return f"gate is {name!r}; one of {', '.join(METRICS)}"
            if not 0 < margin <= 10:
                return f"gate {name} is {margin}; give a margin above 0, e.g. 0.1"
            if name in ("text", "length") and config.shadow.share == 0:
                return f"gate {name} compares shadow answers; set share under [shadow] above 0"
        if not config.gates_at(at):
            return f"stage {at + 1} has no gate; without one a canary would go on untested"
    if shares and shares[0] == 0 and config.shadow.share == 0:
        return "the first stage has share 0 and there is no shadow traffic, so it could never be judged"
    return ""


def _numbers(config: Config) -> str:
    for name in ("limits", "breaker", "batch"):
        part = getattr(config, name)
        for field in msgspec.structs.fields(part):
            value = getattr(part, field.name)
            if value < 0 or (value == 0 and field.name not in ("queue", "hedge_s", "enabled")):
                return f"{name}.{field.name} is {value}; give more than 0"
    if not 0 <= config.shadow.share <= 1:
        return f"shadow.share is {config.shadow.share}; give 0 to 1"
    if config.shadow.compare not in COMPARISONS:
        return f"shadow.compare is {config.shadow.compare!r}; one of {', '.join(COMPARISONS)}"
    if config.shadow.compare in ("embedding", "judge") and not config.shadow.url:
        return f"shadow.compare = {config.shadow.compare!r} asks a model; give its url under [shadow]"
    if config.sticky not in ("tenant", "request"):
        return f"sticky is {config.sticky!r}; give tenant or request"
    if config.record.keep_s < config.record.segment_s:
        return "record.keep is shorter than record.segment; keep at least one segment"
    return ""


def _secrets(config: Config) -> str:
    import re

    for pattern in config.record.redact:
        try:
            re.compile(pattern)
        except re.error as wrong:
            return f"record.redact has {pattern!r}, which is no regular expression: {wrong}"
    return ""


def _days(text: str, name: str) -> float:
    """Like `seconds`, and days."""
    if text.endswith("d") and text[:-1].replace(".", "", 1).isdigit():
        return float(text[:-1]) * 86_400
    return seconds(text, name)
