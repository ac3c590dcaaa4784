"""Simulation: the guest agent of a pretended desktop. Speaks the guest protocol over sockets that the provider hands out.

Rule: the same paths, forms and error codes as the real agent (`vm_images/guest/protocol.md`), everything in memory.
`exec` knows `true`, `false`, `echo`, `date -u +%s` and `cat` (of the pretended files) and runs nothing. A file at `dialog.DIALOG_FILE`
opens a dialog on the screen, and `dialog.ANSWER_FILE` has its answer.
Non-goals: OSWorld's paths other than `/screenshot`, `/screen_size` and `/platform`.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from dart_server.providers.guest_server import GuestRequestError, GuestServer, Reply, frame, json_reply
from dart_server.providers.sim import screen as sim_screen
from dart_server.providers.sim.dialog import ANSWER_FILE, DIALOG_FILE, InvalidDialogError, read_dialog
from dart_server.providers.sim.screen import ScreenState
from dart_server.wire import Clock


@dataclass(slots=True)
class GuestState:
    """What a snapshot keeps: screen, files by absolute path, how often it was restored, its boot id."""

    screen: ScreenState
    boot_id: str
    files: dict[str, bytes] = field(default_factory=dict)
    restores: int = 0
    session_alive: bool = True
    declared: tuple[float, float] | None = None
    """A declared time of day, and when on the clock's monotonic axis it was that."""


class SimGuest(GuestServer):
    """The agent of one pretended desktop: `serve` a socket, `copy_state`, `close`."""

    def __init__(self, state: GuestState, clock: Clock) -> None:
        super().__init__()
        self.state = state
        self._clock = clock
        self.on_step: Callable[[], None] | None = None
        """Called when a step begins."""
        self._stepping = asyncio.Lock()
        self._shown: tuple[str, bytes] | None = None
        """How the screen was when it was encoded last, and the bytes."""

    def copy_state(self) -> GuestState:
        """A deep copy, for a snapshot or a fork; a declared clock stands still in it."""
        self.state.declared = self._declared_now()
        return copy.deepcopy(self.state)

    def resume_clock(self) -> None:
        """A declared clock is taken up where it stood."""
        if self.state.declared is not None:
            self.state.declared = (self.state.declared[0], self._clock.monotonic())

    def _declared_now(self) -> tuple[float, float] | None:
        if self.state.declared is None:
            return None
        time_s, since_s = self.state.declared
        now_s = self._clock.monotonic()
        return (time_s + now_s - since_s, now_s)

    def _time(self) -> float:
        declared = self._declared_now()
        return self._clock.time() if declared is None else declared[0]

    def _clock_reply(self) -> Reply:
        return json_reply({"time_s": self._time(), "declared": self.state.declared is not None})

    async def handle_request(self, method: str, target: str, content_type: str, body: bytes) -> Reply:
        """Everything but the channel."""
        url = urlsplit(target)
        query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        match method, url.path:
            case "GET", "/v1/health":
                return json_reply(self._health())
            case "POST", "/v1/step":
                return Reply(200, await self.step(json.loads(body or b"{}")), "application/octet-stream")
            case "POST", "/v1/exec":
                return json_reply(self._exec(json.loads(body)))
            case "PUT", "/v1/files":
                self._put_file(_absolute(query), body)
                return json_reply({"nbytes": len(body)})
            case "GET", "/v1/files":
                return Reply(200, self._file(_absolute(query)), "application/octet-stream")
            case "GET", "/v1/a11y":
                found = sim_screen.elements(self.state.screen)
                return json_reply({"elements": found, "truncated": False, "walk_ms": 0.0})
            case "GET", "/v1/windows":
                whole = {"x": 0, "y": 0, "w": self.state.screen.width, "h": self.state.screen.height}
                return json_reply(
                    {"windows": [{"id": 1, "title": "Sim", "class": "sim", "pid": 2, "active": True, **whole}]}
                )
            case "GET", "/v1/clock":
                return self._clock_reply()
            case "POST", "/v1/clock":
                wanted = json.loads(body)["time_s"]
                self.state.declared = None if wanted is None else (float(wanted), self._clock.monotonic())
                return self._clock_reply()
            case "POST", "/v1/quiesce":
                await self.close()
                return json_reply({"ok": True, "zombies": [], "processes": 1})
            case "POST", "/v1/restored":
                said = json.loads(body)
                self.state.restores += 1
                self.state.boot_id = said["entropy"][:32]
                return json_reply({**self._health(), "clock_offset_s": self._time() - said["realtime_s"]})
            case "GET", "/screenshot":
                image = sim_screen.draw(self.state.screen, cursor=True)
                return Reply(200, sim_screen.encode(image, "png", 90), "image/png")
            case "POST", "/screen_size":
                return json_reply({"width": self.state.screen.width, "height": self.state.screen.height})
            case "GET", "/platform":
                return Reply(200, b"Linux", "text/plain")
            case _:
                raise GuestRequestError(404, "not_found", f"no such path: {method} {url.path}")

    def _health(self) -> dict[str, Any]:
        state, screen = self.state, self.state.screen
        alive = state.session_alive
        parts = {name: alive for name in ("ready", "session_alive", "x_alive", "wm_alive", "bus_alive")}
        return {
            "version": "sim",
            "protocol": 1,
            "resolution": [screen.width, screen.height],
            "boot_id": state.boot_id,
            **parts,
            "disk_full": False,
            "agent_starts": 1,
            "processes": 1,
            "restores": state.restores,
            "realtime_s": self._time(),
            "held": sorted(screen.held),
        }

    async def step(self, request: Mapping[str, Any]) -> bytes:
        """Events and the frame."""
        events, wanted, settle = request.get("events", []), request.get("frame") or {}, request.get("settle")
        sim_screen.check(events)
        encoding, quality = wanted.get("encoding", "png"), wanted.get("quality", 90)
        screen = self.state.screen
        if self.on_step is not None:
            self.on_step()
        if not self.state.session_alive:
            raise GuestRequestError(503, "session_down", "the session has ended")
        async with self._stepping:
            for event in events:
                if event["type"] == "wait":
                    await self._clock.sleep(event["ms"] / 1000)
                else:
                    sim_screen.perform(screen, event)
            if screen.dialog is not None:
                self.state.files[ANSWER_FILE] = screen.dialog.answer.encode()
            payload = self._picture(encoding, quality, cursor=bool(wanted.get("cursor", False)))
        times = {name: 0.0 for name in ("settle_ms", "events_ms", "grab_ms", "encode_ms")}
        header = {"seq": request.get("seq", 0), "width": screen.width, "height": screen.height, "encoding": encoding}
        return frame({**header, "settled": settle is not None, **times, "cursor": list(screen.pointer)}, payload)

    def _picture(self, encoding: str, quality: int, *, cursor: bool) -> bytes:
        """The screen, encoded; the same bytes again while nothing on it has changed."""
        if encoding == "none":
            return b""
        look = repr((self.state.screen, encoding, quality, cursor))
        if self._shown is None or self._shown[0] != look:
            self._shown = (
                look,
                sim_screen.encode(sim_screen.draw(self.state.screen, cursor=cursor), encoding, quality),
            )
        return self._shown[1]

    def _exec(self, request: Mapping[str, Any]) -> dict[str, Any]:
        argv = request["argv"]
        answer: dict[str, Any] = {"returncode": 0, "stdout": "", "stderr": "", "timed_out": False, "truncated": False}
        answer["pid"] = 2
        match argv:
            case ["true"]:
                pass
            case ["false"]:
                answer["returncode"] = 1
            case ["date", "-u", "+%s"]:
                answer["stdout"] = f"{int(self._time())}\n"
            case ["echo", *words]:
                answer["stdout"] = " ".join(words) + "\n"
            case ["cat"]:
                answer["stdout"] = request.get("stdin") or ""
            case ["cat", path] if path in self.state.files:
                answer["stdout"] = self.state.files[path].decode("utf-8", "replace")
            case ["cat", path]:
                answer |= {"returncode": 1, "stderr": f"cat: {path}: No such file or directory\n"}
            case _:
                answer |= {"returncode": 127, "stderr": f"{argv[0]}: the simulation runs no programs\n"}
        if request.get("detach"):
            answer |= {"returncode": None, "stdout": "", "stderr": ""}
        return answer

    def _put_file(self, path: str, content: bytes) -> None:
        if path == DIALOG_FILE:
            try:
                self.state.screen.dialog = read_dialog(content)
            except InvalidDialogError as error:
                raise GuestRequestError(400, "bad_request", str(error)) from error
            self.state.files[ANSWER_FILE] = b""
        self.state.files[path] = content

    def _file(self, path: str) -> bytes:
        if path not in self.state.files:
            raise GuestRequestError(404, "not_found", f"no such file: {path}")
        return self.state.files[path]


def _absolute(query: Mapping[str, str]) -> str:
    path = query.get("path", "")
    if not path.startswith("/"):
        raise GuestRequestError(400, "bad_request", "path is not absolute")
    return path
