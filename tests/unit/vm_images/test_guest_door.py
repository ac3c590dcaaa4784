"""Who may talk to the agent, and what init knows."""

import asyncio
import os
import signal
import socket
from pathlib import Path

import pytest
from aiohttp import web
from dart_guest import init, look, session
from dart_guest.__main__ import accept_forever, make_application, open_listener
from guest_bench import running_agent


async def ask(path: Path) -> bytes:
    """One request over a Unix socket; empty when the door stays shut."""
    reader, writer = await asyncio.open_unix_connection(str(path))
    try:
        writer.write(b"GET /platform HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize("allow_local", [False, True])
async def test_a_peer_of_our_own_pid_namespace_is_shut_out(tmp_path: Path, allow_local: bool) -> None:
    async with running_agent() as bench:
        runner = web.AppRunner(make_application(bench.agent))
        await runner.setup()
        assert runner.server is not None
        with open_listener(f"unix:{tmp_path}/s") as listener:
            door = asyncio.create_task(accept_forever(listener, runner.server, bench.agent, allow_local))
            answer = await ask(tmp_path / "s")
            door.cancel()
            await asyncio.gather(door, return_exceptions=True)
        await runner.cleanup()
    assert (b"200 OK" in answer) is allow_local


def test_listen_address_kinds() -> None:
    with open_listener("tcp:127.0.0.1:0") as listener:
        assert listener.family == socket.AF_INET
    with pytest.raises(ValueError, match="abstract:NAME"):
        open_listener("pipe:x")


@pytest.mark.parametrize("text", ["", "640", "640x", "axb", "640x-4", "100x100", "9000x9000"])
def test_bad_resolutions(text: str) -> None:
    with pytest.raises(session.BadSetting, match="DART_RESOLUTION"):
        session.parse_resolution(text)


def test_good_settings() -> None:
    assert session.parse_resolution("640x400") == (640, 400)
    assert session.parse_font_size("14") == 14
    with pytest.raises(session.BadSetting, match="DART_FONT_SIZE"):
        session.parse_font_size("0")


def test_status_survives_the_disk_and_a_broken_one_is_dead(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    session.write_status(session.SessionStatus({"x": 5, "wm": 6}, ("wm",), 2), path)
    status = session.read_status(path)
    assert (status.alive("x"), status.alive("wm"), status.alive("bus"), status.agent_starts) == (True, False, False, 2)
    path.write_text("{", encoding="utf-8")
    assert not session.read_status(path).alive("x")


def test_only_the_agent_is_due_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(init.time, "monotonic", lambda: 100.0)
    monkeypatch.setattr(init.Init, "publish", lambda self: None)
    system = init.Init((640, 400))
    system.pids = {"x": 7, "agent": 8}
    system.agent_starts = 2
    system.note_death(9)
    assert (system.dead, system.agent_due_s) == ([], None)
    system.note_death(7)
    system.note_death(8)
    assert (system.dead, system.agent_due_s) == (["x"], 100.2)
    system.agent_starts = 99
    system.note_death(8)
    assert system.agent_due_s == 103.0


def test_waker_comes_back_for_a_signal_and_for_nothing() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)}
    waker = init.Waker()
    try:
        waker.wait(0.0)
        assert not waker.stopped
        os.kill(os.getpid(), signal.SIGTERM)
        waker.wait(5.0)
        assert waker.stopped
    finally:
        os.close(signal.set_wakeup_fd(-1))
        os.close(waker.reader)
        for number, handler in before.items():
            signal.signal(number, handler)


def test_init_refuses_to_run_as_any_other_process(capsys: pytest.CaptureFixture[str]) -> None:
    assert init.main() == 2
    assert "process 1" in capsys.readouterr().err


@pytest.mark.parametrize(("resolution", "font"), [((640, 400), 14), ((1920, 1080), 10), ((320, 240), 24)])
def test_first_windows_fit_the_screen(resolution: tuple[int, int], font: int) -> None:
    sizes = look.measures(font, resolution)
    assert sizes["width"] < resolution[0]
    assert sizes["height"] < resolution[1]
    assert sizes["columns"] <= 80
    if font < 20:
        assert sizes["columns"] * font * look.CELL_PX_PER_POINT[0] <= resolution[0]
        assert sizes["rows"] * font * look.CELL_PX_PER_POINT[1] <= resolution[1]


def test_the_look_is_written_once_per_font(tmp_path: Path) -> None:
    look.apply(14, (640, 400), tmp_path)
    settings = tmp_path / "etc/gtk-3.0/settings.ini"
    assert "DejaVu Sans 14" in settings.read_text(encoding="utf-8")
    first = settings.stat().st_ino
    look.apply(14, (640, 400), tmp_path)
    assert settings.stat().st_ino == first
    look.apply(18, (640, 400), tmp_path)
    assert "DejaVu Sans 18" in settings.read_text(encoding="utf-8")
    assert all("{" not in text for name, text in look.render(14, (640, 400)).items() if not name.endswith("rc.xml"))
