"""A request's messages in, plain turns or one prompt text out."""

from __future__ import annotations

from collections.abc import Mapping

from dynamometer.errors import UsageError
from dynamometer.types import Request


def turns(request: Request, answers: Mapping[int, str]) -> list[dict[str, str]]:
    """The messages as JSON objects, the engine's own earlier answers filled in.

    The last message without content is the answer to `request.after`; those before it are the answers with the next
    lower indexes among `answers`, which holds this conversation only.
    """
    holes = sum(message.content is None for message in request.messages)
    known = sorted(index for index in answers if index <= request.after)[-holes:] if holes else []
    if len(known) < holes or (holes and known[-1] != request.after):
        raise UsageError(
            f"request {request.index} continues the answer to request {request.after}, which is not there; "
            "send it only after that one is complete"
        )
    texts = iter([answers[index] for index in known])
    return [{"role": m.role, "content": m.content if m.content is not None else next(texts)} for m in request.messages]


def plain(request: Request, answers: Mapping[int, str]) -> str:
    """One text for engines that take a bare prompt: a single message is itself.

    Several are joined as "role: content" paragraphs, closed by "assistant:". No chat template is applied: a bare
    prompt is what these interfaces take, and the model's own template is not ours to guess.
    """
    messages = turns(request, answers)
    if len(messages) == 1:
        return messages[0]["content"]
    return "\n\n".join(f"{m['role']}: {m['content']}" for m in messages) + "\n\nassistant:"
