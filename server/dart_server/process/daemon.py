"""The farm as a process: one per runtime directory, bound to a Unix socket or a loopback port, stopped by a signal or by idleness.

Rule: what can go wrong before the start (another farm, a socket in use, a host that lacks something) is a `ConfigError` in one
sentence, and nothing is left of the attempt. A stop destroys every desktop and snapshot. Non-goals: becoming a background process
(the caller does that).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gc
import json
import logging
import os
import resource
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dart_server.errors import ConfigError
from dart_server.observability import tracing
from dart_server.settings import FarmSettings

if TYPE_CHECKING:
    from dart_server.http.ingress.certificate import Certificate

log = logging.getLogger(__name__)
GRACE_S = 3
"""How long requests in flight may go on after a stop was asked for."""
SOCKET_PATH_LIMIT = 100
"""Bytes of a Unix socket's path; the kernel takes 107."""
SPARE_DESCRIPTORS = 128
"""Descriptors for all that is no client's connection: the ledger, files, children."""
SWITCH_S = 0.0002
"""How long a thread keeps the interpreter's lock while another one wants it. The ledger's asks for it after every statement; at Python's
5 ms a write takes a tenth of a second on a busy farm, and a claim waits for it."""
COLLECTED = (2_000, 10, 100)
"""When the garbage collector looks at new objects, older ones, and all: often and for a moment, and seldom where it takes long."""
WhenBound = Callable[[FarmSettings], None]
WhenServing = Callable[[Mapping[str, Any]], None]
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


class AlreadyRunning(Exception):
    """A farm runs in this runtime directory; `pid` is its process."""

    def __init__(self, pid: int) -> None:
        super().__init__(f"a farm is already running (process {pid})")
        self.pid = pid


@contextmanager
def sole_farm(settings: FarmSettings) -> Iterator[None]:
    """Hold the locks of the runtime and of the state directory. Raises `AlreadyRunning`, `ConfigError`."""
    with _held(settings.lock_path, settings), contextlib.ExitStack() as both:
        if settings.state_dir != settings.runtime_dir:
            try:
                both.enter_context(_held(settings.state_dir / settings.lock_path.name, settings))
            except AlreadyRunning as other:
                raise ConfigError(
                    f"the farm of process {other.pid} keeps its state in {settings.state_dir}; set DART_STATE_DIR to another directory."
                ) from None
        yield


@contextmanager
def _held(path: Path, settings: FarmSettings) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadyRunning(_pid_in(descriptor)) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps({"pid": os.getpid(), "provider": settings.provider}).encode(), 0)
        yield
        os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def _note_address(settings: FarmSettings, listening: socket.socket) -> dict[str, Any]:
    """Write where the farm listens beside its process, so that this user's commands find it there; what was written."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
    place = f"[{host}]" if ":" in host else host
    scheme = "http" if settings.tls_cert is None else "https"
    url = f"unix://{settings.uds}" if settings.uds else f"{scheme}://{place}:{listening.getsockname()[1]}"
    noted = {"pid": os.getpid(), "provider": settings.provider, "url": url}
    descriptor = os.open(settings.lock_path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        text = json.dumps(noted).encode()
        os.ftruncate(descriptor, os.pwrite(descriptor, text, 0))
    finally:
        os.close(descriptor)
    return noted


def running_url(settings: FarmSettings) -> str | None:
    """Where the farm that holds this runtime directory listens, None when there is none or it does not listen yet."""
    if running_pid(settings) is None:
        return None
    try:
        return str(json.loads(settings.lock_path.read_text())["url"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def running_pid(settings: FarmSettings) -> int | None:
    """The process of the farm that holds this runtime directory, None when there is none."""
    try:
        descriptor = os.open(settings.lock_path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return _pid_in(descriptor)
    finally:
        os.close(descriptor)
    return None


def _pid_in(descriptor: int) -> int:
    try:
        return int(json.loads(os.pread(descriptor, 4096, 0))["pid"])
    except (ValueError, KeyError, TypeError):
        return 0


def stop_running(settings: FarmSettings, timeout_s: float) -> bool:
    """Ask the running farm to stop and wait for its end; False when none runs. Raises `ConfigError` when it does not end."""
    pid = running_pid(settings)
    if pid is None:
        return False
    if pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + timeout_s
    while running_pid(settings) is not None:
        if time.monotonic() >= deadline:
            raise ConfigError(
                f"the farm (process {pid}) did not stop within {timeout_s:g} s; end it with `kill -9 {pid}`, then `dart-farm reap`."
            )
        time.sleep(0.05)
    return True


def require_cover(settings: FarmSettings) -> None:
    """Beyond loopback only under TLS, or where that was waived. Raises `ConfigError`."""
    if settings.host in LOOPBACK or settings.tls_cert is not None:
        return
    if not settings.insecure_plain_http:
        raise ConfigError(
            f"the farm listens on {settings.host} only with TLS: give --tls-cert and --tls-key, use an SSH tunnel,"
            " or waive it with --insecure-plain-http."
        )
    log.warning("plain HTTP on %s: keys and screens cross the network readable by others", settings.host)


def tls_context(settings: FarmSettings) -> ssl.SSLContext | None:
    """TLS 1.2 or later with the farm's certificate; None without one. Raises `ConfigError`."""
    if settings.tls_cert is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key, password=_no_password)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the certificate {settings.tls_cert} or its key cannot be used: {error}. Both are PEM, the key without a password."
        ) from error
    return context


def certificate_of(settings: FarmSettings) -> Certificate | None:
    """The farm's certificate, which is taken up again when its files change; None without one. Raises `ConfigError`."""
    from dart_server.http.ingress.certificate import Certificate

    def make() -> ssl.SSLContext:
        made = tls_context(settings)
        assert made is not None
        return made

    files = tuple(path for path in (settings.tls_cert, settings.tls_key) if path is not None)
    return Certificate(make, files) if files else None


def _no_password() -> str:
    raise ValueError("the key has a password")


def connections_allowed(settings: FarmSettings) -> int:
    """As many connections as the settings say, and as this process may open: each may need a second descriptor, to its desktop."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * settings.max_connections + SPARE_DESCRIPTORS
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(8, min(settings.max_connections, (soft - SPARE_DESCRIPTORS) // 2))


def bind(settings: FarmSettings) -> socket.socket:
    """The bound socket that the farm will listen on. Raises `ConfigError`."""
    if settings.uds is not None:
        return _bind_unix(settings.uds)
    require_cover(settings)
    bound = socket.socket(socket.AF_INET6 if ":" in settings.host else socket.AF_INET, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((settings.host, settings.port))
        bound.listen()
    except OSError as error:
        bound.close()
        raise ConfigError(
            f"port {settings.port} on {settings.host} is in use ({error.strerror}); choose another with --port."
        ) from error
    return bound


def _bind_unix(path: Path) -> socket.socket:
    if len(os.fsencode(path)) > SOCKET_PATH_LIMIT:
        raise ConfigError(
            f"the socket path {path} is too long for a Unix socket; set DART_RUNTIME_DIR to a shorter one."
        )
    if path.exists():
        if not path.is_socket():
            raise ConfigError(f"{path} exists and is not a socket; choose another with --uds.")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(os.fspath(path))
            except OSError:
                path.unlink()
            else:
                raise ConfigError(f"{path} is in use by another server; stop it, or choose another with --uds.")
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        bound.bind(os.fspath(path))
    except OSError as error:
        bound.close()
        raise ConfigError(f"{path} cannot be made: {error.strerror}. Choose another with --uds.") from error
    finally:
        os.umask(mask)
    return bound


def run(
    settings: FarmSettings,
    *,
    idle_shutdown_s: float | None,
    when_bound: WhenBound | None = None,
    when_serving: WhenServing | None = None,
) -> None:
    """`serve` on an event loop of libuv, which takes a third of the processor time that asyncio's own takes for sockets."""
    import uvloop

    sys.setswitchinterval(SWITCH_S)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(settings, idle_shutdown_s=idle_shutdown_s, when_bound=when_bound, when_serving=when_serving))


def spare_what_stays() -> None:
    """What lives now, modules and tables above all, stays for as long as the farm: the garbage collector does not look at it again. A look
    at everything takes 0.15 s, in which nobody is served."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTED)


async def serve(
    settings: FarmSettings,
    *,
    idle_shutdown_s: float | None,
    when_bound: WhenBound | None = None,
    when_serving: WhenServing | None = None,
) -> None:
    """Run a farm until a signal, or until it was idle for `idle_shutdown_s`. `when_bound` is called once it has its address and before it
    starts, `when_serving` with `pid`, `provider` and `url` once it has started. Raises `ConfigError`, `ProviderError`."""
    import uvicorn

    from dart_server.farm import Farm, package_version
    from dart_server.http.app import create_app
    from dart_server.http.chunked_writes import piecewise_protocol
    from dart_server.http.ingress.connections import guarded_protocol
    from dart_server.http.ingress.tls import TlsDoor
    from dart_server.providers.factory import make_provider

    tls = certificate_of(settings)
    listening = bind(settings)
    connections = connections_allowed(settings)
    if when_bound is not None:
        when_bound(settings)
    protocol: Any = guarded_protocol(connections)

    class Server(uvicorn.Server):
        """Signals are handled here below, for the farm's start and stop too; under TLS the door is our own."""

        door: TlsDoor | None = None

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            if tls is None:
                await super().startup(sockets)
                return
            await super().startup([])
            self.door = TlsDoor(listening, tls, self._protocol, connections)
            self.door.open()

        def _protocol(self) -> asyncio.Protocol:
            made: asyncio.Protocol = protocol(
                config=self.config, server_state=self.server_state, app_state=self.lifespan.state
            )
            return made

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            if self.door is not None:
                await self.door.close()
            await super().shutdown(sockets)

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    end_traces = tracing.configure(settings.traces, version=package_version())
    farm = Farm(settings, tracing.traced(make_provider(settings)))
    config: dict[str, Any] = {"lifespan": "off", "log_config": None, "access_log": False, "server_header": False}
    config |= {"ws": piecewise_protocol(), "ws_per_message_deflate": False}
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
        noted = _note_address(settings, listening)
        spare_what_stays()
        log.info("the farm serves on %s with provider %s", noted["url"], settings.provider)
        if when_serving is not None:
            when_serving(noted)
        serving = loop.create_task(server.serve(sockets=[listening]))
        watchers.append(serving)
        if tls is not None:
            renewing = loop.create_task(tls.watch(farm.metrics.certificate_ends))
        if idle_shutdown_s is not None:
            watchers.append(loop.create_task(farm.idle_forever_after(idle_shutdown_s)))
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
