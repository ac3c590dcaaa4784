"""The farm as a process: one per runtime directory, bound to a Unix socket or a loopback port, stopped by a signal or by idleness.

Rule: what can go wrong before the start (another farm, a socket in use, a host that lacks something) is a `FarmConfigError` in one
sentence, and nothing is left of the attempt. A stop destroys every desktop and snapshot. Non-goals: becoming a background process
(the caller does that).
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from dart_server.observability import tracing
from dart_server.process import privileges
from dart_server.process.instance import note_address
from dart_server.process.listening import bind, certificate_of, effective_max_connections
from dart_server.settings import FarmSettings

log = logging.getLogger(__name__)
GRACE_S = 3
"""How long requests in flight may go on after a stop was asked for."""
SWITCH_S = 0.0002
"""How long a thread keeps the interpreter's lock while another one wants it. The database's asks for it after every statement; at Python's
5 ms a write takes a tenth of a second on a busy farm, and a claim waits for it."""
GC_THRESHOLDS = (2_000, 10, 100)
"""When the garbage collector looks at new objects, older ones, and all: often and for a moment, and seldom where it takes long."""
OnBound = Callable[[FarmSettings], None]
OnServing = Callable[[Mapping[str, Any]], None]


def run(
    settings: FarmSettings,
    *,
    idle_shutdown_s: float | None,
    on_bound: OnBound | None = None,
    on_serving: OnServing | None = None,
) -> None:
    """`serve` on an event loop of libuv, which takes a third of the processor time that asyncio's own takes for sockets."""
    import uvloop

    sys.setswitchinterval(SWITCH_S)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(settings, idle_shutdown_s=idle_shutdown_s, on_bound=on_bound, on_serving=on_serving))


def freeze_gc() -> None:
    """What lives now, modules and tables above all, stays for as long as the farm: the garbage collector does not look at it again.

    A look at everything takes 0.15 s, in which nobody is served.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


async def serve(
    settings: FarmSettings,
    *,
    idle_shutdown_s: float | None,
    on_bound: OnBound | None = None,
    on_serving: OnServing | None = None,
) -> None:
    """Run a farm until a signal, or until it was idle for `idle_shutdown_s`.

    `on_bound` is called once it has its address and before it starts, `on_serving` with `pid`, `provider` and `url` once it has
    started. Raises `FarmConfigError`, `ProviderError`.
    """
    import uvicorn

    from dart_server.farm import Farm
    from dart_server.http.app import create_app
    from dart_server.http.chunked_writes import chunked_websocket_protocol
    from dart_server.http.ingress.connections import limited_http_protocol
    from dart_server.http.ingress.tls import TlsListener
    from dart_server.providers.factory import create_provider
    from dart_server.wire.extras import package_version

    tls = certificate_of(settings)
    listening = bind(settings)
    connections = effective_max_connections(settings)
    if on_bound is not None:
        on_bound(settings)
    protocol: Any = limited_http_protocol(connections)

    class Server(uvicorn.Server):
        """Signals are handled here below, for the farm's start and stop too; under TLS the listener is our own."""

        tls_listener: TlsListener | None = None

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            if tls is None:
                await super().startup(sockets)
                return
            await super().startup([])
            self.tls_listener = TlsListener(listening, tls, self._protocol, connections)
            self.tls_listener.open()

        def _protocol(self) -> asyncio.Protocol:
            made: asyncio.Protocol = protocol(
                config=self.config, server_state=self.server_state, app_state=self.lifespan.state
            )
            return made

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            if self.tls_listener is not None:
                await self.tls_listener.close()
            await super().shutdown(sockets)

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    end_traces = tracing.configure(settings.traces, version=package_version())
    farm = Farm(settings, tracing.trace_provider(create_provider(settings)))
    config: dict[str, Any] = {"lifespan": "off", "log_config": None, "access_log": False, "server_header": False}
    config |= {"ws": chunked_websocket_protocol(), "ws_per_message_deflate": False}
    config |= {"ws_max_size": settings.json_body_limit_bytes}
    config |= {"timeout_graceful_shutdown": GRACE_S, "timeout_keep_alive": 75}
    config |= {"http": protocol, "proxy_headers": False}
    server = Server(uvicorn.Config(create_app(farm), **config))
    watchers: list[asyncio.Task[Any]] = [loop.create_task(stop.wait())]
    renewing: asyncio.Task[None] | None = None
    try:
        starting = loop.create_task(farm.start())
        await asyncio.wait({starting, watchers[0]}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.wait({starting})
            return
        starting.result()
        privileges.confine()
        noted = note_address(settings, listening)
        freeze_gc()
        log.info("the farm serves on %s with provider %s", noted["url"], settings.provider)
        if on_serving is not None:
            on_serving(noted)
        serving = loop.create_task(server.serve(sockets=[listening]))
        watchers.append(serving)
        if tls is not None:
            renewing = loop.create_task(tls.watch(farm.metrics.set_certificate_expiry))
        if idle_shutdown_s is not None:
            watchers.append(loop.create_task(farm.wait_until_idle(idle_shutdown_s)))
        await asyncio.wait(watchers, return_when=asyncio.FIRST_COMPLETED)
        log.info("the farm stops")
        server.should_exit = True
        await asyncio.wait({serving})
    finally:
        for watcher in (*watchers, *([renewing] if renewing else [])):
            watcher.cancel()
        await farm.stop()
        await asyncio.to_thread(end_traces)
        listening.close()
        if settings.uds is not None:
            settings.uds.unlink(missing_ok=True)
