"""The helper's socket: one request per connection, one JSON line each way, a file descriptor beside it for `dial`, `listen` and `evidence`.

Only the user that started the helper (and root) is served: the socket is 0600 and the peer's uid is checked again.
`attach` keeps its connection open: while none is attached for `idle_timeout_s`, the helper removes everything and ends, so a
farm that dies by SIGKILL leaves nothing behind. A connection that was accepted is served before the helper ends; a later one is reset.
"""

from __future__ import annotations

import array
import json
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from dart_server.hostd import verbs
from dart_server.hostd.containers import ContainerManager
from dart_server.hostd.errors import BadRequest, HostdError, HostdHostFault

log = logging.getLogger("dart.hostd")

PROTOCOL = 1
_REQUEST_TIMEOUT_S = 10.0
_POLL_S = 0.2
_EMPTY_IDLE_TIMEOUT_S = 1.0
_UNLOGGED_VERBS = frozenset({"ping", "health", "inventory", "dial", "listen", "evidence"})
"""Verbs that are logged only when they fail."""


class PassedDescriptor(Protocol):
    """What a verb hands over: a socket, or a file in memory."""

    def fileno(self) -> int:
        """Its descriptor in this process."""
        ...

    def close(self) -> None:
        """Close this process's end."""
        ...


class Server:
    """Accepts connections until stopped; every connection is served by a thread of its own."""

    def __init__(
        self,
        listener: socket.socket,
        host: ContainerManager,
        *,
        owner_uid: int,
        idle_timeout_s: float | None,
        doctor: Callable[[], Any],
        attached: socket.socket | None = None,
    ) -> None:
        """Serve a listener and, where there is one, a connection that is attached already."""
        self._listener = listener
        self._host = host
        self._owner_uid = owner_uid
        self._idle_timeout_s = idle_timeout_s
        self._doctor = doctor
        self._stopping = threading.Event()
        self._served = 0
        self._attached = 0
        self._used = False
        self._counts_lock = threading.Lock()
        self._idle_since: float | None = time.monotonic()
        self._first = attached

    def stop(self) -> None:
        """Make `serve` return soon; safe from a signal handler."""
        self._stopping.set()

    def serve(self) -> None:
        """Run until `stop`, the verb `stop`, or until nobody was attached for `idle_timeout_s`."""
        self._listener.settimeout(_POLL_S)
        if self._first is not None:
            self._start(self._serve_first, self._first, "attached")
        while not self._stopping.is_set() and not self._is_idle():
            try:
                connection, _ = self._listener.accept()
                self._start(self._connection, connection, "request")
            except TimeoutError:
                continue
            except (OSError, RuntimeError) as error:  # no descriptor or no thread at the moment: the desktops live on
                log.warning("a request cannot be served: %s", error)
                self._stopping.wait(_POLL_S)

    def _start(self, serve: Callable[[socket.socket], None], connection: socket.socket, name: str) -> None:
        """Serve a connection in a thread. It counts from here on, because the thread may come to it after the next look at `_is_idle`."""

        def run() -> None:
            try:
                serve(connection)
            finally:
                with self._counts_lock:
                    self._served -= 1

        with self._counts_lock:
            self._served += 1
        try:
            threading.Thread(target=run, name=name, daemon=True).start()
        except RuntimeError:
            with self._counts_lock:
                self._served -= 1
            connection.close()
            raise

    def _is_idle(self) -> bool:
        """Nobody is served or attached: for `idle_timeout_s`, or for a moment when there is nothing left to come back to."""
        if self._idle_timeout_s is None:
            return False
        with self._counts_lock:
            since, used, served = self._idle_since, self._used, self._served
        if served:
            return False
        empty = used and not any(self._host.inventory().values())
        limit_s = min(self._idle_timeout_s, _EMPTY_IDLE_TIMEOUT_S) if empty else self._idle_timeout_s
        return since is not None and time.monotonic() - since > limit_s

    def _connection(self, connection: socket.socket) -> None:
        with connection:
            try:
                if peer_uid(connection) not in (0, self._owner_uid):
                    return
                connection.settimeout(_REQUEST_TIMEOUT_S)
                self._handle_request(connection, read_line(connection))
            except (OSError, EOFError) as error:
                log.info("connection ended early: %s", error)

    def _handle_request(self, connection: socket.socket, line: bytes) -> None:
        began = time.monotonic()
        passed: PassedDescriptor | None = None
        verb = "?"
        try:
            request = verbs.parse(line)
            verb = request.verb
            if verb == "attach":
                self._serve_attached(connection)
                return
            if verb in ("dial", "listen", "evidence"):
                passed = getattr(self._host, verb)(**request.arguments)
                reply: dict[str, Any] = {"ok": {}}
            else:
                reply = {"ok": self._perform(request)}
        except HostdError as error:
            reply = {"error": error.kind, "detail": str(error), "hint": error.hint}
        except Exception as error:
            log.exception("verb %s failed", verb)
            fault = HostdHostFault(f"{verb} failed: {error}")
            reply = {"error": fault.kind, "detail": str(fault), "hint": ""}
        if verb not in _UNLOGGED_VERBS or reply.get("error") not in (None, "refused"):
            log.info("%s %.3f s %s", verb, time.monotonic() - began, reply.get("detail", "ok"))
        try:
            send_line(connection, reply, passed)
        finally:
            if passed is not None:
                passed.close()

    def _perform(self, request: verbs.Request) -> Any:
        arguments = dict(request.arguments)
        match request.verb:
            case "ping":
                return {"protocol": PROTOCOL, "pid": os.getpid(), "disk_limit": self._host.storage.enforces_disk}
            case "stop":
                self.stop()
                return {}
            case "doctor":
                return self._doctor()
            case "create":
                names = ("memory_mib", "pids", "cpus", "disk_mib")
                limits = verbs.Limits(**{name: arguments.pop(name) for name in names})
                return self._host.create(**arguments, limits=limits)
            case (
                "checkpoint"
                | "restore"
                | "harden"
                | "freeze"
                | "thaw"
                | "destroy"
                | "health"
                | "quarantine"
                | "delete_snapshot"
                | "inventory"
                | "reap"
            ):
                return getattr(self._host, request.verb)(**arguments)
            case _:
                raise BadRequest(f"unknown verb {request.verb!r}")

    def _serve_first(self, connection: socket.socket) -> None:
        with connection:
            try:
                self._serve_attached(connection)
            except OSError as error:
                log.info("the first connection ended early: %s", error)

    def _serve_attached(self, connection: socket.socket) -> None:
        """Count this connection as a user of the helper until it closes; a helper that was told to stop answers nothing."""
        if self._stopping.is_set():
            return
        with self._counts_lock:
            self._attached += 1
            self._used = True
            self._idle_since = None
        try:
            send_line(connection, {"ok": {}})
            connection.settimeout(None)
            while connection.recv(4096):
                continue
        finally:
            with self._counts_lock:
                self._attached -= 1
                if self._attached == 0:
                    self._idle_since = time.monotonic()


def listen(path: Path, owner_uid: int) -> socket.socket:
    """Bind the 0600 socket for its owner, replacing a dead one (the caller holds the state lock).

    Its directory is root's own, or the caller is the owner."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(before)
    os.chown(path, owner_uid, -1, follow_symlinks=False)
    listener.listen(128)
    return listener


def peer_uid(connection: socket.socket) -> int:
    """User id of the process at the other end of a Unix socket."""
    size = struct.calcsize("3i")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return int(struct.unpack("3i", credentials)[1])


def read_line(connection: socket.socket) -> bytes:
    """One line of at most `verbs.MAX_REQUEST_BYTES`. Raises EOFError when the peer closes first."""
    received = bytearray()
    while not received.endswith(b"\n"):
        if len(received) > verbs.MAX_REQUEST_BYTES:
            raise EOFError("request too long")
        chunk = connection.recv(65536)
        if not chunk:
            raise EOFError("closed before the end of the request")
        received += chunk
    return bytes(received)


def send_line(connection: socket.socket, reply: dict[str, Any], passed: PassedDescriptor | None = None) -> None:
    """Send one JSON line, with a file descriptor beside its first byte when one is handed over."""
    data = json.dumps(reply).encode() + b"\n"
    ancillary = []
    if passed is not None:
        ancillary.append((socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [passed.fileno()])))
    sent = connection.sendmsg([data], ancillary)
    if sent < len(data):
        connection.sendall(data[sent:])
