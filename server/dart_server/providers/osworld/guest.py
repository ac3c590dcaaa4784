"""A guest that has only OSWorld's own server, seen through the guest protocol.

Role: answer `/v1` by OSWorld's paths (screenshot, execute, upload, file, accessibility) and pass every other path on as it is.
Rule: what such a guest cannot do is refused with `not_supported` (501) and listed in `health` under `limitations`: programs as root,
pictures without the pointer, settling by damage (pictures are compared instead), identity renewed after a restore. Nothing falls back
silently. Non-goals: reaching the guest (`libvirt_machine` dials), the programs themselves (`osworld_inside`).
"""

from __future__ import annotations

import asyncio
import io
import json
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit
from xml.etree import ElementTree

from dart_server.guest import limits
from dart_server.guest.client import GuestClient, GuestMalformed, GuestReply, GuestUnreachable
from dart_server.providers.guest_server import GuestRequestError, GuestServer, Reply, frame, json_reply
from dart_server.providers.osworld import guest_programs
from dart_server.wire.guest_answers import MalformedAnswer, check_picture, parse_json, parse_object

CALL_TIMEOUT_S = 130.0
"""OSWorld's server gives programs 120 s."""
HEALTH_TIMEOUT_S = 10.0
SETTLE_POLL_S = 0.05
LIMITATIONS = (
    "the guest has OSWorld's own server only: no programs as root, the pointer in every picture, settling by comparing pictures, "
    "no new identity after a restore"
)
PLATFORMS = (b"Linux", b"Windows", b"Darwin")
COMPONENT = "{https://accessibility.ubuntu.example.org/ns/component}"
STATE = "{https://accessibility.ubuntu.example.org/ns/state}"
WINDOW_ROLES = ("frame", "window", "dialog", "alert", "file-chooser")
JSON = {"content-type": "application/json"}
FORM = {"content-type": "application/x-www-form-urlencoded"}


class OsworldGuest(GuestServer):
    """The stand-in for an agent. `dial` connects to OSWorld's server; `size` is the screen that was asked for, in pixels."""

    def __init__(self, dial: Callable[[], Awaitable[socket.socket]], size: tuple[int, int]) -> None:
        super().__init__()
        self._guest = GuestClient(lambda _port: dial())
        self._size = size
        self._boot_id = secrets.token_hex(16)
        self._stepping = asyncio.Lock()

    async def answers(self, timeout_s: float) -> bool:
        """Whether OSWorld's server is there."""
        try:
            reply = await self._guest.request("GET", "/platform", limits.HEALTH, timeout_s=timeout_s)
        except GuestUnreachable:
            return False
        return reply.status == 200 and reply.content.strip() in PLATFORMS

    async def close(self) -> None:
        """Close every connection, at both ends."""
        await super().close()
        await self._guest.close_connections()

    async def handle_request(self, method: str, target: str, content_type: str, body: bytes) -> Reply:
        """Everything but the channel."""
        url = urlsplit(target)
        query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        match method, url.path:
            case "GET", "/v1/health":
                return json_reply(await self._health())
            case "POST", "/v1/step":
                return Reply(200, await self.step(json.loads(body or b"{}")), "application/octet-stream")
            case "POST", "/v1/exec":
                return json_reply(await self._exec(json.loads(body)))
            case "PUT", "/v1/files":
                return json_reply(await self._upload(_absolute(query), body, query.get("mode")))
            case "GET", "/v1/files":
                return Reply(200, await self._file(_absolute(query)), "application/octet-stream")
            case "GET", "/v1/a11y":
                return json_reply(await self._tree(query.get("format", "json")))
            case "GET", "/v1/windows":
                return json_reply({"windows": await self._windows()})
            case "POST", "/v1/quiesce":
                return json_reply({"ok": True, "zombies": [], "processes": 0})
            case _ if url.path.startswith("/v1/"):
                raise GuestRequestError(501, "not_supported", LIMITATIONS)
        passed = await self._ask(method, target, body or None, {"content-type": content_type} if content_type else {})
        return Reply(passed.status, passed.content, passed.headers.get("content-type", "application/octet-stream"))

    async def step(self, request: Mapping[str, Any]) -> bytes:
        """Events by one program, settling by pictures, the picture converted."""
        events = guest_programs.validate_events(request.get("events", []), self._size)
        wanted, settle = request.get("frame") or {}, request.get("settle")
        async with self._stepping:
            started_s = time.monotonic()
            cursor = await self._perform(events)
            performed_s = time.monotonic()
            picture, settled = await self._settle(settle)
            settled_s = time.monotonic()
        encoding = str(wanted.get("encoding", "png"))
        check_picture(picture, "png", self._size)
        image = await asyncio.to_thread(_encoded, picture, encoding, int(wanted.get("quality", 90)))
        times = {
            "events_ms": (performed_s - started_s) * 1000,
            "settle_ms": (settled_s - performed_s) * 1000,
            "grab_ms": 0.0,
            "encode_ms": (time.monotonic() - settled_s) * 1000,
        }
        header = {"seq": request.get("seq", 0), "width": image[1][0], "height": image[1][1], "encoding": encoding}
        return frame({**header, "settled": settled, **times, "cursor": cursor}, image[0])

    async def _perform(self, events: list[dict[str, Any]]) -> list[int]:
        """Perform events; where the pointer is then."""
        if not events:
            found = parse_json(await self._request_ok("GET", "/cursor_position"), limits.CLOCK.json)
        else:
            found = await self._run_program(guest_programs.EVENTS_PROGRAM, events)
            if isinstance(found, dict):
                raise GuestRequestError(400, "unknown_key", f"the guest has no key {found.get('unknown_key')!r}")
        return [int(found[0]), int(found[1])]

    async def _settle(self, settle: Mapping[str, Any] | None) -> tuple[bytes, bool]:
        """A picture, and whether none was different from it for the quiet period."""
        picture = await self._picture()
        if settle is None:
            return picture, False
        start_s = since_s = time.monotonic()
        quiet_s, cap_s = settle.get("quiet_ms", 100) / 1000, settle.get("cap_ms", 2000) / 1000
        while time.monotonic() - since_s < quiet_s:
            if time.monotonic() - start_s > cap_s:
                return picture, False
            await asyncio.sleep(min(SETTLE_POLL_S, quiet_s))
            newer = await self._picture()
            if newer != picture:
                picture, since_s = newer, time.monotonic()
        return picture, True

    async def _picture(self) -> bytes:
        return await self._request_ok("GET", "/screenshot")

    async def _health(self) -> dict[str, Any]:
        reply = await self._ask("POST", "/screen_size", timeout_s=HEALTH_TIMEOUT_S)
        if reply.status != 200:
            raise GuestRequestError(
                503, "session_down", f"OSWorld's server answers {reply.status}: its session is not up"
            )
        size = parse_object(reply.content, limits.HEALTH.json)
        found = [int(size["width"]), int(size["height"])]
        parts = {name: True for name in ("ready", "session_alive", "x_alive", "wm_alive", "bus_alive")}
        return {
            "version": "osworld",
            "protocol": 1,
            "resolution": found,
            "boot_id": self._boot_id,
            **parts,
            "disk_full": False,
            "agent_starts": 1,
            "processes": 0,
            "restores": 0,
            "realtime_s": time.time(),
            "held": [],
            "limitations": LIMITATIONS,
        }

    async def _exec(self, request: Mapping[str, Any]) -> dict[str, Any]:
        if request.get("user", "user") != "user":
            raise GuestRequestError(501, "not_supported", LIMITATIONS)
        asked = {"timeout_s": 60.0, **request}
        answer: dict[str, Any] = await self._run_program(guest_programs.EXEC_PROGRAM, asked)
        return {"timed_out": False, "truncated": False, **answer}

    async def _run_program(self, program: str, argument: Any) -> Any:
        """What one of our programs prints inside the guest."""
        body = json.dumps(guest_programs.command(program, argument)).encode()
        said = parse_object(await self._request_ok("POST", "/execute", body, JSON), limits.EXEC.json)
        try:
            return parse_json(str(said["output"]).encode(), limits.EXEC.json)
        except ValueError as error:
            detail = f"the guest's python failed: {str(said.get('error', ''))[-300:]}"
            raise GuestRequestError(503, "internal", detail) from error

    async def _upload(self, path: str, content: bytes, mode: str | None) -> dict[str, Any]:
        edge = secrets.token_hex(16)
        parts = [
            f'--{edge}\r\nContent-Disposition: form-data; name="file_path"\r\n\r\n{path}\r\n'.encode(),
            f'--{edge}\r\nContent-Disposition: form-data; name="file_data"; filename="upload"\r\n'.encode(),
            b"Content-Type: application/octet-stream\r\n\r\n" + content + f"\r\n--{edge}--\r\n".encode(),
        ]
        kind = {"content-type": f"multipart/form-data; boundary={edge}"}
        await self._request_ok("POST", "/setup/upload", b"".join(parts), kind)
        if mode is not None:
            await self._exec({"argv": ["chmod", mode, path]})
        return {"nbytes": len(content)}

    async def _file(self, path: str) -> bytes:
        reply = await self._ask("POST", "/file", urlencode({"file_path": path}).encode(), FORM)
        if reply.status != 200:
            raise GuestRequestError(404, "not_found", f"no such file: {path}")
        return reply.content

    async def _tree(self, form: str) -> dict[str, Any]:
        started_s = time.monotonic()
        said = parse_object(await self._request_ok("GET", "/accessibility"), limits.OSWORLD_TREE.json)
        if form == "xml":
            return {"AT": said["AT"]}
        found = await asyncio.to_thread(elements, said["AT"])
        return {"elements": found, "truncated": False, "walk_ms": (time.monotonic() - started_s) * 1000}

    async def _windows(self) -> list[dict[str, Any]]:
        """The window manager's list, as `wmctrl` tells it."""
        said = await self._exec({"argv": ["wmctrl", "-lGpx"]})
        found = []
        for line in said["stdout"].splitlines():
            words = line.split(None, 9)
            if len(words) >= 9:
                x, y, w, h = (int(word) for word in words[3:7])
                title = words[9] if len(words) > 9 else ""
                place = {"x": x, "y": y, "w": w, "h": h}
                known = {"id": int(words[0], 16), "pid": int(words[2]), "class": words[7].rpartition(".")[2]}
                found.append({**known, "title": title, **place, "active": False})
        return found

    async def _request_ok(
        self, method: str, target: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> bytes:
        """What one of OSWorld's paths answers. Raises `GuestRequestError` when it does not answer well."""
        reply = await self._ask(method, target, body, headers)
        if reply.status != 200:
            raise GuestRequestError(
                503, "internal", f"{target}: {reply.status} {reply.content[:200].decode('utf-8', 'replace')}"
            )
        return reply.content

    async def _ask(
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> GuestReply:
        """One of OSWorld's paths. Raises `GuestRequestError` when nobody answers."""
        try:
            return await self._guest.request(
                method, target, limits.PASSED_THROUGH, timeout_s=timeout_s, headers=headers, content=body
            )
        except GuestMalformed as error:
            raise MalformedAnswer(str(error)) from error
        except GuestUnreachable as error:
            raise GuestRequestError(503, "session_down", f"OSWorld's server does not answer: {error}") from error


def elements(xml: str) -> list[dict[str, Any]]:
    """OSWorld's tree as the protocol's showing elements, in tree order."""
    found: list[dict[str, Any]] = []

    def walk(node: ElementTree.Element, app: str, window: str) -> None:
        name, role = node.get("name", ""), node.tag.replace("-", " ")
        if node.tag == "application":
            app = name
        elif node.tag in WINDOW_ROLES:
            window = name
        place, size = _pair(node.get(f"{COMPONENT}screencoord")), _pair(node.get(f"{COMPONENT}size"))
        if place is not None and size is not None and min(size) >= 0:
            states = [key.removeprefix(STATE) for key in node.keys() if key.startswith(STATE)]  # noqa: SIM118 - an element
            box = {"x": place[0], "y": place[1], "w": size[0], "h": size[1]}
            text = (node.text or "").strip()
            found.append(
                {"role": role, "name": name, "text": text, "states": states, **box, "app": app, "window": window}
            )
        for child in node:
            walk(child, app, window)

    try:
        walk(ElementTree.fromstring(xml), "", "")
    except (ElementTree.ParseError, RecursionError) as error:
        raise MalformedAnswer("the accessibility tree is no tree") from error
    return found


def _pair(text: str | None) -> tuple[int, int] | None:
    """`"(12, 34)"` as numbers."""
    if text is None:
        return None
    first, _, second = text.strip("() ").partition(",")
    try:
        return int(first), int(second)
    except ValueError:
        return None


def _absolute(query: Mapping[str, str]) -> str:
    path = query.get("path", "")
    if not path.startswith("/") or "\r" in path or "\n" in path:
        raise GuestRequestError(400, "bad_request", "path is not absolute")
    return path


def _encoded(picture: bytes, encoding: str, quality: int) -> tuple[bytes, tuple[int, int]]:
    """OSWorld's PNG as what was asked for, and its size in pixels. Raises `MalformedAnswer`."""
    try:
        return _converted(picture, encoding, quality)
    except Exception as error:
        raise MalformedAnswer(f"a picture that cannot be decoded: {error}") from error


def _converted(picture: bytes, encoding: str, quality: int) -> tuple[bytes, tuple[int, int]]:
    from PIL import Image

    with Image.open(io.BytesIO(picture), formats=("PNG",)) as image:
        size = image.size
        if encoding == "none":
            return b"", size
        if encoding == "png":
            return picture, size
        rgb = image.convert("RGB")
        if encoding == "raw":
            return rgb.tobytes(), size
        kept = io.BytesIO()
        options: dict[str, Any] = {"lossless": True} if encoding == "webp" and quality == 100 else {"quality": quality}
        rgb.save(kept, encoding, **options)
        return kept.getvalue(), size
