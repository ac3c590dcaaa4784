"""A farm whose desktop answers what no agent answers: the desktop is written off, the policy owns it, and its neighbour goes on."""

from __future__ import annotations

import asyncio
import io
import json
import struct
from typing import Any

import httpx
import pytest
from farm_fake import FakeDesktop, FakeProvider, frame
from farm_harness import Api, ManualClock
from PIL import Image
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dart_server import wire
from dart_server.dashboard.replay import Replay

SHAPE = {"resolution": [320, 240]}
DEEP = b"[" * 200_000
ELEMENT = {"role": "push button", "name": "OK", "text": "", "states": [], "x": 1, "y": 2, "w": 3, "h": 4}
ENDED = {"returncode": 0, "stdout": "", "stderr": "", "timed_out": False}


def plant(desktop: FakeDesktop, path: str, content: bytes, status: int = 200) -> None:
    """From now on the desktop answers this path so."""
    assert desktop.server is not None
    application: Any = desktop.server.config.loaded_app
    while not hasattr(application, "router"):
        application = application.app

    async def answer(_request: Request) -> Response:
        return Response(content, status_code=status, media_type="application/json")

    application.router.routes.insert(0, Route(path, answer, methods=["GET", "POST"]))


def tree(**fields: Any) -> bytes:
    return json.dumps({"elements": [{**ELEMENT, **fields}]}).encode()


ANSWERS: dict[str, tuple[str, str, bytes]] = {
    "a deep tree": ("GET a11y", "/v1/a11y", DEEP),
    "many values": ("GET a11y", "/v1/a11y", b'{"elements": [' + b"0," * 700_000 + b"0]}"),
    "no list": ("GET a11y", "/v1/a11y", b'{"elements": {}}'),
    "no object": ("GET a11y", "/v1/a11y", b'{"elements": [1]}'),
    "a huge number": ("GET a11y", "/v1/a11y", tree(x=10**400)),
    "a text for a number": ("GET a11y", "/v1/a11y", tree(x="1")),
    "no program": ("POST execute", "/v1/exec", b"[]"),
    "a deep program": ("POST execute", "/v1/exec", DEEP),
    "a program without output": ("POST execute", "/v1/exec", b'{"returncode": 0}'),
    "a program's number": ("POST execute", "/v1/exec", json.dumps({**ENDED, "returncode": 10**300}).encode()),
    "a clock of nobody": ("GET clock", "/v1/clock", b'{"time_s": 1e300, "declared": true}'),
    "a deep clock": ("GET clock", "/v1/clock", b"[" * 4_000),
    "a long clock": ("GET clock", "/v1/clock", b" " * 5_000),
    "a small frame": ("POST step", "/v1/step", frame({"seq": 0, "frame": {"encoding": "raw"}}, (16, 16))),
    "another encoding": ("POST step", "/v1/step", frame({"seq": 0}, (320, 240))),
    "another step": ("POST step", "/v1/step", frame({"seq": 9, "frame": {"encoding": "raw"}}, (320, 240))),
    "no frame": ("POST step", "/v1/step", struct.pack(">I", 2**31) + b"{}"),
}


async def call(api: Api, lease: dict[str, Any], what: str) -> httpx.Response:
    method, route = what.split()
    body = {"step": {"events": []}, "execute": {"argv": ["true"]}}.get(route)
    return await api.call(method, f"/v1/leases/{lease['lease_id']}/{route}", lease=lease, json=body)


@pytest.mark.parametrize(("what", "path", "content"), ANSWERS.values(), ids=ANSWERS)
async def test_a_malformed_answer_is_a_dead_desktop_and_the_policys_fault(
    api: Api, provider: FakeProvider, what: str, path: str, content: bytes
) -> None:
    lease, neighbour = await api.create_lease(shape=SHAPE), await api.create_lease(shape=SHAPE)
    plant(provider.desktops[lease["desktop_id"]], path, content)
    reply = await call(api, lease, what)
    assert reply.status_code == 502, reply.text
    error = wire.ErrorBody.model_validate_json(reply.content)
    assert error.error == "desktop_failed"
    assert error.desktop is not None
    assert (error.desktop.cause, error.desktop.fault_owner) == ("malformed_answer", "policy")
    stepped = await call(api, neighbour, "POST step")
    assert stepped.status_code == 200, stepped.text
    await api.reset(lease)
    assert (await call(api, lease, "POST step")).status_code == 200


async def test_texts_with_halves_of_pairs_reach_the_client(api: Api, provider: FakeProvider) -> None:
    lease = await api.create_lease(shape=SHAPE)
    plant(provider.desktops[lease["desktop_id"]], "/v1/a11y", tree(name="\ud800"))
    assert (await call(api, lease, "GET a11y")).json()[0]["name"] == "\ufffd"


async def test_an_error_that_is_no_json_leaves_the_desktop_alone(api: Api, provider: FakeProvider) -> None:
    lease = await api.create_lease(shape=SHAPE)
    plant(provider.desktops[lease["desktop_id"]], "/v1/clock", DEEP[:2_000], 404)
    reply = await call(api, lease, "GET clock")
    assert (reply.status_code, reply.json()["error"]) == (404, "guest_error")


async def test_what_is_passed_through_is_marked(api: Api, provider: FakeProvider) -> None:
    lease = await api.create_lease(shape=SHAPE)
    forged = {"error": "lease_expired", "detail": "the lease has ended", "request_id": "r"}
    plant(provider.desktops[lease["desktop_id"]], "/setup/launch", json.dumps(forged).encode(), 410)
    path = f"/v1/leases/{lease['lease_id']}/guest/setup/launch"
    assert (await api.call("POST", path, lease=lease, content=b"")).headers[wire.FROM_GUEST_HEADER] == "1"
    ours = await api.call("POST", path, lease={**lease, "fencing_token": 99}, content=b"")
    assert wire.FROM_GUEST_HEADER not in ours.headers


def png_frame(file: bytes, size: tuple[int, int]) -> bytes:
    told = {"seq": 0, "width": size[0], "height": size[1], "encoding": "png", "nbytes": len(file), "cursor": [0, 0]}
    head = json.dumps({**told, "settled": True, "settle_ms": 0.0, "grab_ms": 0.0}).encode()
    return struct.pack(">I", len(head)) + head + file


async def test_a_broken_picture_costs_no_neighbour_its_replay(api: Api, clock: ManualClock) -> None:
    await api.create_lease(shape=SHAPE)
    lease = api.farm.leases.active[0]
    replay = Replay(clock)
    maker = asyncio.ensure_future(replay.make_thumbnails())
    good = io.BytesIO()
    Image.new("RGB", (320, 240)).save(good, "png")
    request = wire.StepRequest(events=[wire.MoveEvent(x=1, y=1)], frame=wire.FrameSpec(encoding="png"))
    for name, file in {"bad": b"%!PS-Adobe-3.0\nshowpage\n", "worse": b"", "good": good.getvalue()}.items():
        replay.record(lease, name, 1, request, png_frame(file, (320, 240)), 0.01)
    replay.record(lease, "none", 1, request, struct.pack(">I", 200_000) + DEEP, 0.01)
    async with asyncio.timeout(10):
        while replay._arrived.is_set():
            await clock.advance(1.0)
    assert not maker.done()
    assert replay.steps("good")[0].picture is not None
    assert all(replay.steps(name)[0].picture is None for name in ("bad", "worse", "none"))
    maker.cancel()
