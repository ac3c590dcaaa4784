"""HTTP/1.1 answers of a desktop, read with limits.

Role: `request_head` and `read_answer` over asyncio's streams, for every HTTP call into a desktop. Rule: what comes back is untrusted. Head,
body and number of chunks are bounded, nothing is read ahead of its limit, and an answer that is not HTTP is a `MalformedAnswer`. A general
client understands more than is needed here and spends its time on streams of tiny chunks and interim answers.
Non-goals: connections and deadlines (`guest.client`, `guest_control`), redirects, compression.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dart_server.wire.guest_answers import MalformedAnswer

STREAM_LIMIT_NBYTES = 64 * 1024
"""What a connection reads ahead, about."""
HEAD_LIMIT_NBYTES = 32 * 1024
READ_NBYTES = 64 * 1024
CHUNK_LIMIT, CHUNK_NBYTES = 1_024, 1_024
"""Chunks of a body: this many, and one more for each so many bytes."""
CHUNK_LINE_NBYTES = 256
_STATUS = re.compile(rb"HTTP/1\.[01] ([2-5][0-9]{2})(?: [^\r\n]*)?")
_FIELD = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[^\r\n]*")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,8})(?:[ \t]*;[^\r\n]*)?\r?\n")


class AnswerTooLarge(MalformedAnswer):
    """The body is larger than this kind of answer may be."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A whole answer. Header names are lower case; `reusable`: the connection may be asked again."""

    status: int
    headers: Mapping[str, str]
    content: bytes
    reusable: bool


def request_head(method: str, target: str, headers: Mapping[str, str], length: int | None) -> bytes:
    """The head of a request; `length` is that of its body, None for none."""
    fields = {"Host": "guest", **headers, **({} if length is None else {"Content-Length": str(length)})}
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    if any("\r" in line or "\n" in line for line in lines):
        raise ValueError("a header of a request must be one line")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


async def read_answer(
    reader: asyncio.StreamReader, limit_nbytes: int, reserve_bytes: Callable[[int], None] | None = None
) -> HttpAnswer:
    """Read one answer.

    Args:
        reader: The connection, made with `STREAM_LIMIT_NBYTES`.
        limit_nbytes: Bytes of the body.
        reserve_bytes: Is told of bytes before they are kept.

    Returns:
        The answer.

    Raises:
        MalformedAnswer: If it is not HTTP; `AnswerTooLarge` if it is too much.
        EOFError: If the connection ended first.
        OSError: If the connection broke.
    """
    status, headers = await _read_head(reader)
    kept = bytearray()

    def keep(data: bytes) -> None:
        if len(kept) + len(data) > limit_nbytes:
            raise AnswerTooLarge(f"the answer is larger than {limit_nbytes} bytes")
        if reserve_bytes is not None:
            reserve_bytes(len(data))
        kept.extend(data)

    reusable = headers.get("connection", "").lower() != "close"
    coding, length = headers.get("transfer-encoding"), headers.get("content-length")
    if status in (204, 304):
        pass
    elif coding is not None:
        if coding.lower() != "chunked" or length is not None:
            raise MalformedAnswer("an answer whose length cannot be told")
        await _read_chunks(reader, keep)
    elif length is not None:
        if not (length.isascii() and length.isdigit() and len(length) <= 15):
            raise MalformedAnswer("an answer with a length that is no number")
        if int(length) > limit_nbytes:
            raise AnswerTooLarge(f"the answer is larger than {limit_nbytes} bytes")
        await _read_exactly(reader, int(length), keep)
    else:
        reusable = False
        while data := await reader.read(READ_NBYTES):
            keep(data)
    return HttpAnswer(status, headers, bytes(kept), reusable)


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError as error:
        raise MalformedAnswer("the head of an answer has no end") from error
    lines = head[:-4].split(b"\r\n")
    found = _STATUS.fullmatch(lines[0])
    if found is None or len(head) > HEAD_LIMIT_NBYTES or not all(map(_FIELD.fullmatch, lines[1:])):
        raise MalformedAnswer("what answers is no HTTP server")
    named = (line.decode("latin-1").partition(":") for line in lines[1:])
    return int(found.group(1)), {name.lower(): value.strip() for name, _, value in named}


async def _read_exactly(reader: asyncio.StreamReader, nbytes: int, keep: Callable[[bytes], None]) -> None:
    while nbytes:
        data = await reader.read(min(READ_NBYTES, nbytes))
        if not data:
            raise EOFError("the answer ended too early")
        nbytes -= len(data)
        keep(data)


async def _read_chunks(reader: asyncio.StreamReader, keep: Callable[[bytes], None]) -> None:
    room, total = CHUNK_LIMIT, 0
    while True:
        found = _CHUNK.fullmatch(await _read_line(reader))
        if found is None:
            raise MalformedAnswer("a chunk without a length")
        size = int(found.group(1), 16)
        total += size
        room -= 1
        if room + total // CHUNK_NBYTES < 0:
            raise MalformedAnswer("an answer in chunks that carry next to nothing")
        await _read_exactly(reader, size, keep)
        if (await _read_line(reader)).strip():
            raise MalformedAnswer("a chunk that is longer than it says, or fields after the last one")
        if not size:
            return


async def _read_line(reader: asyncio.StreamReader) -> bytes:
    try:
        line = await reader.readuntil(b"\n")
    except asyncio.LimitOverrunError as error:
        raise MalformedAnswer("a chunk without a length") from error
    if len(line) > CHUNK_LINE_NBYTES:
        raise MalformedAnswer("a chunk without a length")
    return line
