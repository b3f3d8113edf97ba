"""A configuration in, a gateway on its sockets until SIGTERM or Ctrl-C: it drains, then ends."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
import ssl
from collections.abc import Callable

import uvloop

from dynamometer.errors import RecordError, UsageError
from dynamometer.gateway.admin import Admin
from dynamometer.gateway.config import Config, address, keys
from dynamometer.gateway.front import Front, House
from dynamometer.gateway.proxy import Gateway
from dynamometer.record.clock import now_ns, wall_ns

Say = Callable[[str], None]


def run(config: Config, say: Say) -> None:
    """Blocks. `say` gets what a person at the terminal should know."""
    accepted = keys(config)
    tls = _tls(config)
    os.umask(0o077)
    gc.collect()
    gc.freeze()  # a full collection would walk every module's objects and hold each stream up for as long
    gc.set_threshold(50_000, 20, 50)
    _open_files(config)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        fatal = runner.run(_serve(config, accepted, tls, say))
    if fatal:
        raise RecordError(fatal)


async def _serve(config: Config, accepted: tuple[str, ...], tls: ssl.SSLContext | None, say: Say) -> str:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    gateway = Gateway(config, accepted, os.environ, (now_ns, wall_ns))
    try:
        servers = [
            await _listen(gateway, config.listen, tls),
            await _listen(Admin(gateway), config.admin, None),
        ]
    except UsageError:
        gateway.close()
        raise
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    where = f"{'https' if tls else 'http'}://{config.listen}"
    say(f"the gateway answers at {where}/v1; status: dyno gateway status; admin at {config.admin}")
    if not accepted:
        say("no key is asked for; it is on loopback only")
    while not stop.is_set() and not gateway.fatal:
        await _pause(stop, 0.25)
        gateway.tick(now_ns())
    say(gateway.fatal or f"draining: {len(gateway.active)} requests in flight; Ctrl-C again ends them")
    stop.clear()
    gateway.draining = True
    servers[0].close()
    until_ns = now_ns() + round(config.limits.drain_s * 1e9)
    while (gateway.active or gateway.queue) and now_ns() < until_ns and not stop.is_set():
        await _pause(stop, 0.1)
        gateway.tick(now_ns())
    left = len(gateway.active)
    gateway.close()
    servers[1].close()
    await asyncio.sleep(0.05)  # what was written last goes out
    say(f"stopped; {left} requests were cut off" if left else "stopped")
    return gateway.fatal


async def _pause(stop: asyncio.Event, wait_s: float) -> None:
    try:
        async with asyncio.timeout(wait_s):
            await stop.wait()
    except TimeoutError:
        pass


async def _listen(house: House, where: str, tls: ssl.SSLContext | None) -> asyncio.Server:
    host, port = address(where)
    try:
        # a client that starts TLS and does not go on is a slow client like any other
        patience_s = house.limits.request_s if tls else None
        return await asyncio.get_running_loop().create_server(
            lambda: Front(house, now_ns), host, port, ssl=tls, backlog=1024, ssl_handshake_timeout=patience_s
        )
    except OSError as wrong:
        raise UsageError(f"{where} cannot be listened on: {wrong.strerror or wrong}; give another address") from wrong


def _tls(config: Config) -> ssl.SSLContext | None:
    if not config.tls.cert:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(config.tls.cert, config.tls.key)
    except (OSError, ssl.SSLError) as wrong:
        raise UsageError(f"the certificate {config.tls.cert} or its key cannot be used: {wrong}") from wrong
    return context


def _open_files(config: Config) -> None:
    """Each request in flight holds two connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * config.limits.connections + 256
    if soft != resource.RLIM_INFINITY and soft < wanted:
        top = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (top, hard))
