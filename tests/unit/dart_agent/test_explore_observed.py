"""What a leased desktop shows: picture, tree and active window of one moment, also while the screen changes."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dart_agent.explore.desktops.farm import LOOKS, FarmDesktop, RootSnapshot
from dart_agent.explore.screens import ScreenView
from dart_server.wire import A11yElement


class ChangingLease:
    """A desktop whose screen changes from one call to the next: each call sees the next of the given moments, and at last the final one.

    A moment is the name of the window, which tree, picture and list of windows show.
    """

    def __init__(self, *moments: str) -> None:
        self.moments = list(moments)
        self.pictures = 0

    def now(self) -> str:
        return self.moments.pop(0) if len(self.moments) > 1 else self.moments[0]

    async def step(self, events: object, settle: object) -> SimpleNamespace:
        self.pictures += 1
        return SimpleNamespace(image=np.full((4, 4, 3), sum(self.now().encode()) % 256, np.uint8))

    async def a11y(self) -> list[A11yElement]:
        return [A11yElement(role="frame", name=self.now(), states=[], x=0, y=0, w=4, h=4)]

    async def guest(self, method: str, path: str) -> SimpleNamespace:
        windows = {"windows": [{"active": True, "class": "App", "title": self.now()}]}
        return SimpleNamespace(content=json.dumps(windows).encode())


async def observe(lease: Any) -> ScreenView:
    return await FarmDesktop(SimpleNamespace(), lease, "app", RootSnapshot()).observe()  # type: ignore[arg-type]


def shows(view: ScreenView, name: str) -> bool:
    return bool((view.elements[0].name, view.window) == (name, name) and (view.image == sum(name.encode()) % 256).all())


async def test_a_quiet_screen_is_looked_at_once_after_it_settled() -> None:
    lease = ChangingLease("Main")
    view = await observe(lease)
    assert shows(view, "Main")
    assert (view.application, lease.pictures) == ("App", 2), "once to settle, and once to look"


@pytest.mark.parametrize("before", range(1, 7))
async def test_a_dialog_that_opens_between_picture_tree_and_window_is_seen_as_one(before: int) -> None:
    lease = ChangingLease(*["Main"] * before, "Dialog")
    view = await observe(lease)
    name = "Main" if before == 6 else "Dialog"
    assert shows(view, name), "picture, tree and window are of different moments"
    assert lease.pictures <= 1 + LOOKS


async def test_a_screen_that_goes_on_changing_is_taken_as_the_last_look_found_it() -> None:
    lease = ChangingLease(*(f"0:{second:02}" for second in range(60)))
    view = await observe(lease)
    assert lease.pictures == 1 + LOOKS
    assert view.window == f"0:{60 - len(lease.moments) - 1:02}", "what was read last"
