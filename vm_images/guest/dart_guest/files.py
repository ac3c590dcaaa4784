"""`/v1/files`: whole files in and out.

Role: stream content between the outside and the desktop's disk.
Rule: a file that is written appears whole or not at all; only regular files are read, so a fifo cannot hang the agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import stat
from collections.abc import AsyncIterator
from pathlib import Path

from aiohttp import web

from dart_guest import session
from dart_guest.events import BadRequest
from dart_guest.http import agent_of, failure

CHUNK = 256 * 1024
FILE_LIMIT = 4 * 1024**3
"""Largest file taken in, in bytes: a desktop's disk quota is smaller."""

routes = web.RouteTableDef()


class TooLarge(Exception):
    """More than FILE_LIMIT bytes."""


def absolute(text: str | None) -> Path:
    """The `path` parameter."""
    if not text or not text.startswith("/") or "\0" in text:
        raise BadRequest("'path' must be an absolute path")
    return Path(text)


def make_room(path: Path, owner: tuple[int, int] | None) -> None:
    """Make missing parent directories, each with the owner of the file to be; raises OSError where no file can be."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a directory")
    missing = [parent for parent in path.parents if not parent.exists()]
    for parent in reversed(missing):
        parent.mkdir()
        if owner is not None:
            os.chown(parent, *owner)


@routes.put("/v1/files")
async def put_file(request: web.Request) -> web.Response:
    """Write a file."""
    path = absolute(request.query.get("path"))
    owner_name = request.query.get("owner", session.USER)
    if owner_name not in (session.USER, "root"):
        raise BadRequest(f"'owner' must be 'user' or 'root', not {owner_name!r}")
    try:
        mode = int(request.query.get("mode", "0644"), 8)
    except ValueError as error:
        raise BadRequest("'mode' must be octal, like 0644") from error
    owner = (session.UID, session.GID) if owner_name == session.USER else (0, 0)
    chown = owner if agent_of(request).runner.drop_privileges else None
    try:
        nbytes = await write_whole(path, request.content.iter_chunked(CHUNK), mode, chown)
    except TooLarge as error:
        return failure(413, "bad_request", str(error))
    except OSError as error:
        return failure(400, "bad_request", f"{path} could not be written: {error}")
    return web.json_response({"nbytes": nbytes})


async def write_whole(path: Path, chunks: AsyncIterator[bytes], mode: int, owner: tuple[int, int] | None) -> int:
    """Put a stream into a file beside the target, then in its place; returns its bytes. Raises TooLarge or OSError and leaves nothing.

    The file beside it is always a new one, so that a link laid there leads nowhere; a link at `path` itself is replaced.
    """
    await asyncio.to_thread(make_room, path, owner)
    fresh = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}.dart-new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    nbytes = 0
    try:
        with os.fdopen(descriptor, "wb") as file:
            async for chunk in chunks:
                nbytes += len(chunk)
                if nbytes > FILE_LIMIT:
                    raise TooLarge(f"{path} would be larger than {FILE_LIMIT} bytes")
                await asyncio.to_thread(file.write, chunk)
            os.fchmod(file.fileno(), mode & 0o7777)
            if owner is not None:
                os.fchown(file.fileno(), *owner)
        os.replace(fresh, path)
    except BaseException:  # interrupted, too, no half a file may stay; raised again
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise
    return nbytes


def open_regular(path: Path) -> tuple[int, int]:
    """(descriptor, size) of a regular file; raises FileNotFoundError, or BadRequest for anything else."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise BadRequest(f"{path} is not a regular file", "not_regular_file")
    return descriptor, status.st_size


@routes.get("/v1/files")
async def get_file(request: web.Request) -> web.StreamResponse:
    """Read a file."""
    return await send_file(request, absolute(request.query.get("path")))


async def send_file(
    request: web.Request,
    path: Path,
    headers: dict[str, str] | None = None,
    media_type: str = "application/octet-stream",
) -> web.StreamResponse:
    """Stream a regular file; what grows meanwhile is cut at the size announced."""
    try:
        descriptor, size = open_regular(path)
    except (FileNotFoundError, NotADirectoryError):
        return failure(404, "not_found", f"there is no file {path}")
    except OSError as error:
        return failure(400, "not_regular_file", f"{path} could not be read: {error}")
    with os.fdopen(descriptor, "rb") as file:
        response = web.StreamResponse(headers=headers)
        response.content_type = media_type
        response.content_length = size
        await response.prepare(request)
        left = size
        while left > 0:
            chunk = await asyncio.to_thread(file.read, min(CHUNK, left))
            if not chunk:
                # The file shrank: end the connection rather than send a short body as if it were whole.
                response.force_close()
                break
            left -= len(chunk)
            await response.write(chunk)
        await response.write_eof()
    return response
