"""The conformance suite of an image's desktop: every promise has a line, a broken one says how, the exit code follows."""

from __future__ import annotations

import json
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

import pytest

from dart_envs.errors import FarmError
from dart_envs.farm.base import GuestResponse
from dart_envs.testing import image_conformance
from dart_envs.testing.fake_desktop import FakeDesktop

SAID: dict[str, Any] = {
    "/platform": b"Linux",
    "/screenshot": image_conformance.PNG,
    "/accessibility": {"AT": "<desktop-frame/>"},
    "/terminal": {"output": None, "status": "success"},
    "/cursor_position": [1, 2],
    "/screen_size": {"width": 640, "height": 400},
    "/desktop_path": {"desktop_path": "/home/user/Desktop"},
    "/list_directory": {"directory_tree": {"type": "directory", "children": []}},
    "/execute": {"output": "here\n", "returncode": 0},
    "/run_python": {"output": "42\n"},
    "/run_bash_script": {"output": "42\n"},
}


class Guest(FakeDesktop):
    """A desktop with OSWorld's paths, `wrong` ones among them."""

    def __init__(self, wrong: dict[str, Any]) -> None:
        super().__init__((640, 400))
        self.said = SAID | wrong

    async def guest(self, _method: str, path: str, **_more: object) -> GuestResponse:
        said = self.said[path]
        return GuestResponse(200, said if isinstance(said, bytes) else json.dumps(said).encode(), "")


class Farm:
    """Leases one desktop."""

    def __init__(self, desktop: Guest) -> None:
        self.desktop = desktop

    async def lease(self, shape: Any, **_more: object) -> AbstractAsyncContextManager[Guest]:
        if shape.image == "nope":
            raise FarmError("there is no image 'nope'", hint="build it")
        return nullcontext(self.desktop)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the desktop's paths say wrongly; the farm is there."""
    wrong: dict[str, Any] = {}

    async def connect(_url: str | None) -> AbstractAsyncContextManager[Farm]:
        return nullcontext(Farm(Guest(wrong)))

    monkeypatch.setattr("dart_envs.testing.image_conformance.AsyncFarmClient.connect", connect)
    return wrong


def test_every_promise_has_a_line(served: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert image_conformance.main(["basic"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith("ok     ") for line in lines)
    assert {f"ok     OSWorld's {path}" for path in SAID} <= set(lines)
    assert "ok     frames have the screen size" in lines


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/platform", b"Windows"),
        ("/screen_size", {"width": 640, "height": 401}),
        ("/cursor_position", [640, 0]),
        ("/accessibility", b"<desktop-frame/>"),
        ("/execute", []),
        ("/desktop_path", {"desktop_path": None}),
    ],
)
def test_a_wrong_answer_is_told_and_fails(
    path: str, said: Any, served: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    served[path] = said
    assert image_conformance.main(["basic"]) == 1
    (failed,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("FAILED")]
    assert failed.startswith(f"FAILED OSWorld's {path}: answered 200 ")


def test_without_such_a_desktop_there_is_one_sentence(
    served: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert image_conformance.main(["nope"]) == 2
    assert capsys.readouterr().err == "error: there is no image 'nope'; build it\n"
