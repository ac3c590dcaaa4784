"""A provider in this process: each desktop is a small guest agent on a Unix socket, its state a dictionary of files that snapshots copy."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import socket
import struct
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from dart_server.providers import base

DIGEST = "sha256:" + "0" * 64


def frame(request: dict[str, Any], size: tuple[int, int]) -> bytes:
    raw = request.get("frame", {}).get("encoding") == "raw"
    payload = bytes(size[0] * size[1] * 3) if raw else b""
    header = {"seq": request.get("seq"), "width": size[0], "height": size[1], "encoding": "raw" if raw else "none"}
    header |= {"settled": True, "settle_ms": 0.0, "grab_ms": 0.0, "cursor": [1, 2], "nbytes": len(payload)}
    text = json.dumps(header).encode()
    return struct.pack(">I", len(text)) + text + payload


@dataclass(eq=False)
class FakeDesktop:
    """One guest agent. `cause` other than ok makes it dead."""

    path: Path
    files: dict[str, bytes]
    size: tuple[int, int]
    cause: base.HealthCause = base.HealthCause.OK
    session_alive: bool = True
    frozen: bool = False
    hang: bool = False
    drafts: bool = False
    server: uvicorn.Server | None = None
    calls: list[str] = field(default_factory=list)

    async def start(self) -> None:
        routes = [
            Route("/v1/health", self.health),
            Route("/v1/step", self.step, methods=["POST"]),
            Route("/v1/exec", self.exec, methods=["POST"]),
            Route("/v1/files", self.files_route, methods=["GET", "PUT"]),
            Route("/v1/a11y", self.a11y),
            Route("/screenshot", self.screenshot),
            Route("/setup/launch", self.echo, methods=["POST"]),
            WebSocketRoute("/v1/channel", self.channel),
        ]
        config = uvicorn.Config(
            Starlette(routes=routes), uds=str(self.path), log_config=None, lifespan="off", ws_per_message_deflate=False
        )
        config.load()
        self.server = uvicorn.Server(config)
        self.server.lifespan = config.lifespan_class(config)
        await self.server.startup()

    async def stop(self) -> None:
        server, self.server = self.server, None
        self.frozen = False
        if server is not None:
            server.force_exit = True
            for connection in list(server.server_state.connections):
                connection.transport.abort()
            await server.shutdown()
            await asyncio.sleep(0.001)
            self.path.unlink(missing_ok=True)

    async def health(self, request: Request) -> Response:
        while self.frozen:  # noqa: ASYNC110 - as a stopped process does, it answers late
            await asyncio.sleep(0.002)
        return JSONResponse({"ready": True, "session_alive": self.session_alive})

    async def step(self, request: Request) -> Response:
        body = await request.json()
        return Response(frame(body, self.size), media_type="application/octet-stream")

    async def channel(self, ws: WebSocket) -> None:
        await ws.accept()
        with contextlib.suppress(WebSocketDisconnect):
            while True:
                request = json.loads(await ws.receive_text())
                if self.hang:
                    await asyncio.sleep(60)
                if not self.session_alive:
                    text = json.dumps(
                        {"seq": request["seq"], "error": "session_down", "detail": "no X", "status": 503, "nbytes": 0}
                    )
                    await ws.send_bytes(struct.pack(">I", len(text)) + text.encode())
                    continue
                if self.drafts and ws.query_params.get("early") == "1":
                    draft = {"draft": True, "seq": request["seq"], "nbytes": 5}
                    text = json.dumps(draft)
                    await ws.send_bytes(struct.pack(">I", len(text)) + text.encode() + b"ahead")
                await ws.send_bytes(frame(request, self.size))

    async def exec(self, request: Request) -> Response:
        body = await request.json()
        if body["argv"] == ["sleep"]:
            await asyncio.sleep(5)
        return JSONResponse(
            {"returncode": 0, "stdout": " ".join(body["argv"]), "stderr": "", "timed_out": False, "truncated": False}
        )

    async def files_route(self, request: Request) -> Response:
        path = request.query_params["path"]
        if request.method == "PUT":
            self.files[path] = await request.body()
            return JSONResponse({"nbytes": len(self.files[path])})
        if path not in self.files:
            return JSONResponse({"error": "not_found", "detail": path}, status_code=404)
        return Response(self.files[path])

    async def a11y(self, request: Request) -> Response:
        element = {
            "role": "push button",
            "name": "OK",
            "text": "",
            "states": [],
            "x": 1,
            "y": 2,
            "w": 3,
            "h": 4,
            "app": "a",
            "window": "b",
        }
        return JSONResponse({"elements": [element], "truncated": False, "walk_ms": 1.0})

    async def screenshot(self, request: Request) -> Response:
        return Response(b"\x89PNG", media_type="image/png")

    async def echo(self, request: Request) -> Response:
        return Response(await request.body(), media_type="text/plain")


@dataclass(eq=False)
class FakeProvider:
    """`base.Provider` over `FakeDesktop`s; faults are injected through its fields."""

    memory_snapshot: bool = True
    freezes: bool = False
    limits: ClassVar[frozenset[str]] = frozenset()
    snapshot_bytes: int = 100
    files_bytes: int = 0
    broken: set[str] = field(default_factory=set)
    """Snapshots that do not restore."""
    aside: set[str] = field(default_factory=set)
    """Snapshots in quarantine."""
    failing: int = 0
    """The next so many restores fail."""
    host_faults: int = 0
    """The next so many creates and restores fail."""
    log: list[tuple[str, str]] = field(default_factory=list)
    desktops: dict[str, FakeDesktop] = field(default_factory=dict)
    snapshots: dict[str, dict[str, bytes]] = field(default_factory=dict)
    sizes: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Screens of the snapshots, (width, height) in pixels."""
    directory: tempfile.TemporaryDirectory[str] = field(
        default_factory=lambda: tempfile.TemporaryDirectory(prefix="dart-fake-")
    )
    name: str = "fake"
    gate: asyncio.Event | None = None
    """When set, creates and restores wait for it."""

    @property
    def capabilities(self) -> base.Capabilities:
        return base.Capabilities(
            self.memory_snapshot,
            self.memory_snapshot,
            self.memory_snapshot,
            tunnel=True,
            freeze=self.freezes,
            limits=self.limits,
        )

    async def start(self) -> None: ...

    async def aclose(self) -> None:
        for desktop_id in list(self.desktops):
            await self.destroy(desktop_id)
        self.directory.cleanup()

    async def image_digest(self, image: str) -> str:
        if image == "missing":
            raise base.ImageMissing("no image missing", hint="Build it.")
        return DIGEST

    async def _boot(self, desktop_id: str, files: dict[str, bytes], size: tuple[int, int]) -> None:
        if self.gate is not None:
            await self.gate.wait()
        if self.host_faults:
            self.host_faults -= 1
            raise base.HostFault("no memory", hint="Buy some.")
        await self.destroy(desktop_id)
        desktop = FakeDesktop(Path(self.directory.name) / f"{desktop_id}.sock", files, size)
        self.desktops[desktop_id] = desktop
        await desktop.start()

    async def create(self, desktop_id: str, spec: base.DesktopSpec) -> None:
        self.log.append(("create", desktop_id))
        assert desktop_id not in self.desktops
        await self._boot(desktop_id, {}, spec.resolution)

    async def snapshot(self, desktop_id: str, snapshot_id: str) -> base.SnapshotInfo:
        self.log.append(("snapshot", snapshot_id))
        desktop = self._alive(desktop_id)
        assert desktop.server is not None
        await asyncio.sleep(0.01)
        assert not desktop.server.server_state.connections, "connections must be closed before a snapshot"
        self.snapshots[snapshot_id], self.sizes[snapshot_id] = copy.copy(desktop.files), desktop.size
        return base.SnapshotInfo(snapshot_id, self.snapshot_bytes, DIGEST, self.files_bytes, 0.25, 7)

    async def restore(self, desktop_id: str, snapshot_id: str) -> None:
        self.log.append(("restore", snapshot_id))
        if self.failing or snapshot_id in self.broken or snapshot_id not in self.snapshots:
            self.failing = max(0, self.failing - 1)
            await self.destroy(desktop_id)
            raise base.SnapshotBroken(f"{snapshot_id} does not restore")
        await self._boot(desktop_id, copy.copy(self.snapshots[snapshot_id]), self.sizes[snapshot_id])

    async def destroy(self, desktop_id: str) -> None:
        desktop = self.desktops.pop(desktop_id, None)
        if desktop is not None:
            self.log.append(("destroy", desktop_id))
            await desktop.stop()

    async def freeze(self, desktop_id: str) -> None:
        self.log.append(("freeze", desktop_id))
        self._alive(desktop_id).frozen = True

    async def thaw(self, desktop_id: str) -> None:
        self.log.append(("thaw", desktop_id))
        self._alive(desktop_id).frozen = False

    async def quarantine(self, snapshot_id: str) -> str | None:
        self.aside.add(snapshot_id)
        return f"/aside/{snapshot_id}"

    async def delete_snapshot(self, snapshot_id: str) -> None:
        self.snapshots.pop(snapshot_id, None)
        self.aside.discard(snapshot_id)

    def _alive(self, desktop_id: str) -> FakeDesktop:
        desktop = self.desktops.get(desktop_id)
        if desktop is None or desktop.server is None:
            raise base.DesktopGone(desktop_id)
        return desktop

    async def kill(self, desktop_id: str, cause: base.HealthCause) -> None:
        """The desktop dies of this cause."""
        self.desktops[desktop_id].cause = cause
        await self.desktops[desktop_id].stop()

    async def dial(self, desktop_id: str, port: base.DialPort) -> socket.socket:
        desktop = self._alive(desktop_id)
        if port not in ("control", 8080):
            raise ConnectionRefusedError(f"nothing listens on {port}")
        dialled = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        dialled.connect(str(desktop.path))
        return dialled

    async def health(self, desktop_id: str) -> base.DesktopHealth:
        desktop = self.desktops.get(desktop_id)
        if desktop is None:
            return base.DesktopHealth(False, base.HealthCause.UNKNOWN)
        if not desktop.session_alive:
            return base.DesktopHealth(False, base.HealthCause.SESSION_DEAD)
        return base.DesktopHealth(desktop.cause is base.HealthCause.OK, desktop.cause, memory_bytes=5)

    async def inventory(self) -> base.Inventory:
        return base.Inventory(tuple(self.desktops), tuple(self.snapshots))

    async def reap(self, keep: set[str]) -> Sequence[str]:
        removed = [name for name in (*self.desktops, *self.snapshots) if name not in keep]
        for name in removed:
            await self.destroy(name)
            await self.delete_snapshot(name)
        return removed
