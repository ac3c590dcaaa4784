"""A guest agent without an X server: everything real but the desktop and the walker's answers."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp.test_utils import TestClient, TestServer
from dart_guest import events
from dart_guest.__main__ import PACKAGE_DIR, make_application
from dart_guest.agent import Agent
from dart_guest.desktop import Offer, StepResult
from dart_guest.xinput import SessionDown


class FakeDesktop:
    """Answers steps with a red 2x1 frame and remembers them; `down` makes it a dead session."""

    def __init__(self) -> None:
        self.performed: list[events.StepRequest] = []
        self.down = False
        self.released = 0
        self.before_step: Callable[[], None] = lambda: None
        self.offers: list[bytes] = []
        """What the next steps offer before they answer."""

    def probe(self) -> tuple[int, int]:
        if self.down:
            raise SessionDown("the X server does not answer")
        return (2, 1)

    def size(self) -> tuple[int, int]:
        return self.probe()

    def held(self) -> list[str]:
        return ["shift"]

    def step(self, request: events.StepRequest, offer: Offer | None = None) -> StepResult:
        self.probe()
        self.before_step()
        self.performed.append(request)
        payload = bytes([255, 0, 0] * 2) if request.frame.encoding == "raw" else b""
        early = False
        if offer is not None and self.offers:
            offered = self.offers.pop(0)
            offer(offered)
            early = offered == payload
        return StepResult(2, 1, request.frame.encoding, False, 0.0, 0.1, 0.2, 0.3, (1, 0), payload, early)

    def release_shared_memory(self) -> None:
        self.released += 1

    def disconnect(self) -> None:
        self.down = True


class Bench:
    """A running agent application and a client for it."""

    def __init__(self, agent: Agent, client: TestClient[Any, Any]) -> None:
        self.agent = agent
        self.client = client
        self.desktop: FakeDesktop = agent.desktop  # type: ignore[assignment]

    async def post(self, path: str, body: object) -> tuple[int, dict[str, Any]]:
        """POST JSON, read JSON."""
        async with self.client.post(path, json=body) as response:
            return response.status, await response.json()

    async def get(self, path: str) -> tuple[int, dict[str, Any]]:
        """GET, read JSON."""
        async with self.client.get(path) as response:
            return response.status, await response.json()


@asynccontextmanager
async def running_agent() -> AsyncIterator[Bench]:
    """An unmanaged agent on a loopback port."""
    agent = Agent(":none", PACKAGE_DIR, drop_privileges=False, managed=False)
    agent.desktop = FakeDesktop()  # type: ignore[assignment]
    async with TestClient(TestServer(make_application(agent))) as client:
        yield Bench(agent, client)
    await agent.walker.stop()
    agent.steps.shutdown()


def unpack(message: bytes) -> tuple[dict[str, Any], bytes]:
    """Header and payload of a binary answer."""
    length = int.from_bytes(message[:4], "big")
    header: dict[str, Any] = json.loads(message[4 : 4 + length])
    payload = message[4 + length :]
    assert header["nbytes"] == len(payload)
    return header, payload


def walker_script(tmp_path: Path, program: str) -> str:
    """A package directory whose `dart_guest.a11y_walk` is this program."""
    package = tmp_path / "fake" / "dart_guest"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("", encoding="utf-8")
    (package / "a11y_walk.py").write_text(program, encoding="utf-8")
    return str(tmp_path / "fake")
