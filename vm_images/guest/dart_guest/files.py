"""`/v1/files`: whole files in and out.

Role: stream content between the outside and the desktop's disk.
Rule: a file that is written appears whole or not at all; only regular files are read, so a fifo cannot hang the agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from pathlib import Path

from aiohttp import web

from dart_guest import session
from dart_guest.events import BadRequest
from dart_guest.http import agent_of, failure

CHUNK = 256 * 1024

routes = web.RouteTableDef()


def absolute(text: str | None) -> Path:
    """The `path` parameter."""
    if not text or not text.startswith("/") or "\0" in text:
        raise BadRequest("'path' must be an absolute path")
    return Path(text)


def make_parents(path: Path, owner: tuple[int, int] | None) -> None:
    """Make missing parent directories, each with the owner of the file to be."""
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
    fresh = path.with_name(f".{path.name[:200]}.dart-new")
    nbytes = 0
    try:
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a directory")
        make_parents(path, chown)
        with fresh.open("wb") as file:
            async for chunk in request.content.iter_chunked(CHUNK):
                nbytes += len(chunk)
                await asyncio.to_thread(file.write, chunk)
        fresh.chmod(mode & 0o7777)
        if chown is not None:
            os.chown(fresh, *chown)
        os.replace(fresh, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            fresh.unlink()
        return failure(400, "bad_request", f"{path} could not be written: {error}")
    return web.json_response({"nbytes": nbytes})


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


async def send_file(request: web.Request, path: Path, headers: dict[str, str] | None = None) -> web.StreamResponse:
    """Stream a regular file; what grows meanwhile is cut at the size announced."""
    try:
        descriptor, size = open_regular(path)
    except (FileNotFoundError, NotADirectoryError):
        return failure(404, "not_found", f"there is no file {path}")
    except OSError as error:
        return failure(400, "not_regular_file", f"{path} could not be read: {error}")
    with os.fdopen(descriptor, "rb") as file:
        response = web.StreamResponse(headers=headers)
        response.content_type = "application/octet-stream"
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
