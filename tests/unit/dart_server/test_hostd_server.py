"""The helper's socket: answers, errors, descriptors, lingering; over a real Unix socket and a pretended host."""

from __future__ import annotations

import errno
import json
import os
import socket
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from dart_server.hostd import server
from dart_server.hostd.containers import ContainerManager
from dart_server.hostd.errors import HostdDesktopGone


class FakeContainerManager:
    """Answers the verbs that these tests use."""

    class storage:
        enforces_disk = True

    def __init__(self) -> None:
        self.owned_ids: list[str] = []

    def destroy(self, desktop_id: str) -> dict[str, Any]:
        if desktop_id == "explodes":
            raise RuntimeError("a bug")
        return {}

    def dial(self, desktop_id: str, port: int | None) -> socket.socket:
        if desktop_id == "gone":
            raise HostdDesktopGone("there is no running desktop gone", hint="lease another")
        ours, theirs = socket.socketpair()
        with ours:
            ours.sendall(f"port {port}".encode())
        return theirs

    def inventory(self) -> dict[str, Any]:
        return {"desktops": self.owned_ids, "snapshots": []}


@contextmanager
def serving(
    path: Path, host: FakeContainerManager, *, owner_uid: int | None = None, idle_timeout_s: float | None = None
) -> Iterator[server.Server]:
    listener = server.listen(path, os.getuid())
    owner = os.getuid() if owner_uid is None else owner_uid
    running = server.Server(
        listener, cast(ContainerManager, host), owner_uid=owner, idle_timeout_s=idle_timeout_s, doctor=lambda: ["fine"]
    )
    thread = threading.Thread(target=running.serve)
    thread.start()
    try:
        yield running
    finally:
        running.stop()
        thread.join(5)
        listener.close()
        assert not thread.is_alive()


def ask(path: Path, message: dict[str, Any] | bytes) -> tuple[dict[str, Any], list[int]]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5)
        connection.connect(str(path))
        connection.sendall(message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n")
        data, descriptors, _, _ = socket.recv_fds(connection, 65536, 1)
        return json.loads(data), descriptors


def test_the_socket_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "hostd.sock"
    with serving(path, FakeContainerManager()):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert ask(path, {"verb": "ping"})[0]["ok"]["disk_limit"] is True


def test_another_user_gets_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "peer_uid", lambda _: 4242)
    path = tmp_path / "hostd.sock"
    with serving(path, FakeContainerManager()), pytest.raises((ConnectionError, json.JSONDecodeError)):
        ask(path, {"verb": "ping"})


def test_errors_travel_with_kind_and_hint(tmp_path: Path) -> None:
    path = tmp_path / "hostd.sock"
    with serving(path, FakeContainerManager()):
        gone, _ = ask(path, {"verb": "dial", "desktop_id": "gone", "port": 80})
        assert gone == {"error": "desktop_gone", "detail": "there is no running desktop gone", "hint": "lease another"}
        assert ask(path, b"nonsense\n")[0]["error"] == "bad_request"
        assert ask(path, {"verb": "destroy", "desktop_id": "/etc"})[0]["error"] == "bad_request"
        bug, _ = ask(path, {"verb": "destroy", "desktop_id": "explodes"})
        assert bug["error"] == "host_fault"
        assert ask(path, {"verb": "ping"})[0]["ok"], "the helper lives on"


def test_dial_hands_over_a_descriptor(tmp_path: Path) -> None:
    path = tmp_path / "hostd.sock"
    with serving(path, FakeContainerManager()):
        reply, descriptors = ask(path, {"verb": "dial", "desktop_id": "d", "port": 9222})
        assert reply == {"ok": {}}
        with socket.socket(fileno=descriptors[0]) as dialled:
            assert dialled.recv(100) == b"port 9222"


def test_stop_ends_it(tmp_path: Path) -> None:
    path = tmp_path / "hostd.sock"
    listener = server.listen(path, os.getuid())
    running = server.Server(
        listener,
        cast(ContainerManager, FakeContainerManager()),
        owner_uid=os.getuid(),
        idle_timeout_s=None,
        doctor=list,
    )
    thread = threading.Thread(target=running.serve)
    thread.start()
    assert ask(path, {"verb": "stop"})[0] == {"ok": {}}
    thread.join(5)
    listener.close()
    assert not thread.is_alive()


def test_it_ends_when_its_last_user_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "hostd.sock"
    host = FakeContainerManager()
    host.owned_ids = ["d1"]
    listener = server.listen(path, os.getuid())
    running = server.Server(
        listener, cast(ContainerManager, host), owner_uid=os.getuid(), idle_timeout_s=0.3, doctor=list
    )
    thread = threading.Thread(target=running.serve)
    with socket.socket(socket.AF_UNIX) as held:
        held.connect(str(path))
        held.sendall(b'{"verb": "attach"}\n')
        thread.start()
        assert json.loads(held.recv(100)) == {"ok": {}}
        thread.join(0.8)
        assert thread.is_alive(), "somebody is attached"
    thread.join(5)
    listener.close()
    assert not thread.is_alive()


def test_it_does_not_end_between_taking_a_connection_and_serving_it(tmp_path: Path) -> None:
    path = tmp_path / "hostd.sock"
    with (
        serving(path, FakeContainerManager(), idle_timeout_s=0.3),
        socket.socket(socket.AF_UNIX) as slow,
    ):
        slow.settimeout(5)
        slow.connect(str(path))
        time.sleep(1.0)
        slow.sendall(b'{"verb": "attach"}\n')
        assert json.loads(slow.recv(100)) == {"ok": {}}
        assert ask(path, {"verb": "ping"})[0]["ok"], "whoever is attached is served"


class FakeListener:
    """A listener that finds no free descriptor at first."""

    def __init__(self, listener: socket.socket) -> None:
        self.settimeout = listener.settimeout
        self._listener = listener
        self._failures = 2

    def accept(self) -> tuple[socket.socket, Any]:
        accepted = self._listener.accept()
        if self._failures:
            self._failures -= 1
            accepted[0].close()
            raise OSError(errno.EMFILE, "Too many open files")
        return accepted


def test_a_lack_of_descriptors_does_not_end_it(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with serving(path, FakeContainerManager()) as running:
        running._listener = cast(socket.socket, FakeListener(running._listener))
        time.sleep(2 * server._POLL_S)  # the look that was under way has ended
        for _ in range(2):
            with pytest.raises((ValueError, OSError)):
                ask(path, {"verb": "ping"})
        assert ask(path, {"verb": "ping"})[0]["ok"]


def test_a_helper_that_was_told_to_stop_takes_no_user(tmp_path: Path) -> None:
    path = tmp_path / "hostd.sock"
    with serving(path, FakeContainerManager()) as running, socket.socket(socket.AF_UNIX) as late:
        late.settimeout(5)
        late.connect(str(path))
        assert ask(path, {"verb": "ping"})[0]["ok"], "connections are taken in order, so `late` has its thread"
        running.stop()
        late.sendall(b'{"verb": "attach"}\n')
        assert late.recv(100) == b""
