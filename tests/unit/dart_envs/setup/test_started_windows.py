"""A setup ends when the programs that it launched have their windows, and not at a splash screen; an activated window is the active one."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dart_envs.clock import SYSTEM_CLOCK
from dart_envs.setup import run_steps, windows
from dart_envs.setup.runner import started_windows
from dart_envs.tasks import SetupStep
from dart_envs.testing.fake_desktop import FakeDesktop
from dart_server.wire import ExecReply

SCREEN = (1280, 800)


def step(type: str, **parameters: Any) -> SetupStep:
    return SetupStep(type=type, parameters=parameters)


@pytest.mark.parametrize(
    ("steps", "counted"),
    [
        ([step("launch", command=["gimp"])], [0]),
        ([step("launch", command="/usr/bin/google-chrome --incognito")], [0]),
        ([step("launch", command=["socat", "tcp-listen:9222", "tcp:localhost:1337"])], []),
        ([step("launch", command=["libreoffice", "--headless", "--convert-to", "pdf", "a.odt"])], []),
        ([step("launch", command=["vlc"]), step("sleep", seconds=1), step("launch", command=["gedit", "a"])], [0, 2]),
        ([step("launch", command=["gimp"]), step("wait_window", window_name="GNU Image")], []),
        ([step("launch", command=["google-chrome"]), step("chrome_open_tabs", urls_to_open=["about:blank"])], []),
        ([step("write_file", path="/a", content="x")], []),
    ],
)
def test_programs_with_windows_that_no_later_step_waits_for_are_counted(
    steps: list[SetupStep], counted: list[int]
) -> None:
    assert started_windows(steps, SCREEN) == counted


class FakeScreen:
    """Programs `wmctrl` and `xprop` that tell what the file `windows` holds: a line of id and type each."""

    def __init__(self, folder: Path) -> None:
        self.listed = folder / "windows"
        for name, script in {
            "wmctrl": f'while read -r id type; do echo "$id 0 host title"; done <{self.listed}\n',
            "xprop": f'while read -r id type; do [ "$id" = "$2" ] && echo "_NET_WM_WINDOW_TYPE(ATOM) = $type"; done <{self.listed}\n',
        }.items():
            (folder / name).write_text(f"#!/bin/sh\n{script}")
            (folder / name).chmod(0o755)
        self.environment = {"PATH": f"{folder}:{os.environ['PATH']}"}

    def show(self, *shown: str) -> None:
        new = self.listed.with_suffix(".new")
        new.write_text("".join(f"{line}\n" for line in shown))
        new.rename(self.listed)


class FakeShellDesktop(FakeDesktop):
    """Runs shell scripts on this machine, with the programs of a `FakeScreen`."""

    def __init__(self, screen: FakeScreen) -> None:
        super().__init__(SCREEN)
        self.screen = screen

    async def exec(self, argv: list[str], **how: Any) -> ExecReply:
        if argv[0] != "/bin/sh":
            return ExecReply(returncode=0, stdout="", stderr="")
        process = await asyncio.create_subprocess_exec(*argv, stdout=subprocess.PIPE, env=self.screen.environment)
        out, _ = await process.communicate()
        return ExecReply(returncode=process.returncode, stdout=out.decode(), stderr="")


PANEL, SPLASH, MAIN = "0x1 _NET_WM_WINDOW_TYPE_DOCK", "0x2 _NET_WM_WINDOW_TYPE_SPLASH", "0x3 _NET_WM_WINDOW_TYPE_NORMAL"


async def test_a_setup_waits_behind_the_splash_screen(tmp_path: Path) -> None:
    screen = FakeScreen(tmp_path)
    screen.show(PANEL)
    desktop = FakeShellDesktop(screen)
    waiting = asyncio.create_task(run_steps(desktop, [step("launch", command=["gimp"])], clock=SYSTEM_CLOCK))
    for shown in ((PANEL,), (PANEL, SPLASH), (PANEL, SPLASH, MAIN)):
        screen.show(*shown)
        done, _ = await asyncio.wait({waiting}, timeout=0.5)
        assert not done, shown
    screen.show(PANEL, MAIN)
    assert await asyncio.wait_for(waiting, 10.0) == ()


async def test_a_modal_dialog_beside_the_splash_screen_is_a_window(tmp_path: Path) -> None:
    """As LibreOffice Calc shows them while it asks how a CSV file is to be read: the splash screen goes after the answer."""
    screen = FakeScreen(tmp_path)
    screen.show(PANEL, SPLASH)
    started = asyncio.create_task(windows.wait_started(FakeShellDesktop(screen), ["0x1"], 1, 60.0))
    done, _ = await asyncio.wait({started}, timeout=0.5)
    assert not done
    screen.show(PANEL, SPLASH, "0x3 _NET_WM_WINDOW_TYPE_DIALOG _NET_WM_STATE_MODAL, _NET_WM_STATE_FOCUSED")
    assert await asyncio.wait_for(started, 10.0)


async def test_a_program_that_opens_no_window_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    screen = FakeScreen(tmp_path)
    screen.show(PANEL)
    monkeypatch.setattr("dart_envs.setup.runner.WINDOW_TIMEOUT_S", 0.3)
    with caplog.at_level(logging.WARNING):
        await run_steps(FakeShellDesktop(screen), [step("launch", command=["gimp"])], task_id="gimp/x")
    assert "gimp/x started 1 programs, and not all opened a window" in caplog.text


async def test_an_activated_window_is_the_active_one_when_the_call_returns(tmp_path: Path) -> None:
    screen = FakeScreen(tmp_path)
    asked, polled = tmp_path / "asked", tmp_path / "polled"
    active = f"if [ $(wc -l <{polled}) -lt 3 ]; then echo 0x1c00003; else echo 0x2a00001; fi"
    for name, script in {
        "wmctrl": f'echo "$@" >>{asked}\n',
        "xprop": f'echo "$@" >>{polled}\necho "_NET_ACTIVE_WINDOW(WINDOW): window id # $({active})"\n',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}")
    window = windows.Window("0x02a00001", "app.App", "Note")
    await windows.activate(FakeShellDesktop(screen), window)
    assert asked.read_text() == "-i -a 0x02a00001\n"
    assert polled.read_text() == "-root _NET_ACTIVE_WINDOW\n" * 3


async def test_a_window_below_a_modal_dialog_is_not_awaited_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = FakeScreen(tmp_path)
    polled = tmp_path / "polled"
    (tmp_path / "wmctrl").write_text("#!/bin/sh\n")
    (tmp_path / "xprop").write_text(f"#!/bin/sh\necho >>{polled}\necho '_NET_ACTIVE_WINDOW:  not found.'\n")
    monkeypatch.setattr(windows, "MAX_ACTIVE_POLLS", 4)
    await windows.activate(FakeShellDesktop(screen), windows.Window("0x02a00001", "app.App", "Note"))
    assert polled.read_text() == "\n" * 4


async def test_nothing_is_awaited_in_an_image_without_wmctrl(tmp_path: Path) -> None:
    screen = FakeScreen(tmp_path)
    screen.environment = {"PATH": str(tmp_path / "empty")}
    desktop = FakeShellDesktop(screen)
    assert await windows.window_ids(desktop) == []
    assert await windows.wait_started(desktop, [], 1, 60.0)
