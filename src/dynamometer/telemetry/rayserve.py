"""Ray Serve's page of applications in, `Sample` rows out: replicas asked for and replicas that take requests.

Plain HTTP and JSON, so Ray need not be installed where the load comes from. The page is
http://HOST:8265/api/serve/applications/ on the head node.
"""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec

from dynamometer.types import Sample

SOURCE = "rayserve"
PATH = "/api/serve/applications"
ASKED, READY = "replicas_asked", "replicas_ready"


class _Replica(msgspec.Struct, frozen=True):
    state: str = ""


class _Deployment(msgspec.Struct, frozen=True):
    target_num_replicas: int | None = None
    replicas: tuple[_Replica, ...] = ()


class _Application(msgspec.Struct, frozen=True):
    deployments: Mapping[str, _Deployment] = {}


class _Page(msgspec.Struct, frozen=True):
    applications: Mapping[str, _Application] = {}


class RayServe:
    """A sampler. `url`: the page; the device of a sample is application/deployment."""

    def __init__(self, url: str, timeout_s: float = 2.0) -> None:
        self._at, self._timeout_s = urlsplit(url), timeout_s
        self._missing: tuple[str, ...] = ()

    @property
    def missing(self) -> tuple[str, ...]:
        return self._missing

    def read(self, at_ns: int) -> list[Sample]:
        connection = http.client.HTTPConnection(self._at.hostname or "", self._at.port, timeout=self._timeout_s)
        try:
            connection.request("GET", self._at.path or PATH, headers={"accept": "application/json"})
            answer = connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException) as wrong:
            self._missing = (f"{SOURCE} ({self._at.geturl()} cannot be read: {wrong or type(wrong).__name__})",)
            return []
        finally:
            connection.close()
        if answer.status != 200:
            self._missing = (f"{SOURCE} ({self._at.geturl()} answers {answer.status} {answer.reason})",)
            return []
        self._missing = ()
        return readings(body, at_ns)


def readings(body: bytes, at_ns: int) -> list[Sample]:
    """The page's JSON as samples, two a deployment; raises msgspec.DecodeError for what is no such page."""
    found: list[Sample] = []
    for application, one in msgspec.json.decode(body, type=_Page).applications.items():
        for name, deployment in one.deployments.items():
            ready = sum(replica.state == "RUNNING" for replica in deployment.replicas)
            asked = deployment.target_num_replicas
            device = f"{application}/{name}"
            if asked is not None:
                found.append(Sample(SOURCE, ASKED, device, at_ns, float(asked)))
            found.append(Sample(SOURCE, READY, device, at_ns, float(ready)))
    return found
