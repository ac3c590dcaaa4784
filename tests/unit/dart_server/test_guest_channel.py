"""The farm's end of the guest's stepping channel, against a scripted agent on a socket: drafts ahead of frames."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from farm_fake import FakeDesktop

from dart_server.guest.channel import frame_header
from dart_server.guest.client import GuestChannel, GuestClient

STEP = json.dumps({"seq": 7, "frame": {"encoding": "raw"}})


@pytest.fixture
async def desktop(tmp_path: Path) -> AsyncIterator[FakeDesktop]:
    made = FakeDesktop(tmp_path / "guest", {}, (2, 1))
    await made.start()
    yield made
    await made.stop()


async def dialled(desktop: FakeDesktop) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, str(desktop.path))
    return connection


@pytest.mark.parametrize("early", [True, False])
async def test_drafts_come_only_where_they_were_asked_for(desktop: FakeDesktop, early: bool) -> None:
    desktop.drafts = True
    guest = GuestClient(lambda port: dialled(desktop))
    channel: GuestChannel = guest.channel(early=early)
    drafts: list[bytes] = []

    async def keep(draft: bytearray) -> None:
        drafts.append(bytes(draft))

    frames = [await channel.step(STEP, 5.0, keep) for _ in range(2)]
    assert [frame_header(frame)["nbytes"] for frame in frames] == [6, 6]
    assert [(frame_header(draft)["seq"], draft[-5:]) for draft in drafts] == [(7, b"ahead")] * (2 if early else 0)
    await guest.hang_up()


async def test_a_draft_that_nobody_takes_is_dropped(desktop: FakeDesktop) -> None:
    desktop.drafts = True
    guest = GuestClient(lambda port: dialled(desktop))
    frame = await guest.channel(early=True).step(STEP, 5.0)
    assert frame_header(frame)["settled"] is True
    await guest.hang_up()
