"""Ten thousand malformed requests and fuzzed WebSocket frames against a served farm: it serves on, and does not grow."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from served_farm import free_port, served_farm

REQUESTS, AT_ONCE, FRAMES = 10_000, 25, 400
SEED = 20260301
MEMORY_GROWTH = 64 << 20
DESCRIPTORS_GROWTH = 16
ANSWER_S = 20.0
TOKENS = [
    b"NaN",
    b"Infinity",
    b"-0",
    b"1e999",
    b"9" * 5000,
    b'"\\ud800"',
    b'"\\u0000"',
    b"null",
    b"[]",
    b"{}",
    b"true",
    b'"\xff\xfe"',
]


class Served:
    """A farm on loopback: its address, admin key and process."""

    def __init__(self, url: str, place: Path) -> None:
        self.url = url
        self.port = int(url.rpartition(":")[2])
        self.place = place
        self.key = (place / "farm.key").read_text().strip()
        pid = json.loads((place / "farm.lock").read_text())["pid"]
        self.process = psutil.Process(pid)

    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"}

    def claim(self, name: str) -> dict[str, Any]:
        body = {"client_request_id": name, "ttl_s": 3600, "wait_s": 60}
        reply = httpx.post(f"{self.url}/v1/leases", json=body, headers=self.headers(), timeout=90)
        assert reply.status_code == 200, reply.text
        lease: dict[str, Any] = reply.json()
        return lease

    def step(self, lease: dict[str, Any]) -> httpx.Response:
        headers = self.headers() | {
            "X-Dart-Lease-Token": lease["token"],
            "X-Dart-Fencing-Token": str(lease["fencing_token"]),
        }
        return httpx.post(f"{self.url}/v1/leases/{lease['lease_id']}/step", json={}, headers=headers, timeout=60)

    def log(self) -> str:
        return (self.place / "log").read_text()


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Served]:
    place = tmp_path / "farm"
    place.mkdir()
    with served_farm(place, provider="sim", max_desktops=4, port=free_port()) as url:
        yield Served(url, place)


def malformed(rng: random.Random, key: str) -> bytes:
    """One request with something wrong in it: its line, headers, length, body, or all of them."""
    method = rng.choice(
        [b"GET", b"POST", b"PUT", b"DELETE", b"PATCH", b"get", b"\x00", b"G" * 300, b"CONNECT", b"OPTIONS"]
    )
    paths = [
        b"/v1/leases",
        b"/v1/keys",
        b"/v1/setups/acquire",
        b"/v1/events?after=" + b"9" * 30,
        b"/v1/leases/%ff%00/step",
    ]
    paths += [
        b"*",
        b"//",
        b"/" + b"a" * rng.choice([10, 70_000]),
        b"http://evil/v1/farm",
        b"/v1/snapshots/%e2%80%ae",
        b"/\xff",
    ]
    path = rng.choice(paths)
    version = rng.choice([b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.1", b"HTTP/9.9", b"", b"HTTP/1.0"])
    body = b'{"client_request_id": %s, "ttl_s": %s, "labels": {"a": %s}}' % tuple(rng.choice(TOKENS) for _ in range(3))
    kind = rng.randrange(4)
    if kind == 0:
        body = rng.randbytes(rng.randrange(200))
    elif kind == 1:
        body = rng.choice([b"[", b'{"a":']) * rng.choice([10, 5000])
    elif kind == 2:
        body = body[: rng.randrange(len(body))]
    headers = [b"Host: 127.0.0.1", b"Authorization: Bearer " + rng.choice([key.encode(), b"\xff", b"x" * 300, b""])]
    headers += [
        b"Content-Type: " + rng.choice([b"application/json", b"text/plain", b"application/json; charset=\xff", b""])
    ]
    length = rng.choice([len(body), len(body), len(body), len(body) + 7, -1, 10**30])
    headers += [b"Transfer-Encoding: chunked"] if rng.random() < 0.1 else [b"Content-Length: %d" % length]
    if rng.random() < 0.15:
        headers.append(
            rng.choice(
                [
                    b"no colon",
                    b": empty",
                    b"X: \x00",
                    b"X-Dart-Fencing-Token: " + b"9" * 4400,
                    b"Upgrade: websocket\r\nConnection: upgrade",
                ]
            )
        )
    if rng.random() < 0.05:
        headers += [b"X-%d: a" % n for n in range(300)]
    whole = b"%s %s %s\r\n%s\r\n\r\n%s" % (method, path, version, b"\r\n".join(headers), body)
    return whole if rng.random() < 0.9 else whole[: rng.randrange(1, len(whole))]


async def send(port: int, request: bytes) -> int:
    """The status of the answer; 0 when the farm only hung up, or waited for more than was sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        writer.write_eof()
        async with asyncio.timeout(ANSWER_S):
            line = await reader.readline()
        return int(line.split()[1]) if line.startswith(b"HTTP/1.1 ") else 0
    except (OSError, TimeoutError):
        return 0
    finally:
        writer.close()


async def storm(farm: Served, rng: random.Random, count: int) -> dict[int, int]:
    """Send so many malformed requests, some at a time; how often each status came."""
    told: dict[int, int] = {}
    left = iter(range(count))

    async def client() -> None:
        for _ in left:
            status = await send(farm.port, malformed(rng, farm.key))
            told[status] = told.get(status, 0) + 1

    await asyncio.gather(*(client() for _ in range(AT_ONCE)))
    return told


@pytest.mark.timeout(900)
async def test_ten_thousand_malformed_requests(farm: Served) -> None:
    rng = random.Random(SEED)
    await storm(farm, rng, 1000)
    memory, descriptors = farm.process.memory_info().rss, farm.process.num_fds()
    told = await storm(farm, rng, REQUESTS - 1000)
    print(f"malformed requests, by the status of the answer: {dict(sorted(told.items()))}")
    assert sum(told.values()) == REQUESTS - 1000
    assert not {status for status in told if status >= 500 and status not in (501, 502, 503, 507)}, told
    assert told.get(400, 0) > 100, told
    assert told.get(422, 0) > 100, told
    assert farm.process.memory_info().rss - memory < MEMORY_GROWTH
    async with asyncio.timeout(60):
        while farm.process.num_fds() > descriptors + DESCRIPTORS_GROWTH:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.1)
    log = farm.log()
    assert "Traceback" not in log, log[-5000:]
    assert farm.key not in log
    assert await asyncio.to_thread(farm.claim, "after-the-storm")


def frame(rng: random.Random) -> bytes:
    """One WebSocket frame of a client, or what is none."""
    opcode = rng.choice([0x1, 0x1, 0x2, 0x2, 0x0, 0x8, 0x9, 0xA, 0x3, 0xB])
    payload = rng.choice(
        [
            b'{"seq": 1, "events": [], "frame": {"encoding": "none"}}',
            b'{"seq": 99999999999999999999, "events": [{"type": "wait", "ms": -1}]}',
            b'{"events": [{"type": "text", "text": "\\ud800"}]}',
            b"[" * 5000,
            rng.randbytes(rng.randrange(300)),
            b"",
            b"\xff\xfe\xfd",
        ]
    )
    mask = rng.randbytes(4)
    masked = bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload))
    first = opcode | rng.choice([0x80, 0x80, 0x80, 0x00, 0xC0])
    size = len(payload)
    head = bytes([first, 0x80 | size]) if size < 126 else bytes([first, 0xFE]) + struct.pack(">H", size)
    whole = head + mask + masked
    odd = rng.random()
    if odd < 0.1:
        return whole[: rng.randrange(1, len(whole))]
    if odd < 0.15:
        return bytes([first, 0xFF]) + struct.pack(">Q", 1 << rng.choice([32, 62])) + mask
    if odd < 0.2:
        return bytes([first, size & 0x7D]) + payload[:125]
    return whole


async def opened(farm: Served, path: str, lease: dict[str, Any]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A WebSocket to the farm, just after its handshake."""
    reader, writer = await asyncio.open_connection("127.0.0.1", farm.port)
    lines = [f"GET {path} HTTP/1.1", "Host: 127.0.0.1", "Upgrade: websocket", "Connection: Upgrade"]
    lines += [
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
        f"Authorization: Bearer {farm.key}",
    ]
    lines += [f"X-Dart-Lease-Token: {lease['token']}", f"X-Dart-Fencing-Token: {lease['fencing_token']}"]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    async with asyncio.timeout(ANSWER_S):
        head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 101"), head
    return reader, writer


@pytest.mark.timeout(600)
@pytest.mark.parametrize("stream", ["channel", "tunnel?port=7"])
async def test_fuzzed_frames(farm: Served, stream: str) -> None:
    rng = random.Random(SEED)
    lease = await asyncio.to_thread(farm.claim, "fuzzed-frames")
    path = f"/v1/leases/{lease['lease_id']}/{stream}"
    descriptors = farm.process.num_fds()
    for _ in range(FRAMES // 4):
        reader, writer = await opened(farm, path, lease)
        for _ in range(4):
            writer.write(frame(rng))
        with contextlib.suppress(OSError, TimeoutError):  # the farm may have hung up
            writer.write_eof()
            async with asyncio.timeout(ANSWER_S):
                await reader.read()
        writer.close()
    async with asyncio.timeout(60):
        while farm.process.num_fds() > descriptors + DESCRIPTORS_GROWTH:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.1)
    reply = await asyncio.to_thread(farm.step, lease)
    assert reply.status_code == 200, "the lease is served on"
    log = farm.log()  # the server itself tells of text that is no UTF-8, with a trace
    assert "Exception in ASGI" not in log, log[-5000:]
    assert "ERROR dart_server" not in log, log[-5000:]
