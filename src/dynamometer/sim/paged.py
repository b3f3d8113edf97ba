"""The KV cache as blocks: sequences that join, grow and leave in, what is used and how far the rest reaches out.

Growth is counted, not stepped: sequences are sorted by the phase at which they need their next block, so the blocks
that `n` more tokens of every sequence take follow by arithmetic, exactly, for any `n`. Source of the scheme: vLLM's
block manager.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

from dynamometer.errors import UsageError
from dynamometer.sim.sequence import Sequence

FOREVER = 1 << 60


class Memory(Protocol):
    """What a replica asks of its cache. A tick is one decode step, in which all decoding sequences grow by a token."""

    total: int  # blocks
    used: int

    def fits(self, tokens: int) -> bool: ...
    def admit(self, sequence: Sequence, tokens: int) -> bool: ...
    def join(self, sequence: Sequence, tick: int) -> None: ...
    def ticks(self, tick: int, most: int) -> int: ...
    def grow(self, tick: int, ticks: int) -> None: ...
    def part(self, sequence: Sequence, tick: int) -> None: ...
    def release(self, sequence: Sequence) -> None: ...


class Paged:
    """Blocks of `block` tokens, given out as they are needed; whole shared prefixes stay cached until room is wanted.

    `window` > 0: a token sees only so many earlier ones, and blocks that nobody sees any more are returned at once.
    """

    def __init__(self, blocks: int, block: int = 16, window: int = 0, share_prefixes: bool = False) -> None:
        if blocks < 1 or block < 1:
            raise UsageError(
                f"the KV cache has {blocks} blocks of {block} tokens; nothing fits. Use less memory for weights"
            )
        self.total, self.block, self.window = blocks, block, window
        self._longest = FOREVER if window and -(-window // block) <= blocks else blocks * block
        self.used = 0
        self.cached = 0  # blocks of prefixes that nobody uses now; they count as free
        self.hits = self.lookups = 0  # prompt tokens
        self._share = share_prefixes and not window
        self._phase = [0] * block  # decoding sequences by the phase of their next block
        self._growing = 0
        self._held: dict[int, int] = {}  # sequence → own blocks
        self._prefix: OrderedDict[int, list[int]] = OrderedDict()  # key → [blocks, users], least recently used first
        self._member: dict[int, int] = {}  # sequence → prefix key

    @property
    def free(self) -> int:
        return self.total - self.used

    def _blocks(self, tokens: int) -> int:
        tokens = min(tokens, self.window) if self.window else tokens
        return -(-tokens // self.block)

    def fits(self, tokens: int) -> bool:
        """Could a sequence of so many tokens ever be held?"""
        return tokens <= self._longest

    def admit(self, sequence: Sequence, tokens: int) -> bool:
        """Blocks for the first `tokens` of a sequence, shared ones taken from the cache; False changes nothing."""
        wanted = self._blocks(tokens)
        shares = self._share and sequence.prefix >= 0 and not sequence.evictions
        shared, found = self._look_up(sequence) if shares else (0, 0)
        own = wanted - shared
        fresh = shared - found  # blocks of a prefix that is not cached yet
        if shared and own + fresh > self.free - self._idle(sequence.prefix):
            shared, own = 0, wanted  # the cached prefix is longer than this request's and leaves no room: do without
        if own > self.free:
            return False
        if shared:
            self._use(sequence, shared, found)
        self._make_room(own)
        self.used += own
        self._held[sequence.index] = own
        return True

    def _look_up(self, sequence: Sequence) -> tuple[int, int]:
        """(whole blocks of the shared prefix, how many of them are cached); one prompt token is always computed."""
        want = min(sequence.prefix_tokens, sequence.prompt - 1) // self.block
        have = self._prefix.get(sequence.prefix)
        return (want, min(want, have[0])) if have else (want, 0)

    def _idle(self, key: int) -> int:
        entry = self._prefix.get(key)
        return entry[0] if entry and entry[1] == 0 else 0

    def _use(self, sequence: Sequence, shared: int, found: int) -> None:
        key = sequence.prefix
        entry = self._prefix.setdefault(key, [0, 0])
        if entry[1] == 0:
            self.cached -= entry[0]
            self.used += entry[0]
        entry[1] += 1
        self._prefix.move_to_end(key)
        grown = max(0, shared - entry[0])
        self._make_room(grown)
        entry[0] += grown
        self.used += grown
        self._member[sequence.index] = key
        self.hits += found * self.block
        self.lookups += sequence.prompt
        sequence.cached = found * self.block

    def _make_room(self, blocks: int) -> None:
        """Drops idle prefixes, the longest unused first, until so many blocks are really empty."""
        while self.total - self.used - self.cached < blocks:
            key = next(k for k, entry in self._prefix.items() if entry[1] == 0)
            self.cached -= self._prefix.pop(key)[0]

    def join(self, sequence: Sequence, tick: int) -> None:
        """The sequence starts to decode: from now on it grows by a token a tick."""
        if not self.window or sequence.context < self.window:
            self._phase[(sequence.context - tick) % self.block] += 1
            self._growing += 1

    def _need(self, tick: int, ticks: int) -> int:
        """Blocks that `ticks` more tokens of everyone take: a block is due where context % block == 0."""
        whole, rest = divmod(ticks, self.block)
        need = whole * self._growing
        if rest:  # the phases of the next `rest` ticks lie next to each other, from `first` downwards and around
            first = -tick % self.block
            last = first + 1 - rest
            phase = self._phase
            if last >= 0:
                need += sum(phase[last : first + 1])
            else:
                need += sum(phase[: first + 1]) + sum(phase[last:])
        return need

    def ticks(self, tick: int, most: int) -> int:
        """How many ticks, up to `most`, the free blocks carry."""
        free = self.total - self.used
        if self._growing * (most // self.block + 1) <= free or self._need(tick, most) <= free:
            return most
        low, high = 0, most
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._need(tick, middle) <= free else (low, middle)
        return low

    def grow(self, tick: int, ticks: int) -> None:
        """`ticks` tokens for everyone."""
        need = self._need(tick, ticks)
        if need > self.total - self.used - self.cached:
            self._make_room(need)
        self.used += need

    def saturate(self, sequence: Sequence, tick: int) -> None:
        """The sequence has filled its window; it grows no more."""
        self._stop(sequence, tick)

    def _stop(self, sequence: Sequence, tick: int) -> None:
        self._phase[(sequence.context - sequence.start_tick) % self.block] -= 1
        self._growing -= 1
        before, after = sequence.context, sequence.context + tick - sequence.start_tick
        if self.window:
            before, after = min(before, self.window), min(after, self.window)
        self._held[sequence.index] += -before // self.block - -after // self.block  # whole blocks, rounded up

    def part(self, sequence: Sequence, tick: int) -> None:
        """The sequence stops decoding at `tick` but keeps its blocks until `release`."""
        if not self.window or sequence.context < self.window:
            if self.window and sequence.context + tick - sequence.start_tick >= self.window:
                return  # it stopped when it filled its window
            self._stop(sequence, tick)

    def release(self, sequence: Sequence) -> None:
        """Own blocks are free again; a shared prefix without users stays cached."""
        self.used -= self._held.pop(sequence.index)
        key = self._member.pop(sequence.index, None)
        if key is not None:
            entry = self._prefix[key]
            entry[1] -= 1
            if entry[1] == 0:
                self.used -= entry[0]
                self.cached += entry[0]


class Contiguous:
    """One slab of `longest` tokens for each sequence, reserved at admission whatever it will use: the way before
    paging."""

    def __init__(self, tokens: int, longest: int) -> None:
        if tokens < longest:
            raise UsageError(
                f"a contiguous cache of {tokens} tokens holds no sequence of {longest}; lower the maximum length"
            )
        self.total, self.used = tokens // longest, 0
        self.longest = longest

    def fits(self, tokens: int) -> bool:
        return tokens <= self.longest

    def admit(self, sequence: Sequence, tokens: int) -> bool:
        if self.used == self.total:
            return False
        self.used += 1
        return True

    def join(self, sequence: Sequence, tick: int) -> None:
        pass

    def ticks(self, tick: int, most: int) -> int:
        return most

    def grow(self, tick: int, ticks: int) -> None:
        pass

    def part(self, sequence: Sequence, tick: int) -> None:
        pass

    def release(self, sequence: Sequence) -> None:
        self.used -= 1
