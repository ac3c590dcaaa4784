"""OSWorld's server of a desktop, as official getters reach it, with its files read from outside the desktop.

Role: `serve_files_from_outside`, a server on this host's loopback between the scorer's worker and a tunnel to the desktop. `POST /file` is
answered with what the host reads; everything else is passed on unchanged. Rule: one request for each connection, and no connection outlives
the server; a file that the host refuses is a file that is not there. Non-goals: what only programs of the desktop can tell (commands,
windows, the accessibility tree).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import parse_qs

from dart_envs.errors import DartEnvError
from dart_envs.setup.steps import guest_path
from dart_envs.types import Desktop, SupportsEvidence
from dart_server.wire import ErrorCode, FileQuery

HEAD_LIMIT_NBYTES = 64 * 1024
BODY_LIMIT_NBYTES = 64 * 1024
"""Of a request for a file."""
FILE_LIMIT_NBYTES = 64 * 1024**2
REQUEST_TIMEOUT_S = 30.0
CHUNK_NBYTES = 64 * 1024


@asynccontextmanager
async def serve_files_from_outside(desktop: Desktop, upstream: tuple[str, int]) -> AsyncIterator[tuple[str, int]]:
    """Yield the address where official getters reach the desktop's server; `upstream` itself where nobody looks from outside.

    Args:
        desktop: The desktop.
        upstream: (host, port) of a tunnel to its server.

    Yields:
        (host, port) on this host's loopback.
    """
    if not isinstance(desktop, SupportsEvidence) or not await _sees(desktop):
        yield upstream
        return
    serving: set[asyncio.Task[None]] = set()

    def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(_serve(desktop, upstream, reader, writer))
        serving.add(task)
        task.add_done_callback(serving.discard)

    async with await asyncio.start_server(serve, "127.0.0.1", 0, limit=HEAD_LIMIT_NBYTES) as server:
        try:
            yield "127.0.0.1", server.sockets[0].getsockname()[1]
        finally:  # a getter may have left a connection open without a request
            server.close()
            left = list(serving)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)


async def _sees(desktop: SupportsEvidence) -> bool:
    try:
        await desktop.evidence([FileQuery(path="/etc/hostname")])
    except DartEnvError as error:
        if getattr(error, "code", None) != ErrorCode.CAPABILITY_MISSING:
            raise
        return False
    return True


async def _serve(
    desktop: SupportsEvidence, upstream: tuple[str, int], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """One request."""
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            head = await reader.readuntil(b"\r\n\r\n")
            path = await _wanted_file(head, reader)
        if isinstance(path, str):
            writer.write(await _file_reply(desktop, path))
            await writer.drain()
        else:
            await _pass_on(_closing(head) + path, upstream, reader, writer)
    except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, DartEnvError):
        return  # the getter sees a connection without an answer, as when the desktop's server is away
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def _wanted_file(head: bytes, reader: asyncio.StreamReader) -> str | bytes:
    """The path of a request for a file; of any other request what was read of its body."""
    lines = head.decode("latin-1").split("\r\n")
    if not lines[0].startswith("POST /file "):
        return b""
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    length = headers.get("content-length", "")
    if not length.isdecimal() or int(length) > BODY_LIMIT_NBYTES:
        return b""
    body = await reader.readexactly(int(length))
    path = parse_qs(body.decode("latin-1"), encoding="utf-8").get("file_path", [""])[0]
    return guest_path(path) if path and "$" not in path and "\0" not in path else body


async def _file_reply(desktop: SupportsEvidence, path: str) -> bytes:
    seen = await desktop.evidence([FileQuery(path=path, limit_nbytes=FILE_LIMIT_NBYTES)])
    answer = seen.answers[0]
    if answer.error is not None:
        status, content = b"404 Not Found", b'{"error": "File not found"}'
    else:
        status, content = b"200 OK", seen.content(answer)
    kind = b"application/json" if answer.error is not None else b"application/octet-stream"
    length = str(len(content)).encode()
    return b"".join(
        [
            b"HTTP/1.1 ",
            status,
            b"\r\nContent-Type: ",
            kind,
            b"\r\nContent-Length: ",
            length,
            b"\r\nConnection: close\r\n\r\n",
            content,
        ]
    )


def _closing(head: bytes) -> bytes:
    """The head of a request after whose answer the connection ends."""
    lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    kept = [line for line in lines if not line.lower().startswith(b"connection:")]
    return b"\r\n".join([*kept, b"Connection: close", b"", b""])


async def _pass_on(
    begun: bytes, upstream: tuple[str, int], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """The request to the desktop's own server, and its answer back, until either side ends."""
    up_reader, up_writer = await asyncio.open_connection(*upstream)
    try:
        up_writer.write(begun)
        await up_writer.drain()
        sending = asyncio.create_task(_copy(reader, up_writer))
        try:
            await _copy(up_reader, writer)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
    finally:
        up_writer.close()
        with suppress(OSError):
            await up_writer.wait_closed()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while chunk := await source.read(CHUNK_NBYTES):
            target.write(chunk)
            await target.drain()
