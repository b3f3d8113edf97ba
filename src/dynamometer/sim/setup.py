"""What is to be simulated, as values in; a cluster ready to run out."""

from __future__ import annotations

import msgspec

from dynamometer.errors import UsageError
from dynamometer.hardware.stepcost import StepCost
from dynamometer.sim.cluster import NO_LINK, Cluster, Ledger, Link
from dynamometer.sim.paged import Contiguous, Memory, Paged
from dynamometer.sim.replica import Replica
from dynamometer.sim.rules import Rules, Sink


class Cache(msgspec.Struct, frozen=True):
    """The KV cache of one replica. `slab` > 0: contiguous, so many tokens reserved for each sequence."""

    tokens: int
    block: int = 16
    slab: int = 0
    window: int = 0
    share_prefixes: bool = False


class Setup(msgspec.Struct, frozen=True):
    """Equal replicas behind a router; `decoders` > 0: `replicas` only compute prompts and the decoders go on."""

    cost: StepCost
    cache: Cache
    rules: Rules = Rules()
    replicas: int = 1
    routing: str = "round-robin"
    decoders: int = 0
    transfer: Link = NO_LINK


def memory(cache: Cache) -> Memory:
    """An empty cache of one replica."""
    if cache.tokens < 1:
        raise UsageError(
            "there is no room for a KV cache: the weights fill the memory; use more devices or smaller weights"
        )
    if cache.slab:
        return Contiguous(cache.tokens, cache.slab)
    return Paged(cache.tokens // cache.block, cache.block, cache.window, cache.share_prefixes)


def cluster(setup: Setup, ledger: Ledger, seed: int = 0) -> Cluster:
    """Fresh engines on a fresh time line."""

    def make(sink: Sink, place: int) -> Replica:
        return Replica(setup.cost, setup.rules, memory(setup.cache), sink, seed * 1_000_003 + place)

    def make_decoder(sink: Sink, place: int) -> Replica:
        inner = msgspec.structs.replace(setup.cost.host, accept_s=0.0, arrive_s=0.0)  # no HTTP between engines
        cost = msgspec.structs.replace(setup.cost, host=inner)
        return Replica(cost, setup.rules, memory(setup.cache), sink, seed * 1_000_003 + place)

    decoders = (make_decoder, setup.decoders) if setup.decoders else None
    return Cluster(make, setup.replicas, setup.routing, ledger, decoders, setup.transfer)
