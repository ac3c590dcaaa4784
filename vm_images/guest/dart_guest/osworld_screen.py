"""OSWorld's paths about what the screen shows: wallpaper and recordings; and the download into the desktop.

Role: wallpaper, change_wallpaper, start_recording, end_recording, download_file, in OSWorld's forms.
Rule: a desktop environment that keeps a wallpaper (GNOME, Xfce) is asked for it; where none does, the agent paints the root window.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import unquote, urlparse

from aiohttp import web
from PIL import Image, UnidentifiedImageError

from dart_guest.agent import Agent
from dart_guest.files import send_file
from dart_guest.http import agent_of, json_body
from dart_guest.osworld import guest_path
from dart_guest.xinput import SessionDown

TOOL_LIMIT_S = 10.0
DOWNLOAD_LIMIT_S = 300.0
DOWNLOAD_TRIES = 3
GNOME_KEY = ("org.gnome.desktop.background", "picture-uri")
XFCE_CHANNEL = "xfce4-desktop"
DOWNLOADER = """
import os, shutil, sys, urllib.request
url, path = sys.argv[1:]
os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
with urllib.request.urlopen(url, timeout=60) as source, open(path + ".part", "wb") as target:
    shutil.copyfileobj(source, target)
os.replace(path + ".part", path)
"""

routes = web.RouteTableDef()


async def tool(agent: Agent, *argv: str) -> str | None:
    """What a program printed; None when it failed or is not there."""
    ended = await agent.runner.run(argv, timeout_s=TOOL_LIMIT_S)
    return ended.stdout.decode(errors="replace").strip() if ended.returncode == 0 else None


async def xfce_properties(agent: Agent) -> list[str]:
    """Xfce's properties that name a wallpaper, one per monitor and workspace."""
    listed = await tool(agent, "xfconf-query", "-c", XFCE_CHANNEL, "-l") or ""
    return [name for name in listed.split() if name.endswith("/last-image")]


async def wallpaper_path(agent: Agent) -> Path | None:
    """The picture on the desktop's background; None when it is plain."""
    if agent.wallpaper is not None:
        return agent.wallpaper
    for name in await xfce_properties(agent):
        found = await tool(agent, "xfconf-query", "-c", XFCE_CHANNEL, "-p", name)
        if found:
            return Path(found)
    uri = await tool(agent, "gsettings", "get", *GNOME_KEY)
    path = Path(unquote(urlparse((uri or "").strip("'")).path))
    return path if await asyncio.to_thread(path.is_file) else None


@routes.post("/wallpaper")
async def wallpaper(request: web.Request) -> web.StreamResponse:
    """The picture file of the background."""
    path = await wallpaper_path(agent_of(request))
    if path is None:
        return web.json_response({"error": "Wallpaper not found"}, status=404)
    return await send_file(request, path, {"Content-Disposition": f'inline; filename="{path.name}"'})


@routes.post("/setup/change_wallpaper")
async def change_wallpaper(request: web.Request) -> web.Response:
    """Put a picture on the background."""
    agent = agent_of(request)
    named = (await json_body(request)).get("path")
    if not isinstance(named, str) or not named:
        return web.Response(text="Path not supplied!", status=400)
    path = guest_path(named)
    if not await asyncio.to_thread(path.is_file):
        return web.Response(text=f"File not found: {path}", status=404)
    properties = await xfce_properties(agent)
    for name in properties:
        await tool(agent, "xfconf-query", "-c", XFCE_CHANNEL, "-p", name, "-s", str(path))
    await tool(agent, "gsettings", "set", *GNOME_KEY, path.as_uri())
    if not properties:
        try:
            await paint(agent, path)
        except (OSError, UnidentifiedImageError, SessionDown) as error:
            return web.Response(text=f"Failed to change wallpaper. Error: {error}", status=500)
        agent.wallpaper = path
    return web.Response(text="Wallpaper changed successfully")


async def paint(agent: Agent, path: Path) -> None:
    """Put a picture on the root window, as large as the screen."""
    size = await agent.on_desktop(agent.desktop.size)

    def load() -> Image.Image:
        with Image.open(path) as picture:
            return picture.convert("RGB").resize(size)

    picture = await asyncio.to_thread(load)
    await agent.on_desktop(lambda: agent.desktop.connection().paint_picture(picture))


@routes.post("/setup/download_file")
async def download_file(request: web.Request) -> web.Response:
    """Fetch a URL into a file, from inside the desktop and as its user."""
    body = await json_body(request)
    url, named = body.get("url"), body.get("path")
    if not (isinstance(url, str) and isinstance(named, str) and url and named):
        return web.Response(text="Path or URL not supplied!", status=400)
    error = ""
    for _ in range(DOWNLOAD_TRIES):
        argv = ["/usr/bin/python3", "-c", DOWNLOADER, url, str(guest_path(named))]
        ended = await agent_of(request).runner.run(argv, timeout_s=DOWNLOAD_LIMIT_S)
        if ended.returncode == 0:
            return web.Response(text="File downloaded successfully")
        error = (ended.stderr.decode(errors="replace").strip().splitlines() or ["no answer in time"])[-1]
    return web.Response(text=f"Failed to download {url}. No retries left. Error: {error}", status=500)


@routes.post("/start_recording")
async def start_recording(request: web.Request) -> web.Response:
    """Begin to film the screen."""
    recorder = agent_of(request).recorder
    if recorder.open:
        return web.json_response({"status": "error", "message": "Recording is already in progress."}, status=400)
    try:
        await asyncio.to_thread(recorder.start)
    except (OSError, SessionDown) as error:
        return web.json_response({"status": "error", "message": f"Failed to start recording: {error}"}, status=500)
    return web.json_response({"status": "success", "message": "Started recording."})


@routes.post("/end_recording")
async def end_recording(request: web.Request) -> web.StreamResponse:
    """Stop, and send the film."""
    recorder = agent_of(request).recorder
    if not recorder.open:
        return web.json_response({"status": "error", "message": "No recording in progress to stop."}, status=400)
    await asyncio.to_thread(recorder.end)
    name = {"Content-Disposition": f'attachment; filename="{recorder.path.name}"'}
    return await send_file(request, recorder.path, name, "video/mp4")
