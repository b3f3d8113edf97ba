"""A `Workload`, a seed, a token counter and a salt in; a `Plan` (requests and what was left out) out.

Request i depends on (workload, seed, salt, i) alone: any slice can be made by any worker, in any order, on any machine.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import cast

import msgspec
import numpy as np

from dynamometer import options as opt
from dynamometer import plugins
from dynamometer.errors import UsageError
from dynamometer.types import Message, Request, Workload
from dynamometer.workload.lengths import Lengths, parse
from dynamometer.workload.padding import TokenCounter

_STREAM = 0x9A0B7  # keeps the prompt stream apart from the arrival stream of the same seed


class Estimated(msgspec.Struct, frozen=True):
    """A token counter for want of a tokenizer: a constant for the chat template and so many characters a token."""

    chars_per_token: float = 4.0
    overhead_tokens: float = 0.0

    def __call__(self, text: str) -> int:
        return math.ceil(len(text) / self.chars_per_token + self.overhead_tokens)


class Ask(msgspec.Struct, frozen=True):
    """What a workload plugin is given."""

    workload: Workload
    seed: int
    count: TokenCounter
    salt: str  # "": prompts are not salted

    @property
    def where(self) -> str:
        """How errors name this workload."""
        return f"workload {self.workload.name!r}"

    @property
    def input(self) -> Lengths | None:
        """The asked prompt length; None: as it comes."""
        return parse(self.workload.input_tokens, "input_tokens")

    @property
    def output(self) -> Lengths | None:
        """The asked answer length; None: as it comes."""
        return parse(self.workload.output_tokens, "output_tokens")

    def chance(self, *key: int) -> np.random.Generator:
        """The chance of one request, session or block, the same whichever worker asks."""
        return np.random.Generator(np.random.PCG64(np.random.SeedSequence([self.seed, _STREAM], spawn_key=key)))

    def opening(self, *key: int | str) -> str:
        """A first line that no other run has: engines cache prefixes, so the salt must stand at the very start."""
        if not self.salt:
            return ""
        name = "/".join([self.salt, *map(str, key)])
        return f"[{hashlib.blake2b(name.encode(), digest_size=6).hexdigest()}]\n"

    def request(
        self, index: int, text: str, tokens: int, output_tokens: int, family: str, reference: str = ""
    ) -> Request:
        """A one-turn request."""
        return Request(
            index=index,
            messages=(Message("user", text),),
            output_tokens=output_tokens,
            input_tokens=tokens,
            ignore_eos=self.workload.ignore_eos,
            family=family,
            reference=reference,
        )


class Plan(msgspec.Struct, frozen=True):
    """What will be asked. `requests` has no end unless a note says so."""

    requests: Iterator[Request]
    read: int = 0  # records in the file
    used: int = 0
    skipped: Mapping[str, int] = {}  # reason -> records
    notes: tuple[str, ...] = ()

    def account(self) -> str:
        """`7 read, 2 used; skipped: 3 no question, 2 no turns`, or "" for made-up prompts."""
        if not self.read:
            return ""
        text = f"{self.read:,} read, {self.used:,} used"
        reasons = ", ".join(f"{n:,} {reason}" for reason, n in sorted(self.skipped.items(), key=lambda item: -item[1]))
        return f"{text}; skipped: {reasons}" if reasons else text


def as_they_come(ask: Ask) -> None:
    """Refuses a prompt length where the prompts have their own, so that it is not ignored in silence."""
    if ask.workload.input_tokens:
        raise UsageError(
            f"input_tokens is {ask.workload.input_tokens!r}; the prompts of {ask.where} have their own lengths: "
            "leave it empty, or limit them with its options"
        )


def made_up(ask: Ask) -> None:
    """Refuses a file where the prompts come from none."""
    if ask.workload.path:
        raise UsageError(f"{ask.where} makes its own prompts and reads no file; leave out --data {ask.workload.path}")


Maker = Callable[[Ask], Plan]


def plan(workload: Workload, seed: int, count_tokens: TokenCounter | None = None, salt: str = "") -> Plan:
    """The requests of a workload.

    `count_tokens`: the engine's own count of a user message's text, for exact lengths; None plans by the option
    `chars_per_token` (default 4) and says so in a note. `salt`: any text of this run alone, such as its id; needed when
    the workload is fresh. The same seed and salt give the same prompts.
    """
    if seed < 0:
        raise UsageError(f"seed is {seed}; give a whole number of at least 0")
    if workload.fresh and not salt:
        raise UsageError("the workload wants fresh prompts and has no salt; give the run's id, or fresh = false")
    where = f"workload {workload.name!r}"
    chars = opt.number(workload.options, "chars_per_token", 4.0, where, low=0.5, high=10)
    estimated = count_tokens is None or isinstance(count_tokens, Estimated)
    ask = Ask(
        workload=msgspec.structs.replace(
            workload, options={k: v for k, v in workload.options.items() if k != "chars_per_token"}
        ),
        seed=seed,
        count=count_tokens or Estimated(chars),
        salt=salt if workload.fresh else "",
    )
    made = cast(Maker, plugins.load("workload", workload.name))(ask)
    if not estimated:
        return made
    ratio = count_tokens.chars_per_token if isinstance(count_tokens, Estimated) else chars
    note = f"prompt lengths are estimates at {ratio:.3g} characters a token; the server's usage has the true ones"
    return msgspec.structs.replace(made, notes=(*made.notes, note))


def made_to_length(workload: Workload) -> bool:
    """Whether prompts are made to a length, so that it matters who counts their tokens."""
    return bool(workload.input_tokens) or workload.name in ("synthetic", "prefix", "session", "trace")


def build(workload: Workload, seed: int, count_tokens: TokenCounter | None = None, salt: str = "") -> Iterator[Request]:
    """The requests of `plan`, in the order of their index."""
    return plan(workload, seed, count_tokens, salt).requests


def calibrate(seen: Sequence[tuple[str, int]]) -> Estimated:
    """A counter learnt from usage: (text of a user message, prompt tokens the server counted) pairs, least squares.

    One pair, or pairs of one length, give the plain ratio; the constant (chat template) is never below 0.
    """
    chars = np.array([len(text) for text, _ in seen], dtype=np.float64)
    tokens = np.array([count for _, count in seen], dtype=np.float64)
    if not len(seen) or not chars.sum() or not tokens.sum():
        raise UsageError("a token count is learnt from at least one text with a count above 0")
    if np.ptp(chars) > 0:
        slope, overhead = np.polyfit(chars, tokens, 1)
        if slope > 0 and overhead >= 0:
            return Estimated(float(1 / slope), float(overhead))
    return Estimated(float(chars.sum() / tokens.sum()))
