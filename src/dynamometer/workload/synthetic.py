"""A length distribution in; prompts of plain words with exactly so many tokens out."""

from __future__ import annotations

from collections.abc import Iterator

from dynamometer import options as opt
from dynamometer.errors import UsageError
from dynamometer.types import Request
from dynamometer.workload.lengths import Lengths
from dynamometer.workload.padding import fit
from dynamometer.workload.plan import Ask, Plan, made_up
from dynamometer.workload.words import most_words, words

_TASK = "\nContinue this text in the same manner."


def synthetic(ask: Ask) -> Plan:
    """Random words; `input_tokens` long (default 512), `output_tokens` asked back. No options."""
    made_up(ask)
    opt.known(ask.workload.options, (), ask.where)
    asked, output = ask.input or Lengths("fixed", 512), required(ask.output, ask.where)
    if asked.fixed:
        shortest = ask.count(ask.opening(0) + _TASK)
        if asked.fixed < shortest:
            raise UsageError(f"input_tokens is {asked.fixed}; the shortest prompt of {ask.where} has {shortest}")

    def requests() -> Iterator[Request]:
        index = 0
        while True:
            chance = ask.chance(index)
            wanted, answer = asked.draw(chance), output.draw(chance)
            text, tokens = fit(ask.opening(index), words(most_words(wanted), chance), _TASK, wanted, ask.count)
            yield ask.request(index, text, tokens, answer, "synthetic")
            index += 1

    return Plan(requests())


def required(output: Lengths | None, where: str) -> Lengths:
    """Made-up prompts have no answer whose length could be kept."""
    if output is None:
        raise UsageError(f"{where} needs output_tokens, such as 128 or uniform:64:256")
    return output
