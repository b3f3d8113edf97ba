"""The URL of an engine's /metrics page in, `Sample` rows under names that hold over engines and versions out."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Mapping
from urllib.parse import urlsplit

from dynamometer.errors import UsageError
from dynamometer.pages import names
from dynamometer.pages.exposition import parse
from dynamometer.types import Sample

SOURCE = "prometheus"


class Prometheus:
    """A sampler. `source` tells apart several pages of one run, e.g. an engine's and a DCGM exporter's."""

    def __init__(
        self, url: str, headers: Mapping[str, str] | None = None, timeout_s: float = 2.0, source: str = SOURCE
    ) -> None:
        at = urlsplit(url)
        if at.scheme not in ("http", "https") or not at.hostname:
            raise UsageError(f"metrics URL is {url!r}; give http://HOST:PORT/metrics")
        self._at, self._headers, self._timeout_s, self._source = at, dict(headers or {}), timeout_s, source
        self._connection: http.client.HTTPConnection | None = None
        self._buckets: dict[tuple[str, str], float] = {}
        self._missing: tuple[str, ...] = ()

    @property
    def missing(self) -> tuple[str, ...]:
        return self._missing

    def read(self, at_ns: int) -> list[Sample]:
        text, why = self._page()
        if why:
            self._missing = (f"{self._source} ({self._at.geturl()} {why})",)
            return []
        series = parse(text, names.PREFIXES)
        engine = names.engine_of(series)
        if not engine:
            self._missing = (f"{self._source} ({self._at.geturl()} holds no metric of an engine known here)",)
            return []
        self._missing = tuple(f"{self._source}.{name} (not on {engine}'s page)" for name in names.absent(series))
        return [
            Sample(self._source, one.name, one.device, at_ns, one.value)
            for one in names.readings(series)
            if self._is_new(one)
        ]

    def _is_new(self, one: names.Reading) -> bool:
        """Buckets are many and mostly at rest: one is written when it has changed."""
        if not one.name.endswith("_bucket"):
            return True
        key = (one.name, one.device)
        changed = self._buckets.get(key) != one.value
        self._buckets[key] = one.value
        return changed

    def _page(self) -> tuple[str, str]:
        """The page's text, or why there is none. The connection is kept between reads; one that was closed is
        renewed.
        """
        for attempt in (0, 1):
            connection = self._connection or self._connect()
            self._connection = connection
            try:
                connection.request(
                    "GET", f"{self._at.path or '/metrics'}?{self._at.query}".rstrip("?"), headers=self._headers
                )
                answer = connection.getresponse()
                body = answer.read()
            except (OSError, http.client.HTTPException) as wrong:
                connection.close()
                self._connection = None
                if attempt:
                    return "", f"cannot be read: {wrong or type(wrong).__name__}"
                continue
            if answer.status != 200:
                return "", f"answers {answer.status} {answer.reason}"
            return body.decode(errors="replace"), ""
        return "", "cannot be read"

    def _connect(self) -> http.client.HTTPConnection:
        host, port = self._at.hostname or "", self._at.port
        if self._at.scheme == "https":
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(host, port, timeout=self._timeout_s, context=context)
        return http.client.HTTPConnection(host, port, timeout=self._timeout_s)
