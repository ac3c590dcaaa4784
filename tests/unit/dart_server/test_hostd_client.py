"""What a farm asks of the root helper that it starts. No helper is started here."""

from __future__ import annotations

import json
import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from dart_server.hostd import installation
from dart_server.providers.base import CapabilityMissing
from dart_server.providers.factory import create_provider
from dart_server.providers.runc import hostd_client
from dart_server.settings import FarmSettings


class Spawned(Exception):
    """A helper would be started by `command`."""

    def __init__(self, command: list[str]) -> None:
        super().__init__(command)
        self.command = command


def settings(place: Path) -> FarmSettings:
    return FarmSettings(provider="runc", home=place, runtime_dir=place, snapshot_dir=place, desktops_without_farm_s=33)


async def test_root_starts_a_helper_that_outlives_the_farm_as_the_setting_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spawn(_paths: Any, command: list[str], _stdin: int) -> Any:
        raise Spawned(command)

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(installation, "install", lambda: None)
    monkeypatch.setattr(installation, "command", lambda: ["helper"])
    monkeypatch.setattr(hostd_client, "_spawn", spawn)
    with pytest.raises(Spawned) as started:
        await create_provider(settings(tmp_path)).start()
    command = started.value.command
    assert command[command.index("--idle-timeout-s") + 1] == "33.0"


async def test_an_ordinary_user_asks_the_starter_for_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def spawn(_paths: Any, _command: list[str], stdin: int) -> Any:
        theirs = socket.socket(fileno=os.dup(stdin))

        def answer() -> None:
            with theirs:
                asked.append(json.loads(theirs.recv(4096)))
                theirs.sendall(b'{"error": "not today"}\n')

        threading.Thread(target=answer).start()
        return None, 0

    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    monkeypatch.setattr(hostd_client, "starter_command", lambda: ["starter"])
    monkeypatch.setattr(hostd_client, "_spawn", spawn)
    with pytest.raises(CapabilityMissing, match="not today"):
        await create_provider(settings(tmp_path)).start()
    assert asked[0]["idle_timeout_s"] == 33
