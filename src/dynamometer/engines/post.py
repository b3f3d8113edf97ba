"""A target, a path and JSON fields in, one HTTP POST out: what all dialects share in asking."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

import msgspec

from dynamometer.engines.dialect import HttpRequest
from dynamometer.errors import UsageError
from dynamometer.types import Target

JSON_POST: Final = {"content-type": "application/json", "accept": "text/event-stream, application/json"}


def post(
    target: Target,
    path: str,
    fields: Mapping[str, object],
    key_header: str = "authorization",
    headers: Mapping[str, str] = JSON_POST,
) -> HttpRequest:
    """`path` is complete, query included. `Target.body` wins over `fields`; a null in it removes the field, and an
    object in it is merged with ours, so that a user's option does not lose the limit.

    `key_header` carries the API key, as a bearer token if it is `authorization`. The client adds `Target.headers`.
    """
    body = {name: value for name, value in fields.items() if value is not None}
    for name, value in target.body.items():
        ours = body.get(name)
        if value is None:
            body.pop(name, None)
        elif isinstance(ours, dict) and isinstance(value, dict):
            body[name] = {key: part for key, part in {**ours, **value}.items() if part is not None}
        else:
            body[name] = value
    headers = dict(headers)
    key = api_key(target) if target.api_key_env else ""
    if key:
        headers[key_header] = f"Bearer {key}" if key_header == "authorization" else key
    return HttpRequest("POST", path, tuple(headers.items()), msgspec.json.encode(body))


def api_key(target: Target) -> str:
    """The key, from the environment variable that the target names; "" when it names none."""
    if not target.api_key_env:
        return ""
    key = os.environ.get(target.api_key_env, "").strip()
    if not key:
        raise UsageError(
            f"the API key of {target.url} is not set; export {target.api_key_env}=… or leave --api-key-env out"
        )
    return key


def join(target: Target, tail: str, version: str = "") -> str:
    """The path of `target.url` with `tail` behind it, unless it ends in `tail` already; the query is kept.

    `version`, e.g. "/v1", is put in where the URL has no path of its own. With version "" a trailing "/v1" is cut
    off, so that one base URL serves the OpenAI dialects and an engine's native ones.
    """
    parts = urlsplit(target.url)
    base = parts.path.rstrip("/")
    if not base.endswith(tail):
        base = (base or version if version else base.removesuffix("/v1")) + tail
    return f"{base}?{parts.query}" if parts.query else base
