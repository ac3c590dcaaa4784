"""A hostile guest: a program that speaks the guest protocol on a Unix socket and answers what no agent answers.

`python -m benchmarks.adversarial.hostile_guest SOCKET SEED WIDTH HEIGHT`. Its health is honest, so that the farm leases the desktop. Steps
are answered in fragments, floods, sizes, formats and paces of its choice; `GET /count` tells how many answers it has sent.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import random
import sys
from contextlib import suppress

from benchmarks.adversarial.answers import Answers
from dart_server.wire.messages import BINARY, CLOSE, CONTINUATION, GUID, PING, TEXT

SLOW_SHARE, FLOOD_SHARE, FRAGMENT_SHARE = 0.0005, 0.003, 0.1
HEALTH = {
    "ready": True,
    "session_alive": True,
    "x_alive": True,
    "wm_alive": True,
    "bus_alive": True,
    "version": "hostile",
}


def frame(opcode: int, payload: bytes, *, final: bool = True) -> bytes:
    """One WebSocket frame of a serving end."""
    length = len(payload)
    if length < 126:
        return bytes((final << 7 | opcode, length)) + payload
    if length < 65536:
        return bytes((final << 7 | opcode, 126)) + length.to_bytes(2, "big") + payload
    return bytes((final << 7 | opcode, 127)) + length.to_bytes(8, "big") + payload


class HostileGuest:
    """Serves every connection; counts its answers."""

    def __init__(self, seed: int, screen: tuple[int, int]) -> None:
        self._rng = random.Random(seed)
        self._answers = Answers(self._rng, screen)
        self.sent = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until somebody has had enough."""
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
                path = head.split(" ", 2)[1]
                if "upgrade" in fields:
                    key = next(
                        line[19:] for line in head.split("\r\n") if line.lower().startswith("sec-websocket-key: ")
                    )
                    await self._channel(key, reader, writer)
                    break
                body = await reader.readexactly(int(fields.get("content-length", 0)))
                await self._answer(path, body, writer)
        writer.close()

    async def _answer(self, path: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        honest = {"/v1/health": HEALTH, "/count": {"sent": self.sent}}.get(path)
        if honest is not None:
            told = json.dumps(honest).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(told) + told)
        elif path == "/v1/step":
            answer, _ = self._answers.frame(json.loads(body))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(answer) + answer)
            self.sent += 1
        else:
            self.sent += 1
            writer.write(self._answers.http(path))
        await writer.drain()

    async def _channel(self, key: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accept = base64.b64encode(hashlib.sha1(key.encode() + GUID, usedforsecurity=False).digest()).decode()
        writer.write(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Accept: {accept}\r\n\r\n".encode()
        )
        while True:
            first, second = await reader.readexactly(2)
            length = second & 0x7F
            if length >= 126:
                length = int.from_bytes(await reader.readexactly(2 if length == 126 else 8), "big")
            mask, masked = await reader.readexactly(4), await reader.readexactly(length)
            if first & 0x0F == CLOSE:
                return
            if first & 0x0F != TEXT:
                continue
            spread = int.from_bytes((mask * (length // 4 + 1))[:length], "big")
            request = json.loads((int.from_bytes(masked, "big") ^ spread).to_bytes(length, "big"))
            await self._step(request, writer)

    async def _step(self, request: dict[str, object], writer: asyncio.StreamWriter) -> None:
        rng = self._rng
        answer, _ = self._answers.frame(request)
        self.sent += 1
        fate = rng.random()
        if fate < SLOW_SHARE:
            whole = frame(BINARY, answer)
            for start in range(0, min(len(whole), 200), 20):
                writer.write(whole[start : start + 20])
                await writer.drain()
                await asyncio.sleep(0.05)
            writer.write(whole[200:])
        elif fate < FLOOD_SHARE:
            flood = rng.choice(
                (frame(PING, bytes(125)), frame(CONTINUATION, b"", final=False), frame(BINARY, bytes(1), final=False))
            )
            writer.write(frame(BINARY, bytes(100), final=False) + flood * rng.randrange(20_000))
            writer.write(frame(BINARY, answer) * rng.randrange(3))
        elif fate < FRAGMENT_SHARE:
            cut = rng.randrange(len(answer) + 1)
            writer.write(
                frame(BINARY, answer[:cut], final=False) + frame(PING, b"") + frame(CONTINUATION, answer[cut:])
            )
        else:
            writer.write(frame(BINARY, answer))
        await writer.drain()


async def main() -> None:
    """Serve until the process is ended."""
    path, seed, width, height = sys.argv[1], *map(int, sys.argv[2:5])
    guest = HostileGuest(seed, (width, height))
    async with await asyncio.start_unix_server(guest.serve, path) as server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
