"""OSWorld's paths: the desktop, its windows and files.

Role: OSWorld's in-guest protocol in its own request and reply forms, so that its client works unchanged.
Rule: thin; everything is done by the parts that `/v1` uses. Programs are in `osworld_run`.
"""

from __future__ import annotations

import asyncio
import os
import platform as host_platform
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from aiohttp import BodyPartReader, web

from dart_guest import events, session, windows
from dart_guest.files import CHUNK, TooLarge, send_file, write_whole
from dart_guest.http import agent_of, json_body

A11Y_LIMIT_S = 60.0
TREE_ENTRY_LIMIT = 100_000
TERMINAL_ROLE = "terminal"

routes = web.RouteTableDef()


def expand(text: str) -> str:
    """A leading ~ is the session user's home; variables are expanded as OSWorld does."""
    if text == "~" or text.startswith("~/"):
        return session.HOME + text[1:]
    return os.path.expandvars(text)


def guest_path(named: str) -> Path:
    """A file's path as OSWorld's server reads it: a relative one is below the home folder, where that server runs."""
    return Path(session.HOME, expand(named))


@routes.get("/screenshot")
async def screenshot(request: web.Request) -> web.Response:
    """The screen as PNG, pointer drawn in."""
    agent = agent_of(request)
    wanted = events.StepRequest(None, (), None, events.Frame("png", 90, True))
    result = await agent.on_desktop(lambda: agent.desktop.step(wanted))
    return web.Response(body=result.payload, content_type="image/png")


@routes.get("/accessibility")
async def accessibility(request: web.Request) -> web.Response:
    """The accessibility tree as XML."""
    return web.json_response(await agent_of(request).walker.walk("xml", A11Y_LIMIT_S))


@routes.get("/terminal")
async def terminal(request: web.Request) -> web.Response:
    """Text of the focused terminal, or of the only one; null when there is none."""
    tree = await agent_of(request).walker.walk("json", A11Y_LIMIT_S)
    terminals = [element for element in tree["elements"] if element["role"] == TERMINAL_ROLE]
    focused = [element for element in terminals if "focused" in element["states"]]
    chosen = (focused or terminals)[:1]
    output = chosen[0]["text"].rstrip() if chosen else None
    return web.json_response({"output": output, "status": "success"})


@routes.post("/screen_size")
async def screen_size(request: web.Request) -> web.Response:
    """Width and height in pixels."""
    agent = agent_of(request)
    width, height = await agent.on_desktop(agent.desktop.size)
    return web.json_response({"width": width, "height": height})


@routes.post("/window_size")
async def window_size(request: web.Request) -> web.Response:
    """Size of the first window of a class."""
    agent = agent_of(request)
    wanted = str((await request.post()).get("app_class_name", ""))
    for window in await agent.on_desktop(lambda: windows.listed(agent.desktop.connection())):
        if wanted in (window.cls, window.instance):
            return web.json_response({"width": window.w, "height": window.h})
    return web.json_response({"width": None, "height": None})


@routes.get("/cursor_position")
async def cursor_position(request: web.Request) -> web.Response:
    """[x, y] of the pointer."""
    agent = agent_of(request)
    return web.json_response(list(await agent.on_desktop(lambda: agent.desktop.connection().pointer_position())))


@routes.get("/platform")
async def platform_name(request: web.Request) -> web.Response:
    """Linux."""
    return web.Response(text=host_platform.system())


@routes.post("/desktop_path")
async def desktop_path(request: web.Request) -> web.Response:
    """The desktop folder."""
    path = Path(session.HOME) / "Desktop"
    if not path.is_dir():
        return web.json_response({"error": "Desktop path not found"}, status=404)
    return web.json_response({"desktop_path": str(path)})


def tree_of(path: Path, budget: list[int]) -> dict[str, Any]:
    """A directory as nested entries, links not followed, at most `budget[0]` entries."""
    node: dict[str, Any] = {"type": "directory", "name": path.name, "children": []}
    with os.scandir(path) as entries:
        for entry in sorted(entries, key=lambda one: one.name):
            budget[0] -= 1
            if budget[0] < 0:
                break
            if entry.is_dir(follow_symlinks=False):
                try:
                    node["children"].append(tree_of(Path(entry.path), budget))
                except OSError:
                    node["children"].append({"type": "directory", "name": entry.name, "children": []})
            else:
                node["children"].append({"type": "file", "name": entry.name})
    return node


@routes.post("/list_directory")
async def list_directory(request: web.Request) -> web.Response:
    """A directory tree."""
    path = guest_path(str((await json_body(request)).get("path", "")))
    try:
        tree = await asyncio.to_thread(tree_of, path, [TREE_ENTRY_LIMIT])
    except OSError:
        return web.json_response({"error": "The provided path is not a directory"}, status=400)
    return web.json_response({"directory_tree": tree})


@routes.post("/file")
async def get_file(request: web.Request) -> web.StreamResponse:
    """A file as an attachment."""
    named = (await request.post()).get("file_path")
    if not isinstance(named, str) or not named:
        return web.json_response({"error": "file_path is required"}, status=400)
    path = guest_path(named)
    return await send_file(request, path, {"Content-Disposition": f'attachment; filename="{path.name}"'})


@routes.post("/setup/upload")
async def upload(request: web.Request) -> web.Response:
    """Write an uploaded file; parents are made."""
    reader = await request.multipart()
    chown = (session.UID, session.GID) if agent_of(request).runner.drop_privileges else None
    path: Path | None = None
    try:
        while (part := await reader.next()) is not None:
            if not isinstance(part, BodyPartReader):
                continue
            if part.name == "file_path":
                path = guest_path(await part.text())
            elif part.name == "file_data" and path is not None:
                nbytes = await write_whole(path, chunks_of(part), 0o644, chown)
                return web.Response(text=f"File Uploaded: {nbytes} bytes")
    except TooLarge as error:
        return web.json_response({"error": str(error)}, status=413)
    except OSError as error:
        return web.json_response({"error": f"the file could not be written: {error}"}, status=400)
    # OSWorld's clients name the file first, so that it can be streamed to where it belongs.
    return web.json_response({"error": "file_path and, after it, file_data are required"}, status=400)


async def chunks_of(part: BodyPartReader) -> AsyncIterator[bytes]:
    """The content of a part of a form."""
    while chunk := await part.read_chunk(CHUNK):
        yield chunk
