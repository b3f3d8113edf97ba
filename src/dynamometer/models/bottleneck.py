"""What telemetry and the roofline say of one load level in; the bottleneck by name, with its evidence, out.

The order of the rules is the order of trust: a client that is late and processes that take the cores spoil every other
figure, a full network hides the engine, a full cache explains a queue, and only what is left is the device's arithmetic
or its memory.
"""

from __future__ import annotations

import msgspec

from dynamometer.errors import UsageError

# Shares above which a part is the limit. They are judgements, kept in one place: no engine reaches 1.0 of a peak.
_LATE_SHARE = 0.05  # of the median TTFT
_LOOP_SHARE = 0.90  # of one core: an event loop is one thread
_FOREIGN_SHARE = 0.10  # a tenth of the cores already costs an engine of spinning threads more than a tenth
_LINK_SHARE = 0.80
_CACHE_SHARE = 0.90
_DEVICE_IDLE = 0.80  # a device busy less than this while requests wait is being kept waiting
_CORE_SHARE = 0.90
_ROOF_SHARE = 0.50  # of the roofline: the best serving engines reach 0.5 to 0.8


class Signals(msgspec.Struct, frozen=True):
    """One load level. None: not measured. Shares are of the part's own peak, 0 to 1."""

    level: float  # concurrency or rate
    client_late_p99_ms: float | None = None
    client_loop_share: float | None = None
    ttft_p50_ms: float | None = None
    network_share: float | None = None
    cache_share: float | None = None  # highest share of KV cache in use
    preemptions: float | None = None
    waiting: float | None = None  # mean requests that the engine holds back
    running: float | None = None
    running_limit: float | None = None
    device_busy: float | None = None  # share of time with a kernel running
    host_core_share: float | None = None  # the busiest thread or core of the engine
    cores_share: float | None = None  # of the cores an engine on the CPU may use
    foreign_share: float | None = None  # of all cores, taken by other processes
    compute_share: float | None = None  # of peak FLOP/s
    memory_share: float | None = None  # of peak bytes/s


class Bottleneck(msgspec.Struct, frozen=True):
    """`name` is "none" when nothing is at its limit, "unknown" when too little was measured."""

    level: float
    name: str
    evidence: tuple[str, ...]
    missing: tuple[str, ...] = ()  # what would have to be measured to be sure


def name(signals: Signals) -> Bottleneck:
    """The first rule that holds, with the figures it rests on."""
    for kind, rule in (
        ("client", _client),
        ("other processes", _foreign),
        ("network", _network),
        ("KV capacity", _cache),
        ("batch limit", _batch_limit),
        ("scheduler or host CPU", _host),
    ):
        evidence = rule(signals)
        if evidence:
            return Bottleneck(signals.level, kind, evidence)
    return _roof(signals)


def decode_shares(
    tokens_per_s: float, batch: float, context: float, model: Model, device: Device
) -> tuple[float | None, float]:
    """(share of peak FLOP/s, of peak bytes/s) of a decode at this rate: each step reads the weights once and every
    sequence's cache. A lower bound of the bytes: activations are left out, and so is the prefill. The first is None
    where the device's FLOP/s are not known."""
    if not (tokens_per_s > 0 and batch > 0 and context >= 0):
        raise UsageError(f"{tokens_per_s:g} tokens/s at batch {batch:g} and context {context:g}; give values above 0")
    steps_per_s = tokens_per_s / batch
    bytes_per_s = steps_per_s * (model.weights_bytes + batch * context * model.cache_bytes_per_token)
    compute = tokens_per_s * model.flop_per_token / device.flop_per_s if device.flop_per_s else None
    return compute, bytes_per_s / device.bytes_per_s


class Model(msgspec.Struct, frozen=True):
    """What a decode step of the model needs."""

    weights_bytes: float  # read a step; of a mixture of experts, those that the batch touches
    cache_bytes_per_token: float
    flop_per_token: float


class Device(msgspec.Struct, frozen=True):
    """Peaks of the device, measured where they were."""

    flop_per_s: float  # 0: not known
    bytes_per_s: float


def _client(s: Signals) -> tuple[str, ...]:
    found = []
    if s.client_late_p99_ms is not None and s.ttft_p50_ms and s.client_late_p99_ms > _LATE_SHARE * s.ttft_p50_ms:
        found.append(
            f"the client sends {s.client_late_p99_ms:.3g} ms late (p99) at a median TTFT of {s.ttft_p50_ms:.3g} ms"
        )
    if s.client_loop_share is not None and s.client_loop_share > _LOOP_SHARE:
        found.append(f"the client's event loop is busy {s.client_loop_share:.0%} of the time")
    return tuple(found)


def _foreign(s: Signals) -> tuple[str, ...]:
    """Only where the engine computes on the CPU; on a device other processes hurt through the host rule."""
    if s.device_busy is None and s.foreign_share is not None and s.foreign_share > _FOREIGN_SHARE:
        return (f"other processes take {s.foreign_share:.0%} of the cores",)
    return ()


def _network(s: Signals) -> tuple[str, ...]:
    if s.network_share is not None and s.network_share > _LINK_SHARE:
        return (f"the link carries {s.network_share:.0%} of its rate",)
    return ()


def _cache(s: Signals) -> tuple[str, ...]:
    found = []
    if s.preemptions:
        found.append(f"{s.preemptions:,.0f} requests were preempted for want of KV cache")
    if s.cache_share is not None and s.cache_share >= _CACHE_SHARE and s.waiting:
        found.append(f"the KV cache is {s.cache_share:.0%} full while {s.waiting:.3g} requests wait")
    return tuple(found)


def _batch_limit(s: Signals) -> tuple[str, ...]:
    """Requests wait although the cache has room: the engine's own cap on sequences holds them back."""
    room = s.cache_share is None or s.cache_share < _CACHE_SHARE
    full = s.running is not None and s.running_limit is not None and s.running >= 0.95 * s.running_limit
    if s.waiting and s.waiting >= 0.5 and full and room:
        return (f"{s.running:.3g} of {s.running_limit:.3g} slots run and {s.waiting:.3g} requests wait",)
    return ()


def _host(s: Signals) -> tuple[str, ...]:
    """The device waits for the host. On an engine that computes on the CPU this cannot be told from computing."""
    if s.device_busy is None or s.device_busy >= _DEVICE_IDLE:
        return ()
    if s.host_core_share is not None and s.host_core_share >= _CORE_SHARE:
        return (
            f"the device is busy only {s.device_busy:.0%} of the time",
            f"a core of the engine is busy {s.host_core_share:.0%}",
        )
    if s.waiting and s.waiting >= 0.5:
        return (f"the device is busy only {s.device_busy:.0%} of the time while {s.waiting:.3g} requests wait",)
    return ()


def _roof(s: Signals) -> Bottleneck:
    shares = {"compute": s.compute_share, "memory bandwidth": s.memory_share}
    known = {kind: share for kind, share in shares.items() if share is not None}
    told = tuple(f"{share:.0%} of the peak {kind}" for kind, share in known.items())
    if known and max(known.values()) >= _ROOF_SHARE:
        return Bottleneck(s.level, max(known, key=lambda kind: known[kind]), told, _missing(s))
    if s.device_busy is None and s.cores_share is not None and s.cores_share >= _CORE_SHARE:
        at = f"all cores of the engine are busy {s.cores_share:.0%}"
        return Bottleneck(s.level, "compute", (at, *told), ("memory_share",) if s.memory_share is None else ())
    idle = (s.device_busy is not None and s.device_busy < _DEVICE_IDLE) or (
        s.cores_share is not None and s.cores_share < _CORE_SHARE
    )
    if idle and s.waiting == 0:
        busy = s.device_busy if s.device_busy is not None else s.cores_share
        return Bottleneck(s.level, "none", (f"the engine is busy {busy:.0%} of the time and nothing waits", *told), ())
    return Bottleneck(s.level, "unknown", told, _missing(s))


def _missing(s: Signals) -> tuple[str, ...]:
    """What a rule looked for and did not find."""
    wanted = ("cache_share", "waiting", "compute_share", "memory_share")
    device = () if s.device_busy is not None or s.cores_share is not None else ("device_busy or cores_share",)
    return (*(field for field in wanted if getattr(s, field) is None), *device)
