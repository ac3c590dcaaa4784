"""OSWorld's paths in OSWorld's forms: which there are, wallpaper, recording, download, uploads that play tricks."""

import asyncio
import io
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import FormData
from dart_guest import files
from dart_guest.__main__ import OSWORLD_PARTS, make_application
from dart_guest.xinput import SessionDown
from guest_bench import Bench, running_agent

PATHS = """/screenshot /accessibility /terminal /execute /setup/execute /execute_with_verification /setup/execute_with_verification
/setup/launch /screen_size /window_size /desktop_path /wallpaper /list_directory /file /platform /cursor_position /setup/upload
/setup/change_wallpaper /setup/download_file /setup/open_file /setup/activate_window /setup/close_window /start_recording
/end_recording /run_python /run_bash_script"""


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with running_agent() as made:
        yield made


async def test_osworlds_door_has_its_26_paths_and_no_other(bench: Bench) -> None:
    served = {
        route.resource.canonical
        for route in make_application(bench.agent, OSWORLD_PARTS).router.routes()
        if route.resource
    }
    assert len(PATHS.split()) == 26
    assert served == set(PATHS.split())


class FakeWindowManager:
    """`wmctrl` of a folder takes window 0x2a; this manager makes it the active one at the third look, where it gives it the focus."""

    def __init__(self, folder: Path, gives_focus: bool) -> None:
        self.asked = folder / "asked"
        self.looks = 0
        self.gives_focus = gives_focus
        program = folder / "wmctrl"
        program.write_text(f'#!/bin/sh\necho "$@" >>{self.asked}\necho "Using window: 0x0000002a" >&2\n')
        program.chmod(0o755)

    def active(self, _connection: object) -> list[int]:
        self.looks += 1
        return [0x2A] if self.gives_focus and self.looks >= 3 else [0x17]


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ({"window_name": "note"}, "-v -a note"),
        ({"window_name": "note", "strict": True}, "-v -F -a note"),
        ({"window_name": "app.App", "strict": True, "by_class": True}, "-v -F -x -a app.App"),
    ],
)
async def test_a_window_is_active_when_its_activation_is_answered(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: dict[str, object], arguments: str
) -> None:
    manager = FakeWindowManager(tmp_path, gives_focus=True)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("dart_guest.windows.active", manager.active)
    monkeypatch.setattr(bench.desktop, "connection", lambda: None, raising=False)
    async with bench.client.post("/setup/activate_window", json=body) as response:
        assert (response.status, await response.text()) == (200, "Window activated successfully")
    assert manager.asked.read_text() == f"{arguments}\n"
    assert manager.looks == 3


async def test_a_window_that_gets_no_focus_is_not_awaited_for_ever(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = FakeWindowManager(tmp_path, gives_focus=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("dart_guest.windows.active", manager.active)
    monkeypatch.setattr("dart_guest.osworld_run.ACTIVE_LIMIT_S", 0.1)
    monkeypatch.setattr(bench.desktop, "connection", lambda: None, raising=False)
    async with bench.client.post("/setup/activate_window", json={"window_name": "note"}) as response:
        assert response.status == 200
    looks = manager.looks
    assert looks > 1
    async with bench.client.post("/setup/close_window", json={"window_name": "note"}) as response:
        assert response.status == 200
    assert manager.looks == looks


async def test_wallpapers_need_a_picture(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # No desktop environment of this host is asked.
    monkeypatch.setenv("PATH", str(tmp_path))
    async with bench.client.post("/wallpaper") as response:
        assert response.status == 404
    for body, status, said in (
        ({}, 400, "Path not supplied!"),
        ({"path": f"{tmp_path}/none"}, 404, f"File not found: {tmp_path}/none"),
    ):
        async with bench.client.post("/setup/change_wallpaper", json=body) as response:
            assert (response.status, await response.text()) == (status, said)
    (tmp_path / "text.png").write_text("no picture")
    async with bench.client.post("/setup/change_wallpaper", json={"path": f"{tmp_path}/text.png"}) as response:
        assert response.status == 500
    bench.agent.wallpaper = tmp_path / "text.png"
    async with bench.client.post("/wallpaper") as response:
        assert (response.status, await response.read()) == (200, b"no picture")


async def test_recordings_are_started_once_and_fetched_once(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dart_guest.recorder.Desktop", lambda _display: bench.desktop)
    bench.agent.recorder.path = tmp_path / "film.mp4"
    assert await bench.post("/end_recording", None) == (
        400,
        {"status": "error", "message": "No recording in progress to stop."},
    )
    assert await bench.post("/start_recording", None) == (200, {"status": "success", "message": "Started recording."})
    assert await bench.post("/start_recording", None) == (
        400,
        {"status": "error", "message": "Recording is already in progress."},
    )
    async with bench.client.post("/end_recording") as response:
        film = await response.read()
        assert (response.status, response.content_type) == (200, "video/mp4")
        assert response.headers["Content-Disposition"] == 'attachment; filename="film.mp4"'
    assert film[4:8] == b"ftyp"
    assert not bench.agent.recorder.open


async def test_a_dead_session_cannot_be_recorded(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dart_guest.recorder.Desktop", lambda _display: bench.desktop)
    bench.agent.recorder.path = tmp_path / "film.mp4"
    bench.desktop.down = True
    with pytest.raises(SessionDown):
        bench.agent.recorder.start()
    assert (await bench.post("/start_recording", None))[0] == 500
    assert not bench.agent.recorder.open


async def test_downloads_are_made_from_inside(bench: Bench, tmp_path: Path) -> None:
    asked: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).split()[1])
        body = b"HTTP/1.0 200 OK\r\nContent-Length: 4\r\n\r\nDATA" if asked[-1] == b"/f" else b"HTTP/1.0 404 No\r\n\r\n"
        writer.write(body)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        body = {"url": f"{url}/f", "path": f"{tmp_path}/new/f"}
        async with bench.client.post("/setup/download_file", json=body) as response:
            assert (response.status, await response.text()) == (200, "File downloaded successfully")
        async with bench.client.post("/setup/download_file", json=body | {"url": f"{url}/no"}) as response:
            said = await response.text()
            assert response.status == 500
    assert said.startswith(f"Failed to download {url}/no. No retries left.")
    assert "404" in said
    assert asked == [b"/f", b"/no", b"/no", b"/no"]
    assert (tmp_path / "new" / "f").read_bytes() == b"DATA"


async def test_a_link_in_the_place_of_an_upload_is_replaced_and_not_followed(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("kept")
    (tmp_path / "upload").symlink_to(tmp_path / "secret")
    form = {"file_path": str(tmp_path / "upload"), "file_data": io.BytesIO(b"NEW")}
    async with bench.client.post("/setup/upload", data=form) as response:
        assert response.status == 200
    assert (tmp_path / "secret").read_text() == "kept"
    assert (tmp_path / "upload").read_text() == "NEW"
    assert not (tmp_path / "upload").is_symlink()


async def test_what_is_too_large_is_refused_and_leaves_nothing(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "FILE_LIMIT", 10)
    form = {"file_path": str(tmp_path / "f"), "file_data": io.BytesIO(b"x" * 11)}
    async with bench.client.post("/setup/upload", data=form) as response:
        assert response.status == 413
    async with bench.client.put("/v1/files", params={"path": str(tmp_path / "f")}, data=b"x" * 11) as response:
        assert response.status == 413
    assert os.listdir(tmp_path) == []


async def test_an_upload_without_a_name_is_refused(bench: Bench) -> None:
    form = FormData()
    form.add_field("file_data", io.BytesIO(b"x"))
    async with bench.client.post("/setup/upload", data=form) as response:
        assert response.status == 400


async def test_a_relative_path_is_below_the_home_folder(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dart_guest.session.HOME", str(tmp_path))
    form = {"file_path": "Downloads/setup.sh", "file_data": io.BytesIO(b"echo")}
    async with bench.client.post("/setup/upload", data=form) as response:
        assert response.status == 200
    assert (tmp_path / "Downloads" / "setup.sh").read_text() == "echo"
    async with bench.client.post("/file", data={"file_path": "Downloads/setup.sh"}) as response:
        assert await response.text() == "echo"
