"""The D-Bus client against a fake bus daemon on a real Unix socket."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from dart_guest.dbus_client import (
    ERROR,
    METHOD_RETURN,
    WINDOW,
    BusConnection,
    BusError,
    BusSilent,
    Call,
    Reader,
    pack_ints,
    pack_strings,
    read_property,
)

SIGNAL = 4
Answer = Callable[[int, bytes], bytes]


def message(kind: int, serial: int, body: bytes = b"", *, signature: bytes = b"s") -> bytes:
    """A message to the client that answers the call of this serial, with the fields in a daemon's order."""
    fields = bytes((5, 1)) + b"u\0" + struct.pack("<I", serial) + bytes((6, 1)) + b"s\0"
    fields += pack_strings(":1.7") + bytes(-(len(fields) + len(pack_strings(":1.7"))) % 8)
    fields += bytes((8, 1)) + b"g\0" + bytes((len(signature),)) + signature + b"\0"
    head = struct.pack("<BBBBIII", ord("l"), kind, 1, 1, len(body), 99, len(fields)) + fields
    return head + bytes(-len(head) % 8) + body


class FakeBusDaemon:
    """Greets one client and answers every call with what `answer` gives for its serial and body."""

    def __init__(self, path: Path, answer: Answer, greeting: bytes) -> None:
        self.address = f"unix:path={path},guid=1234"
        self.calls: list[bytes] = []
        self._answer, self._greeting = answer, greeting
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        with self._listener:
            connection, _ = self._listener.accept()
        with connection:
            assert connection.recv(4096).startswith(b"\0AUTH EXTERNAL " + str(os.getuid()).encode().hex().encode())
            connection.sendall(self._greeting)
            buffer = bytearray(connection.recv(4096)).removeprefix(b"BEGIN\r\n")
            while True:
                while len(buffer) >= 16:
                    body_bytes, serial, fields_bytes = struct.unpack_from("<III", buffer, 4)
                    start = 16 + fields_bytes + -fields_bytes % 8
                    if len(buffer) < start + body_bytes:
                        break
                    self.calls.append(bytes(buffer[: start + body_bytes]))
                    body = bytes(buffer[start : start + body_bytes])
                    del buffer[: start + body_bytes]
                    hello = message(METHOD_RETURN, serial, pack_strings(":1.7")) + message(SIGNAL, 0)
                    connection.sendall(hello if len(self.calls) == 1 else self._answer(serial, body))
                came = connection.recv(1 << 16)
                if not came:
                    return
                buffer += came


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., FakeBusDaemon]]:
    daemons: list[FakeBusDaemon] = []

    def start(answer: Answer, greeting: bytes = b"OK 1234\r\n") -> FakeBusDaemon:
        daemons.append(FakeBusDaemon(tmp_path / f"bus{len(daemons)}", answer, greeting))
        return daemons[-1]

    yield start
    for daemon in daemons:
        daemon.thread.join(10.0)


def soon() -> float:
    return time.monotonic() + 10.0


def numbered(number: int) -> Call:
    return Call(":1.2", "/x", "a.b", "Echo", "u", pack_ints(number))


def test_replies_come_in_the_order_of_the_calls(serve: Callable[..., FakeBusDaemon]) -> None:
    kept: list[bytes] = []

    def answer(serial: int, body: bytes) -> bytes:
        """Two at a time, the later one first."""
        kept.append(message(METHOD_RETURN, serial, body, signature=b"u"))
        return b"".join(kept.pop() for _ in range(2)) if len(kept) == 2 else b""

    bus = BusConnection(serve(answer).address, 5.0)
    replies = bus.ask([numbered(number) for number in range(3 * WINDOW)], 5.0, soon())
    assert [reply.reader().unsigned() for reply in replies] == list(range(3 * WINDOW))
    bus.close()


def test_an_error_of_the_program_is_a_failed_reply(serve: Callable[..., FakeBusDaemon]) -> None:
    bus = BusConnection(serve(lambda serial, _: message(ERROR, serial, pack_strings("gone"))).address, 5.0)
    (reply,) = bus.ask([numbered(1)], 5.0, soon())
    assert (reply.failed, reply.reader().string()) == (True, "gone")
    bus.close()


def test_a_late_reply_is_not_taken_for_another(serve: Callable[..., FakeBusDaemon]) -> None:
    late: list[bytes] = []

    def answer(serial: int, body: bytes) -> bytes:
        late.append(message(METHOD_RETURN, serial, body, signature=b"u"))
        return b"" if len(late) == 1 else b"".join(late)

    bus = BusConnection(serve(answer).address, 5.0)
    with pytest.raises(BusSilent, match="1 calls got no reply"):
        bus.ask([numbered(1)], 0.05, soon())
    (reply,) = bus.ask([numbered(2)], 5.0, soon())
    assert reply.reader().unsigned() == 2
    bus.close()


def test_a_deadline_ends_the_wait(serve: Callable[..., FakeBusDaemon]) -> None:
    bus = BusConnection(serve(lambda _serial, _body: b"").address, 5.0)
    with pytest.raises(BusSilent):
        bus.ask([numbered(1)], 60.0, time.monotonic() + 0.05)
    bus.close()


def test_the_call_has_the_documented_header(serve: Callable[..., FakeBusDaemon]) -> None:
    daemon = serve(lambda serial, body: message(METHOD_RETURN, serial, body, signature=b"ss"))
    bus = BusConnection(daemon.address, 5.0)
    (reply,) = bus.ask([read_property(":1.2", "/x", "a.b", "Name")], 5.0, soon())
    reader = reply.reader()
    assert [reader.string(), reader.string()] == ["a.b", "Name"]
    sent = daemon.calls[1]
    assert sent[:4] == b"l\x01\x00\x01"
    for word in (b"/x\0", b"org.freedesktop.DBus.Properties\0", b"Get\0", b":1.2\0", b"\x02ss\0"):
        assert word in sent
    bus.close()


def test_a_refusal_and_a_missing_bus_are_bus_errors(serve: Callable[..., FakeBusDaemon], tmp_path: Path) -> None:
    with pytest.raises(BusError, match="refuses this user"):
        BusConnection(serve(lambda _serial, _body: b"", greeting=b"REJECTED EXTERNAL\r\n").address, 5.0)
    with pytest.raises(BusError, match="cannot be reached"):
        BusConnection(f"unix:path={tmp_path}/none", 5.0)
    with pytest.raises(BusError, match="no Unix socket"):
        BusConnection("tcp:host=localhost,port=1", 5.0)


def test_values_of_a_variant_are_read_by_their_signature() -> None:
    assert Reader(b"\x01i\0\0" + struct.pack("<i", -5)).variant() == -5
    assert Reader(b"\x01d\0\0\0\0\0\0" + struct.pack("<d", 2.5)).variant() == 2.5
    assert Reader(b"\x01s\0\0" + pack_strings("é")).variant() == "é"
    with pytest.raises(ValueError, match="type ay"):
        Reader(b"\x02ay\0\0\0\0\0").variant()
