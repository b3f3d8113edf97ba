"""A seed and a count in, arithmetic word problems with worked solutions out. Made here: no licence, no network.

The answer is computed, the solution's steps are written from the same numbers, and every problem is one that GSM8K's
form fits: a few sentences, whole numbers, a solution that ends with `#### N`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from dynamometer.quality.questions import ASK_NUMBER, Question

Made = tuple[str, list[str], int]  # question, steps of the solution, answer
_NAMES: Final = ("Amara", "Bela", "Chidi", "Dagny", "Emre", "Farah", "Goran", "Hana", "Imani", "Jonas", "Kiri", "Leto")
_THINGS: Final = ("apples", "stamps", "marbles", "books", "shells", "pencils", "cards", "buttons", "tickets", "stones")


class _Chance:
    """Whole numbers, names and things drawn from one seeded generator."""

    def __init__(self, seed: np.random.Generator) -> None:
        self._seed = seed

    def between(self, low: int, high: int) -> int:
        return int(self._seed.integers(low, high + 1))

    def name(self) -> str:
        return _NAMES[self.between(0, len(_NAMES) - 1)]

    def thing(self) -> str:
        return _THINGS[self.between(0, len(_THINGS) - 1)]


def problems(count: int, seed: int = 0) -> tuple[Question, ...]:
    """`count` problems in turn of every kind. The same seed gives the same ones, a larger count more of them."""
    return tuple(_question(at, seed) for at in range(count))


def solutions(count: int, seed: int = 0) -> tuple[str, ...]:
    """Problems with their worked solutions as running text: the reference to read along."""
    made = (_made(at, seed) for at in range(count))
    return tuple(f"Question: {asked}\nAnswer: {' '.join(steps)}\n#### {answer}\n" for asked, steps, answer in made)


def _made(at: int, seed: int) -> Made:
    return _KINDS[at % len(_KINDS)](_Chance(np.random.default_rng([seed, at])))


def _question(at: int, seed: int) -> Question:
    asked, steps, answer = _made(at, seed)
    return Question(f"words-{seed}-{at}", "number", asked + ASK_NUMBER, f"{' '.join(steps)} #### {answer}")


def _bought(chance: _Chance) -> Made:
    name, thing, n, price = chance.name(), chance.thing(), chance.between(3, 12), chance.between(2, 9)
    paid = n * price + chance.between(1, 20)
    asked = f"{name} buys {n} {thing} for {price} dollars each and pays with {paid} dollars. How much change is due?"
    return (
        asked,
        [f"The {thing} cost {n} × {price} = {n * price}.", f"{paid} - {n * price} = {paid - n * price}."],
        (paid - n * price),
    )


def _given(chance: _Chance) -> Made:
    name, thing = chance.name(), chance.thing()
    has, gave, found = chance.between(20, 60), chance.between(3, 15), chance.between(2, 18)
    asked = f"{name} has {has} {thing}, gives {gave} to a friend and finds {found} more. How many {thing} are there?"
    left = has - gave
    return (
        asked,
        [f"After giving, {has} - {gave} = {left} are left.", f"{left} + {found} = {left + found}."],
        left + found,
    )


def _shared(chance: _Chance) -> Made:
    name, thing, people, each = chance.name(), chance.thing(), chance.between(3, 9), chance.between(4, 15)
    kept = chance.between(1, people - 1)
    total = people * each + kept
    asked = (
        f"{name} has {total} {thing}, keeps {kept} and shares the others equally among {people} friends. "
        f"How many does each friend get?"
    )
    return asked, [f"{total} - {kept} = {total - kept} are shared.", f"{total - kept} / {people} = {each}."], each


def _travelled(chance: _Chance) -> Made:
    name, speed, hours, more = chance.name(), chance.between(30, 90), chance.between(2, 6), chance.between(5, 40)
    asked = f"{name} drives {hours} hours at {speed} km per hour and then {more} km more. How many km is that in all?"
    way = speed * hours
    return asked, [f"{speed} × {hours} = {way} km.", f"{way} + {more} = {way + more} km."], way + more


def _twice(chance: _Chance) -> Made:
    a, thing, n, times = chance.name(), chance.thing(), chance.between(5, 30), chance.between(2, 5)
    asked = f"{a} collects {n} {thing} on Monday and {times} times as many on Tuesday. How many are collected in all?"
    later = n * times
    return asked, [f"On Tuesday {n} × {times} = {later}.", f"Together {n} + {later} = {n + later}."], n + later


def _worked(chance: _Chance) -> Made:
    name, wage, hours, days = chance.name(), chance.between(8, 25), chance.between(3, 8), chance.between(3, 6)
    spent = chance.between(10, 60)
    asked = (
        f"{name} earns {wage} dollars an hour and works {hours} hours a day for {days} days, then spends "
        f"{spent} dollars. How many dollars are left?"
    )
    time, earned = hours * days, wage * hours * days
    steps = [f"{hours} × {days} = {time} hours.", f"{time} × {wage} = {earned} dollars.", f"{earned} - {spent} = "]
    steps[-1] += f"{earned - spent}."
    return asked, steps, earned - spent


def _packed(chance: _Chance) -> Made:
    thing, boxes, each, broken = chance.thing(), chance.between(4, 15), chance.between(6, 24), chance.between(2, 20)
    asked = (
        f"A shop gets {boxes} boxes with {each} {thing} in each; {broken} are damaged. How many good {thing} are there?"
    )
    total = boxes * each
    return (
        asked,
        [f"{boxes} × {each} = {total} in all.", f"{total} - {broken} = {total - broken} are good."],
        total - broken,
    )


def _discount(chance: _Chance) -> Made:
    name, price, percent = chance.name(), 20 * chance.between(2, 15), 5 * chance.between(1, 8)
    off = price * percent // 100
    asked = f"{name} buys a coat of {price} dollars with {percent} percent off. How many dollars does it cost now?"
    return asked, [f"{percent} percent of {price} is {off}.", f"{price} - {off} = {price - off}."], price - off


_KINDS: Final[tuple[Callable[[_Chance], Made], ...]] = (
    _bought, _given, _shared, _travelled, _twice, _worked, _packed, _discount,
)  # fmt: skip
