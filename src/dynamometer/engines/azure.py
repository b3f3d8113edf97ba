"""Azure OpenAI deployments: chat completions under a deployment's path, with an API version and the key in `api-key`.

Source: the Azure OpenAI REST reference. The answers are those of `openai.chat`. Azure's newer /openai/v1 path speaks
plain `openai.chat` and needs no dialect of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, urlsplit

import msgspec

from dynamometer.engines.dialect import HttpRequest
from dynamometer.engines.openai import chat, fields
from dynamometer.engines.post import join, post
from dynamometer.engines.prompt import turns
from dynamometer.errors import UsageError
from dynamometer.types import Request, Target

API_VERSION: Final = "2024-10-21"  # used unless the URL has ?api-version=…


def _ask(request: Request, target: Target, answers: Mapping[int, str]) -> HttpRequest:
    # hosted: the deployment is the model, and a field that the API does not know fails the request
    body = {**fields(request, target), "model": None, "ignore_eos": None, "messages": turns(request, answers)}
    return post(target, path(target), body, key_header="api-key")


def path(target: Target) -> str:
    """…/openai/deployments/DEPLOYMENT/chat/completions?api-version=…, where the deployment is `target.model`."""
    parts = urlsplit(target.url)
    if "/deployments/" not in parts.path:
        if not target.model:
            raise UsageError(f"{target.url} names no deployment; give --model DEPLOYMENT or a URL with /deployments/…")
        base = parts.path.rstrip("/").removesuffix("/openai")
        parts = parts._replace(path=f"{base}/openai/deployments/{quote(target.model, safe='')}")
    found = join(msgspec.structs.replace(target, url=parts.geturl()), "/chat/completions")
    if "api-version=" in parts.query:
        return found
    return f"{found}{'&' if parts.query else '?'}api-version={API_VERSION}"


azure: Final = msgspec.structs.replace(chat, name="azure", ask=_ask)
