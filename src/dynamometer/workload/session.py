"""Prompts that share text: `prefix` (one of a few long openings before each question) and `session` (conversations)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from dynamometer import options as opt
from dynamometer import units
from dynamometer.errors import UsageError
from dynamometer.types import Float64, Message, Request
from dynamometer.workload.lengths import Lengths, parse
from dynamometer.workload.padding import fit
from dynamometer.workload.plan import Ask, Plan, made_up
from dynamometer.workload.synthetic import required
from dynamometer.workload.words import most_words, words

_QUESTION = "\nWhat follows from this?"
MOST_TURNS = 1000
_GROUP, _SESSION = 1, 2  # first parts of chance keys, apart from the plain index of other workloads


def prefix(ask: Ask) -> Plan:
    """Each prompt is one of `groups` openings of `prefix_tokens` (defaults 4 and 256), then text of its own.

    `input_tokens` (default 512) is the whole prompt, opening included. `zipf` s makes group k as likely as 1 / k^s
    (default 0: all alike). The run's salt stands once in each opening: prompts of a run share it, runs do not.
    """
    made_up(ask)
    opt.known(ask.workload.options, ("prefix_tokens", "groups", "zipf"), ask.where)
    shared = opt.whole(ask.workload.options, "prefix_tokens", 256, ask.where, low=1)
    groups = opt.whole(ask.workload.options, "groups", 4, ask.where, low=1)
    shares = zipf(groups, opt.number(ask.workload.options, "zipf", 0.0, ask.where, low=0, high=100))
    asked, output = ask.input or Lengths("fixed", 512), required(ask.output, ask.where)
    if asked.fixed and asked.fixed <= shared:
        raise UsageError(
            f"input_tokens is {asked.fixed} and the shared prefix alone {shared}; give more, or less of it"
        )

    @lru_cache(maxsize=4096)
    def opening(group: int) -> str:
        chance = ask.chance(_GROUP, group)
        return fit(ask.opening("group", group), words(most_words(shared), chance), "\n", shared, ask.count)[0]

    def requests() -> Iterator[Request]:
        index = 0
        while True:
            chance = ask.chance(index)
            group = int(chance.choice(groups, p=shares))
            wanted, answer = max(asked.draw(chance), shared), output.draw(chance)
            own = words(most_words(wanted - shared), chance)
            text, tokens = fit(opening(group), own, _QUESTION, wanted, ask.count)
            yield ask.request(index, text, tokens, answer, f"prefix-{group}")
            index += 1

    note = f"{groups} shared prefixes of {shared} tokens; after the first use of each they can come from the cache"
    return Plan(requests(), notes=(note,))


def zipf(n: int, exponent: float) -> Float64:
    """Shares of n ranks, rank k as 1 / k^exponent; they sum to 1."""
    weights = np.arange(1, n + 1, dtype=np.float64) ** -exponent
    return np.asarray(weights / weights.sum(), dtype=np.float64)


def session(ask: Ask) -> Plan:
    """Conversations of `turns` messages (default 4, or a spread; at most 1000); the engine's answers join the history.

    `input_tokens` is what the user adds in each turn (default 128), `think` the pause before it in seconds (default 0s;
    "exponential:2s" has mean 2 s). `sessions` conversations (default 8) are under way at a time: their turns alternate,
    then the next ones begin. A message with content None stands for an answer; the last one is that of `Request.after`,
    the one before it that of the request before that, and so on.
    """
    made_up(ask)
    names = ("turns", "think", "sessions", "system_tokens")
    opt.known(ask.workload.options, names, ask.where)
    at_a_time = opt.whole(ask.workload.options, "sessions", 8, ask.where, low=1)
    return Plan(_conversations(ask, at_a_time), notes=(f"{at_a_time} conversations at a time, turns alternating",))


def _conversations(ask: Ask, at_a_time: int) -> Iterator[Request]:
    """Waves of conversations; request indices count in the order in which turns alternate."""
    index = first = 0
    while True:
        turns = [list(_turns(ask, first + i)) for i in range(at_a_time)]
        last = [-1] * at_a_time
        for turn in range(max(map(len, turns))):
            for i in range(at_a_time):
                if turn < len(turns[i]):
                    messages, tokens, answer, think_s = turns[i][turn]
                    yield Request(
                        index, messages, answer, tokens, ask.workload.ignore_eos, "session",
                        session=f"s{first + i}", turn=turn, after=last[i], think_s=think_s,
                    )  # fmt: skip
                    last[i] = index
                    index += 1
        first += at_a_time


def _turns(ask: Ask, number: int) -> Iterator[tuple[tuple[Message, ...], int, int, float]]:
    """(messages, planned prompt tokens, answer tokens, think time) of each turn of one conversation.

    Planned tokens count earlier answers at the length asked for; a shorter answer makes the prompt shorter.
    """
    chance = ask.chance(_SESSION, number)
    options = ask.workload.options
    turns = min(_length(ask, "turns", Lengths("fixed", 4)).draw(chance), MOST_TURNS)
    system = opt.whole(options, "system_tokens", 0, ask.where, low=0)
    asked, output = ask.input or Lengths("fixed", 128), required(ask.output, ask.where)
    messages: list[Message] = []
    tokens = 0
    opening = ask.opening("session", number)
    if system:
        text, tokens = fit(opening, words(most_words(system), chance), "", system, ask.count)
        messages.append(Message("system", text))
        opening = ""
    for turn in range(turns):
        wanted, answer = asked.draw(chance), output.draw(chance)
        text, own = fit(opening, words(most_words(wanted), chance), _QUESTION, wanted, ask.count)
        opening = ""
        messages.append(Message("user", text))
        tokens += own - (min(own, ask.count("")) if tokens else 0)  # the chat template's frame counts once
        yield tuple(messages), tokens, answer, _think(ask, chance) if turn else 0.0
        messages.append(Message("assistant", None))
        tokens += answer


def _length(ask: Ask, name: str, default: Lengths) -> Lengths:
    return parse(ask.workload.options.get(name, ""), f"{ask.where}: {name}") or default


def _think(ask: Ask, chance: np.random.Generator) -> float:
    text = ask.workload.options.get("think", "0")
    what = f"{ask.where}: think"
    kind, _, mean = text.partition(":")
    seconds = units.seconds(mean if kind == "exponential" else text, what)
    if seconds < 0:
        raise UsageError(f"{what} is {text!r}; give a time of at least 0, such as 2s or exponential:2s")
    return float(chance.exponential(seconds)) if kind == "exponential" else seconds
