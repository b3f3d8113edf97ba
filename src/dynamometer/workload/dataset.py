"""A data file (ShareGPT JSON, JSON lines, CSV) in; prompts out, with a counted reason for each one left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import msgspec
import numpy as np

from dynamometer import options as opt
from dynamometer.errors import UsageError
from dynamometer.types import Message, Request
from dynamometer.workload.plan import Ask, Plan, as_they_come
from dynamometer.workload.readers import Line, csv_rows, existing, json_array, json_lines

_ROLES = {
    "human": "user", "user": "user", "prompter": "user",
    "gpt": "assistant", "chatgpt": "assistant", "assistant": "assistant", "bot": "assistant", "bing": "assistant",
    "bard": "assistant", "model": "assistant", "system": "system",
}  # fmt: skip

_PROMPT = ("prompt", "question", "input", "instruction", "text")
_REFERENCE = ("reference", "answer", "response", "completion", "output")
_LENGTH = ("max_tokens", "output_tokens", "max_completion_tokens", "output_length")
_COMMON = ("lenient", "max_input_tokens", "max_total_tokens", "context_tokens", "over", "order", "prompt_field")


class Record(msgspec.Struct, frozen=True):
    """One usable record. `output_tokens` 0: the file does not say."""

    messages: tuple[Message, ...]
    reference: str = ""
    output_tokens: int = 0


class Limits(msgspec.Struct, frozen=True):
    """Lengths in tokens beyond which a record is left out; 0 = no limit. `over`: "drop" it or "lower" its answer."""

    prompt: int
    total: int
    context: int
    over: str


def sharegpt(ask: Ask) -> Plan:
    """ShareGPT JSON: a list of {"conversations": [{"from", "value"}, …]}.

    The prompt is the first human turn (and the system text before it), the reference the model turn right after it.
    Records are left out above `max_input_tokens` (default 1024) and `max_total_tokens` with the reference (2048).
    """
    opt.known(ask.workload.options, _COMMON, ask.where)
    return _plan(
        ask,
        json_array(existing(ask.workload.path, ask.where), _lenient(ask)),
        _from_conversation,
        Limits(1024, 2048, 0, "drop"),
    )


def jsonl(ask: Ask) -> Plan:
    """JSON lines with `prompt` (or question, input, …), `messages`, or ShareGPT `conversations` in each.

    Optional in each line: `system`, `reference` (or answer, response, …) and `max_tokens`. Option `prompt_field` names
    another field, `lenient` = yes counts broken lines instead of stopping at the first.
    """
    opt.known(ask.workload.options, _COMMON, ask.where)
    return _plan(
        ask, json_lines(existing(ask.workload.path, ask.where), _lenient(ask)), _from_fields, Limits(0, 0, 0, "drop")
    )


def table(ask: Ask) -> Plan:
    """CSV with a header; the columns are named as the fields of `jsonl`. Quoted fields may hold line breaks."""
    opt.known(ask.workload.options, _COMMON, ask.where)
    return _plan(ask, csv_rows(existing(ask.workload.path, ask.where)), _from_fields, Limits(0, 0, 0, "drop"))


def _lenient(ask: Ask) -> bool:
    return opt.flag(ask.workload.options, "lenient", False, ask.where)


def _plan(ask: Ask, lines: Iterable[Line], read: Callable[[Line, Ask], Record | str], limits: Limits) -> Plan:
    """Reads all records at once, so that what is left out is known before the load starts."""
    options, where = ask.workload.options, ask.where
    as_they_come(ask)
    limits = Limits(
        opt.whole(options, "max_input_tokens", limits.prompt, where, low=0),
        opt.whole(options, "max_total_tokens", limits.total, where, low=0),
        opt.whole(options, "context_tokens", limits.context, where, low=0),
        opt.choice(options, "over", limits.over, where, ("drop", "lower")),
    )
    kept: list[tuple[Record, int]] = []
    skipped: Counter[str] = Counter()
    n = 0
    for line in lines:
        found = line.fault or read(line, ask)
        sized = _sized(found, n, ask, limits) if isinstance(found, Record) else found
        n += 1
        if isinstance(sized, str):
            skipped[sized] += 1
        else:
            kept.append(sized)
    path = ask.workload.path
    if not kept:
        reasons = ", ".join(f"{count} {reason}" for reason, count in skipped.most_common()) or "it is empty"
        raise UsageError(f"{path} has no usable record ({reasons})")
    order = opt.choice(options, "order", "file", where, ("file", "shuffled"))
    note = f"{len(kept):,} prompts from {path}, from the start again when they are used up"
    return Plan(_requests(ask, kept, order), n, len(kept), dict(skipped), (note,))


def _requests(ask: Ask, kept: list[tuple[Record, int]], order: str) -> Iterator[Request]:
    """Round after round over the records; each round of "shuffled" has its own order."""
    index = turn = 0
    while True:
        places = ask.chance(turn).permutation(len(kept)) if order == "shuffled" else np.arange(len(kept))
        for place in places:
            record, tokens = kept[int(place)]
            first, *rest = record.messages
            messages = (Message(first.role, ask.opening(index) + (first.content or "")), *rest)
            family, eos = ask.workload.name, ask.workload.ignore_eos
            yield Request(index, messages, record.output_tokens, tokens, eos, family, reference=record.reference)
            index += 1
        turn += 1


def _sized(record: Record, number: int, ask: Ask, limits: Limits) -> tuple[Record, int] | str:
    """The record with its answer's length settled, and its prompt tokens; or why it is left out.

    The length is the record's own, else the one asked for, else that of the reference.
    """
    salt = ask.opening(0)  # as long as any other
    text = "\n".join(message.content or "" for message in record.messages)
    tokens = ask.count(salt + text)
    spoken = ask.count(record.reference) if record.reference else 0
    answer = record.output_tokens or (ask.output.draw(ask.chance(number)) if ask.output else spoken)
    if not answer:
        return "no answer to take the output length from"
    if limits.prompt and tokens > limits.prompt:
        return f"prompt over {limits.prompt:,} tokens"
    if limits.total and tokens + max(answer, spoken) > limits.total:
        return f"prompt and answer over {limits.total:,} tokens"
    if limits.context and tokens + answer > limits.context:
        room = limits.context - tokens
        if limits.over == "drop" or room < 1:
            return f"over the context of {limits.context:,} tokens"
        answer = room
    return msgspec.structs.replace(record, output_tokens=answer), tokens


def _from_conversation(line: Line, ask: Ask) -> Record | str:
    turns = line.fields.get("conversations", line.fields.get("conversation"))
    if not isinstance(turns, list) or not turns:
        return "no turns"
    spoken = []
    for turn in turns:
        role = _ROLES.get(str(turn.get("from", turn.get("role", ""))).lower()) if isinstance(turn, dict) else None
        value = turn.get("value", turn.get("content")) if isinstance(turn, dict) else None
        if role is None or not isinstance(value, str):
            return "a turn without a known role or text"
        spoken.append((role, value))
    place = next((i for i, (role, _) in enumerate(spoken) if role == "user"), None)
    if place is None:
        return "no question"
    if not spoken[place][1].strip():
        return "an empty question"
    if place + 1 >= len(spoken) or spoken[place + 1][0] != "assistant":
        return "no answer"
    system = tuple(Message("system", text) for role, text in spoken[:place] if role == "system" and text.strip())
    return Record((*system, Message("user", spoken[place][1])), spoken[place + 1][1])


def _from_fields(line: Line, ask: Ask) -> Record | str:
    fields = line.fields
    if "conversations" in fields:
        return _from_conversation(line, ask)
    output = _output_tokens(line)
    reference = next((str(fields[name]) for name in _REFERENCE if isinstance(fields.get(name), str)), "")
    if isinstance(turns := fields.get("messages"), list):
        return _from_messages(turns, reference, output)
    named = ask.workload.options.get("prompt_field")
    names = (named,) if named else _PROMPT
    name = next((name for name in names if name in fields), None)
    if name is None:
        raise UsageError(f"{line.at}: there is no field {' or '.join(names)}; name yours with the option prompt_field")
    prompt = fields[name]
    if not isinstance(prompt, str) or not prompt.strip():
        return "an empty prompt"
    system = fields.get("system")
    before = (Message("system", system),) if isinstance(system, str) and system.strip() else ()
    return Record((*before, Message("user", prompt)), reference, output)


def _from_messages(turns: list[object], reference: str, output: int) -> Record | str:
    """OpenAI messages; model turns at the end are the reference, not part of the prompt."""
    said = []
    for turn in turns:
        role = _ROLES.get(str(turn.get("role", "")).lower()) if isinstance(turn, dict) else None
        content = turn.get("content") if isinstance(turn, dict) else None
        if role is None or not isinstance(content, str):
            return "a turn without a known role or text"
        said.append(Message(role, content))
    while said and said[-1].role == "assistant":
        reference = said.pop().content or reference
    if not said or not (said[-1].content or "").strip():
        return "an empty prompt"
    return Record(tuple(said), reference, output)


def _output_tokens(line: Line) -> int:
    value = next((line.fields[name] for name in _LENGTH if line.fields.get(name) not in (None, "")), 0)
    try:
        output = int(str(value))
    except ValueError:
        output = -1
    if output < 0:
        raise UsageError(f"{line.at}: the answer length is {value!r}; give a whole number of tokens")
    return output
