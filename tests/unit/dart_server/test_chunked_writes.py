"""Large answers of the farm: whole, in order, and written while there is room only."""

from __future__ import annotations

import asyncio
from typing import Any

from dart_server.http.chunked_writes import CHUNK_BYTES, ChunkedTransport


class NarrowTransport:
    """A fake: takes `room` bytes, then asks to wait."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.taken = bytearray()
        self.largest = 0
        self.closed = False
        self.pieces: ChunkedTransport | None = None

    def write(self, data: bytes | memoryview) -> None:
        assert self.pieces is not None
        self.taken += data
        self.largest = max(self.largest, len(data))
        self.room -= len(data)
        self.pieces.write_paused = self.room <= 0

    def get_extra_info(self, name: str) -> str:
        return name

    def close(self) -> None:
        self.closed = True


def narrow(room: int) -> tuple[NarrowTransport, ChunkedTransport]:
    under: Any = NarrowTransport(room)
    over = ChunkedTransport(under)
    under.pieces = over
    return under, over


def test_what_finds_no_room_waits_and_follows_in_order() -> None:
    under, over = narrow(CHUNK_BYTES * 2)
    data = bytes(range(256)) * (CHUNK_BYTES * 5 // 256) + b"tail"
    over.write(data)
    over.write(b"next")
    assert under.taken == data[: CHUNK_BYTES * 2]
    assert not over.empty
    while not over.empty:
        under.room, over.write_paused = CHUNK_BYTES, False
        over.flush()
    assert under.taken == data + b"next"
    assert under.largest == CHUNK_BYTES


def test_a_close_comes_after_all_that_was_written() -> None:
    under, over = narrow(10)
    over.write(bytes(CHUNK_BYTES * 3))
    over.close()
    assert under.closed
    assert len(under.taken) == CHUNK_BYTES * 3
    assert over.get_extra_info("peername") == "peername"


async def test_a_served_websocket_gets_large_frames_whole(tmp_path: Any) -> None:
    import uvicorn
    from websockets.asyncio.client import unix_connect

    from dart_server.http.chunked_writes import chunked_websocket_protocol

    frames = [bytes([number]) * (2_000_000 + number) for number in range(5)]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        for frame in frames:
            await send({"type": "websocket.send", "bytes": bytearray(frame)})
        await send({"type": "websocket.close", "code": 4001})

    path = str(tmp_path / "s")
    config = uvicorn.Config(app, uds=path, ws=chunked_websocket_protocol(), lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    serving = asyncio.create_task(server.serve())
    async with asyncio.timeout(10):
        while not server.started:  # noqa: ASYNC110 - uvicorn tells in no other way
            await asyncio.sleep(0.01)
    async with unix_connect(path, "ws://farm/", max_size=None, compression=None) as client:
        got = [await client.recv() for _ in frames]
        await client.wait_closed()
        assert client.close_code == 4001
    server.should_exit = True
    await serving
    assert got == frames
