"""An endpoint's way of being asked in; its answers, its chat template and its log-probabilities along a text out.

Chat for questions, the completions API for log-probabilities. Texts are read in one request where the server gives the
prompt's own log-probabilities back (`echo`, as vLLM does), else token by token. What a server cannot give is said.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from math import exp, log
from typing import Final, Protocol, cast

import msgspec

from dynamometer.errors import Refused, TargetError
from dynamometer.quality.divergence import Along, kl_at_least
from dynamometer.quality.questions import LETTERS, Question

Json = dict[str, object]


class Call(Protocol):
    """One question to a server: (status, document); `root`: beside the API's version, where /props stands."""

    def __call__(self, path: str, body: object = None, *, root: bool = False) -> tuple[int, Json]: ...


class Said(msgspec.Struct, frozen=True):
    """One answer to one question."""

    text: str
    finish: str = ""  # stop | length | …
    tokens: int = 0
    error: str = ""


class Way(StrEnum):
    ECHO = "prompt log-probabilities in one request"
    STEPS = "one request a token"


class Side(msgspec.Struct, frozen=True):
    """An endpoint as it is compared."""

    name: str  # baseline | candidate
    label: str  # what the user named
    model: str
    call: Call
    template: Mapping[str, str] = {}  # what is known of how a chat becomes a prompt


class Heard(msgspec.Struct, frozen=True):
    """Log-probabilities along a text, one entry a token from the second on."""

    tokens: tuple[str, ...]
    tops: tuple[Mapping[str, float], ...]
    given: tuple[float | None, ...]


_PROBE: Final = [{"role": "user", "content": "What is 2 + 2?"}]


def ask(side: Side, question: Question, max_tokens: int, seed: int) -> Said:
    """Greedy, with a fixed seed. A choice is read off the log-probabilities of its letters."""
    if question.kind == "choice":
        return _choose(side, question)
    body = {"messages": [{"role": "user", "content": question.prompt}], "max_tokens": max_tokens, "seed": seed}
    status, said = side.call("/chat/completions", {"model": side.model, "temperature": 0, **body})
    choice = _first(said)
    if status != 200 or not choice:
        return Said("", error=_why(status, said))
    message = cast(Json, choice.get("message") or {})
    usage = cast(Json, said.get("usage") or {})
    count = usage.get("completion_tokens")
    return Said(
        str(message.get("content") or ""),
        str(choice.get("finish_reason") or ""),
        count if isinstance(count, int) else 0,
    )


def _choose(side: Side, question: Question) -> Said:
    """The letter with the most probability as the next token, in all its spellings."""
    status, top = _next(side, question.prompt, 20)
    if status:
        return Said("", error=status)
    weight: dict[str, float] = {}
    for token, value in top.items():
        letter = token.partition("\t")[2].strip().strip("()")
        if letter in LETTERS[: len(question.choices)] and letter:
            weight[letter] = weight.get(letter, 0.0) + exp(value)
    return Said(max(weight, key=lambda letter: weight[letter]) if weight else "", "letter")


def template_of(side: Side) -> dict[str, str]:
    """What the server shows of its chat template: the rendered text, the tokens, their count."""
    found: dict[str, str] = {}
    status, said = side.call("/apply-template", {"messages": _PROBE}, root=True)
    if status == 200 and isinstance(said.get("prompt"), str):
        found["rendered"] = str(said["prompt"])
        status, said = side.call("/tokenize", {"content": found["rendered"], "parse_special": True}, root=True)
    else:
        status, said = side.call("/tokenize", {"model": side.model, "messages": _PROBE}, root=True)
    if status == 200 and isinstance(said.get("tokens"), list) and said["tokens"]:
        found["tokens"] = " ".join(map(str, cast(list[object], said["tokens"])))
    status, said = side.call(
        "/chat/completions", {"model": side.model, "messages": _PROBE, "max_tokens": 1, "temperature": 0}
    )
    if status != 200:
        raise TargetError(f"the {side.name} {side.label} does not answer a chat: {_why(status, said)}")
    counted = cast(Json, said.get("usage") or {}).get("prompt_tokens")
    if isinstance(counted, int):
        found["prompt tokens"] = str(counted)
    return found


def same_template(a: Side, b: Side) -> str:
    """How it is known that both render a chat alike. Refused when they do not: it would compare prompts, not models."""
    shared = [kind for kind in a.template if kind in b.template]
    for kind in shared:
        if a.template[kind] != b.template[kind]:
            x, y = a.template[kind][:120], b.template[kind][:120]
            raise Refused(
                f"{a.label} and {b.label} render a chat differently ({kind}: {x!r} and {y!r}); a difference in answers "
                "would be the template's. Start both with the same chat template"
            )
    if not shared:
        return "chat templates: neither server shows enough to compare them"
    return f"chat templates: alike by {', '.join(shared)} of a probe"


def hear(side: Side, text: str, top: int, most: int) -> tuple[Heard, Way]:
    """Reads at most `most` tokens of a text. Refused when the server gives no log-probabilities at all."""
    echoed = _echo(side, text, top)
    if echoed is not None:
        return Heard(echoed.tokens[:most], echoed.tops[: most - 1], echoed.given[: most - 1]), Way.ECHO
    ids = _tokens(side, text)[:most]
    if len(ids) < 2:
        raise Refused(
            f"{side.label} gives neither the prompt's log-probabilities (echo) nor its tokens (/tokenize); divergence "
            "needs one of them: vLLM and llama.cpp's server have one"
        )
    tops = []
    for at in range(1, len(ids)):
        wrong, found = _next(side, ids[:at], top)
        if wrong:
            raise Refused(f"{side.label} gives no log-probabilities: {wrong}")
        tops.append({token.partition("\t")[0]: value for token, value in found.items()})
    given = tuple(one.get(str(token)) for one, token in zip(tops, ids[1:], strict=True))
    return Heard(tuple(map(str, ids)), tuple(tops), given), Way.STEPS


def heard_along(text: str, baseline: Heard, candidate: Heard) -> Along:
    """Two readings of a text as one. A token outside a list counts as the list's least likely: the drift is bounded."""
    if baseline.tokens != candidate.tokens:
        raise Refused("the two endpoints cut the text into different tokens; their distributions cannot be compared")
    pairs = list(zip(baseline.tops, candidate.tops, strict=True))
    return Along(
        text,
        [kl_at_least(p, q) for p, q in pairs],
        [max(p, key=p.__getitem__) == max(q, key=q.__getitem__) for p, q in pairs],
        [_known(given, top) for given, top in zip(baseline.given, baseline.tops, strict=True)],
        [_known(given, top) for given, top in zip(candidate.given, candidate.tops, strict=True)],
        exact=False,
    )


def _known(given: float | None, top: Mapping[str, float]) -> float:
    if given is not None:
        return given
    rest = max(1e-9, 1 - sum(exp(value) for value in top.values()))
    return min(min(top.values()), log(rest))


def _echo(side: Side, text: str, top: int) -> Heard | None:
    body = {"model": side.model, "prompt": text, "max_tokens": 1, "echo": True, "logprobs": top, "temperature": 0}
    status, said = side.call("/completions", body)
    found = cast(Json, (_first(said) or {}).get("logprobs") or {})
    tokens, given, tops = (found.get(name) for name in ("tokens", "token_logprobs", "top_logprobs"))
    if status != 200 or not (isinstance(tokens, list) and isinstance(given, list) and isinstance(tops, list)):
        return None
    counted = cast(Json, said.get("usage") or {}).get("prompt_tokens")
    n = counted if isinstance(counted, int) else len(tokens) - 1
    if n < 2 or len(tokens) < n or len(tops) < n or not all(isinstance(one, dict) and one for one in tops[1:n]):
        return None
    return Heard(
        tuple(map(str, tokens[:n])),
        tuple({str(token): float(value) for token, value in one.items()} for one in tops[1:n]),
        tuple(None if one is None else float(one) for one in given[1:n]),
    )


def _tokens(side: Side, text: str) -> list[int]:
    for body in ({"content": text, "add_special": True}, {"model": side.model, "prompt": text}):
        status, said = side.call("/tokenize", body, root=True)
        ids = said.get("tokens")
        if status == 200 and isinstance(ids, list) and ids and all(isinstance(one, int) for one in ids):
            return cast(list[int], ids)
    return []


def _next(side: Side, prompt: str | list[int], top: int) -> tuple[str, dict[str, float]]:
    """The most likely next tokens as "id TAB text"; a reason instead when the server gives none."""
    body = {"model": side.model, "prompt": prompt, "max_tokens": 1, "logprobs": top, "temperature": 0}
    status, said = side.call("/completions", body)
    found = (_first(said) or {}).get("logprobs")
    if status != 200 or not isinstance(found, dict):
        return (_why(status, said) if status != 200 else "its answer holds no logprobs"), {}
    content, tops = found.get("content"), found.get("top_logprobs")
    if isinstance(content, list) and content:  # as a chat's log-probabilities are written
        listed = cast(list[Json], content[0].get("top_logprobs") or [])
        return "", {
            f"{one.get('id', one['token'])}\t{one['token']}": float(cast(float, one["logprob"])) for one in listed
        }
    if isinstance(tops, list) and tops and isinstance(tops[0], dict):
        return "", {f"{token}\t{token}": float(value) for token, value in tops[0].items()}
    return "its logprobs are empty", {}


def _first(said: Json) -> Json | None:
    choices = said.get("choices")
    return choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else None


def _why(status: int, said: Json) -> str:
    error = said.get("error", said.get("message", said.get("detail", "")))
    words = str(error.get("message", error)) if isinstance(error, dict) else str(error)
    return f"HTTP {status} {words}".strip()[:300]
