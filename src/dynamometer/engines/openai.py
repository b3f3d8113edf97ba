"""OpenAI's chat and text completions, as hosted services and self-hosted engines speak them; a stream or one document.

Source: the OpenAI API reference (chat/completions, completions), and what vLLM, SGLang, llama.cpp, Azure OpenAI,
Mistral and OpenRouter add: running usage, token ids, timings, reasoning under four names, filter reports, comments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from dynamometer.engines.dialect import HttpRequest
from dynamometer.engines.fault import explain
from dynamometer.engines.ledger import CHUNK, CONTENT, REASONING, REFUSAL, TOOL, WHOLE, Ledger
from dynamometer.engines.post import join, post
from dynamometer.engines.prompt import plain, turns
from dynamometer.engines.reading import EventDialect, failed, json_event, json_whole
from dynamometer.engines.sse import Event
from dynamometer.errors import UsageError
from dynamometer.types import Chunk, Request, Target

Text = str | list[object] | None  # some servers send content as a list of typed parts


class Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | dict[str, object] | None = None


class ToolCall(msgspec.Struct):
    index: int | None = None
    function: Function | None = None


class Delta(msgspec.Struct):
    """A piece of the answer; also the whole message of an answer that is no stream."""

    role: str | None = None
    content: Text = None
    reasoning_content: Text = None  # DeepSeek, SGLang, llama.cpp, vLLM until 0.10
    reasoning: Text = None  # vLLM since, OpenRouter, Groq
    reasoning_text: Text = None
    thinking: Text = None
    refusal: str | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: Function | None = None


class Counts(msgspec.Struct):
    """Lengths only: what a server says about each token of a chunk."""

    content: list[object] | None = None  # chat
    tokens: list[object] | None = None  # completions


class Choice(msgspec.Struct):
    index: int | None = None
    delta: Delta | None = None
    text: str | None = None
    message: Delta | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None  # vLLM, with return_token_ids
    logprobs: Counts | None = None
    content_filter_results: object = None


class CachedCount(msgspec.Struct):
    cached_tokens: int | None = None


class ReasoningCount(msgspec.Struct):
    reasoning_tokens: int | None = None


class Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None  # SGLang, at the top level
    prompt_cache_hit_tokens: int | None = None  # DeepSeek
    prompt_tokens_details: CachedCount | None = None
    completion_tokens_details: ReasoningCount | None = None


class Timings(msgspec.Struct):
    """llama.cpp's own clock. `prompt_n` counts only what was processed, `cache_n` what the cache gave."""

    cache_n: int | None = None
    prompt_n: int | None = None
    prompt_ms: float | None = None
    predicted_n: int | None = None
    predicted_ms: float | None = None


class Answer(msgspec.Struct):
    """One event of a stream, or the whole document."""

    choices: list[Choice] | None = None
    usage: Usage | None = None
    timings: Timings | None = None
    error: object = None
    kind: str | None = msgspec.field(default=None, name="object")
    prompt_filter_results: object = None


_ANSWER: Final = msgspec.json.Decoder(Answer)
_OPEN_BRACE: Final = ord("{")


def _read(ledger: Ledger, events: list[Event], at_ns: int) -> None:
    """The events of one read. The first branch is the plain text chunk, which is nearly every event of a load."""
    chunks = ledger.chunks
    for name, data in events:
        if name or not data or data[0] != _OPEN_BRACE:
            _other_event(ledger, name, data, at_ns)
        else:
            try:
                answer = _ANSWER.decode(data)
            except (ValueError, RecursionError):
                _other_event(ledger, name, data, at_ns)
                continue
            choices = answer.choices
            if choices is not None and len(choices) == 1 and answer.usage is None and answer.timings is None:
                text = _only_text(choices[0])
                if text is not None and not answer.error:
                    ledger.spoke, ledger.counted = True, False
                    chunks.append(Chunk(CHUNK, at_ns, 0, text, CONTENT))
                    continue
            _event(ledger, answer, data, at_ns)
        if ledger.ended:
            return


def _only_text(choice: Choice) -> str | None:
    """The text of a choice that holds text and nothing else; None for all others."""
    if choice.finish_reason is not None or choice.token_ids is not None or choice.logprobs is not None or choice.index:
        return None
    delta = choice.delta
    if delta is None:
        return choice.text or None
    content = delta.content
    if type(content) is not str or not content:
        return None
    if delta.reasoning_content or delta.reasoning or delta.reasoning_text or delta.thinking:
        return None
    return None if delta.refusal or delta.tool_calls or delta.function_call else content


def _event(ledger: Ledger, answer: Answer, data: bytes, at_ns: int) -> None:
    if failed(ledger, answer.error or answer.kind == "error", data, at_ns):
        return
    choice = answer.choices[0] if answer.choices else None
    if choice is not None:
        _choice(ledger, choice, _tokens(ledger, answer, choice), at_ns)
    elif answer.prompt_filter_results is not None:
        ledger.frame(at_ns, "filter")
    elif answer.usage is None and answer.timings is None:
        ledger.frame(at_ns, "empty")
    _counts(ledger, answer, at_ns)


def _tokens(ledger: Ledger, answer: Answer, choice: Choice) -> int:
    """Tokens in this event, if the server said so: by a running total, by ids, or by one log probability each."""
    if answer.usage is not None and answer.usage.completion_tokens is not None:
        return ledger.running_count(answer.usage.completion_tokens)
    if answer.timings is not None and answer.timings.predicted_n is not None and not choice.finish_reason:
        return ledger.running_count(answer.timings.predicted_n)
    if choice.token_ids is not None:
        return len(choice.token_ids)
    if choice.logprobs is not None:
        return len(choice.logprobs.content or choice.logprobs.tokens or ())
    return 0


def _choice(ledger: Ledger, choice: Choice, tokens: int, at_ns: int) -> None:
    pieces = [(CONTENT, choice.text)] if choice.text else _pieces(choice.delta or Delta())
    if pieces or tokens:
        # tokens without text are tokens all the same: a server holds text back until a character is whole
        for number, (channel, text) in enumerate(pieces or [(CONTENT, "")]):
            ledger.text(at_ns, channel, text, tokens if number == 0 else 0)
        if not tokens:
            ledger.counted = False
    elif choice.content_filter_results is not None and not choice.finish_reason:
        ledger.frame(at_ns, "filter")
    elif choice.delta is not None and choice.delta.role:
        ledger.frame(at_ns, "role")
    elif not choice.finish_reason:
        ledger.frame(at_ns, "empty")
    if choice.finish_reason:
        ledger.finish(at_ns, choice.finish_reason)


def _pieces(delta: Delta) -> list[tuple[str, str]]:
    """(channel, text) of everything that was generated. A call's channel is "tool", and "tool 1" from the second on."""
    found = []
    # gateways repeat the same thought under two names: only the first is taken
    thought = _plain(delta.reasoning_content or delta.reasoning or delta.reasoning_text or delta.thinking)
    if thought:
        found.append((REASONING, thought))
    if isinstance(delta.content, list):
        found += [piece for part in delta.content for piece in _part(part)]
    elif delta.content:
        found.append((CONTENT, delta.content))
    if delta.refusal:
        found.append((REFUSAL, delta.refusal))
    for number, call in enumerate(delta.tool_calls or ()):
        index = number if call.index is None else call.index
        if call.function is not None and (text := _call(call.function)):
            found.append((f"{TOOL} {index}" if index else TOOL, text))
    if delta.function_call is not None and (text := _call(delta.function_call)):
        found.append((TOOL, text))
    return found


def _call(function: Function) -> str:
    arguments = function.arguments or ""
    if isinstance(arguments, dict):
        arguments = msgspec.json.encode(arguments).decode()
    return (function.name or "") + arguments


def _plain(text: Text) -> str:
    if isinstance(text, list):
        return "".join(piece for part in text for _, piece in _part(part))
    return text or ""


def _part(part: object) -> list[tuple[str, str]]:
    """One typed part of a content list: {"type": "text", "text": …} or {"type": "thinking", "thinking": …}."""
    if isinstance(part, str):
        return [(CONTENT, part)] if part else []
    if not isinstance(part, dict):
        return []
    channel = REASONING if part.get("type") in ("thinking", "reasoning") else CONTENT
    text = part.get("text") or part.get("thinking") or part.get("reasoning")
    flat = _plain(text) if isinstance(text, str | list) else ""
    return [(channel, flat)] if flat else []


def _counts(ledger: Ledger, answer: Answer, at_ns: int) -> None:
    usage, timings = answer.usage, answer.timings
    if usage is not None:
        prompt, output = usage.prompt_tokens_details, usage.completion_tokens_details
        ledger.usage(at_ns, "prompt", usage.prompt_tokens)
        ledger.usage(at_ns, "output", usage.completion_tokens)
        ledger.usage(at_ns, "cached", usage.prompt_cache_hit_tokens)
        ledger.usage(at_ns, "cached", prompt.cached_tokens if prompt else None)
        ledger.usage(at_ns, "reasoning", usage.reasoning_tokens)
        ledger.usage(at_ns, "reasoning", output.reasoning_tokens if output else None)
    if timings is not None:
        server_timings(ledger, timings, at_ns)


def server_timings(ledger: Ledger, timings: Timings, at_ns: int) -> None:
    """llama.cpp's durations, and its counts where no usage object gives them."""
    ledger.timing(at_ns, "prompt", None if timings.prompt_ms is None else timings.prompt_ms / 1e3)
    ledger.timing(at_ns, "decode", None if timings.predicted_ms is None else timings.predicted_ms / 1e3)
    if timings.prompt_n is not None:
        ledger.fallback_usage(at_ns, "prompt", timings.prompt_n + (timings.cache_n or 0))
    ledger.fallback_usage(at_ns, "cached", timings.cache_n)
    ledger.fallback_usage(at_ns, "output", timings.predicted_n)


def _document(ledger: Ledger, answer: Answer, body: bytes, at_ns: int) -> None:
    """An answer that is one document. All its text has the time of the last read; a frame says so."""
    if answer.choices:
        first = answer.choices[0]
        ledger.frame(at_ns, WHOLE)
        answer.choices = [Choice(None, first.message, first.text, None, first.finish_reason or "stop")]
        _event(ledger, answer, body, at_ns)
    else:
        ledger.fail(at_ns, *explain(body, "no choices"))


_other_event: Final = json_event(_ANSWER, _event)
_whole: Final = json_whole(_ANSWER, _document)


def fields(request: Request, target: Target) -> dict[str, object]:
    """The fields that both dialects send, before the prompt: model, limit, stop rule, streaming with usage."""
    several = next((name for name in ("n", "best_of") if target.body.get(name) not in (None, 1)), "")
    if several:
        raise UsageError(
            f"{several} is {target.body[several]!r} in the request body; "
            "a measured request has one answer, so leave it 1"
        )
    limit = "max_tokens" if target.tokens_field == "auto" else target.tokens_field
    streaming = target.body.get("stream", True) is True
    return {
        "model": target.model or None,
        limit: request.output_tokens or None,
        "ignore_eos": True if request.ignore_eos else None,
        "stop": list(request.stop) or None,
        "stream": streaming,
        "stream_options": {"include_usage": True} if streaming else None,
    }


def _ask_chat(request: Request, target: Target, answers: Mapping[int, str]) -> HttpRequest:
    path = join(target, "/chat/completions", "/v1")
    return post(target, path, {**fields(request, target), "messages": turns(request, answers)})


def _ask_completions(request: Request, target: Target, answers: Mapping[int, str]) -> HttpRequest:
    path = join(target, "/completions", "/v1")
    return post(target, path, {**fields(request, target), "prompt": plain(request, answers)})


chat: Final = EventDialect("openai.chat", _ask_chat, _read, _whole, text_key=b'"content"')
completions: Final = EventDialect("openai.completions", _ask_completions, _read, _whole, text_key=b'"text"')
