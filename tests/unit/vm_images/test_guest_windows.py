"""When the window manager counts as working."""

from typing import Any

import pytest
from dart_guest import windows


class FakeWindow:
    """A window that the fake manager may put on its list some polls after it was mapped."""

    id = 77

    def __init__(self, server: "FakeServer") -> None:
        self.server = server

    def set_wm_name(self, name: str) -> None:
        assert name

    def map(self) -> None:
        self.server.mapped = True

    def destroy(self) -> None:
        self.server.mapped = False


class FakeServer:
    """What `windows` uses of an XInput."""

    def __init__(self, announced: bool, manages_after: int) -> None:
        self.announced = announced
        self.manages_after = manages_after
        self.polls = 0
        self.mapped = False
        self.made = 0
        self.root = self
        self.screen = self
        self.root_depth = 24

    def create_window(self, *_: Any) -> FakeWindow:
        self.made += 1
        return FakeWindow(self)


@pytest.mark.parametrize(
    ("announced", "manages_after", "works", "made"),
    [(False, 0, False, 0), (True, 0, True, 1), (True, 5, True, 1), (True, 10_000, False, 1)],
    ids=["not announced", "at once", "after a while", "never managed"],
)
def test_a_window_manager_works_when_it_takes_a_window(
    monkeypatch: pytest.MonkeyPatch, announced: bool, manages_after: int, works: bool, made: int
) -> None:
    server = FakeServer(announced, manages_after)

    def values(x: FakeServer, window: object, name: str) -> list[int]:
        if name == "_NET_SUPPORTING_WM_CHECK":
            return [1] if x.announced else []
        x.polls += 1
        return [FakeWindow.id] if x.mapped and x.polls > x.manages_after else []

    monkeypatch.setattr(windows, "values", values)
    assert windows.window_manager_works(server, lambda _: None) is works  # type: ignore[arg-type]
    assert server.made == made
    assert not server.mapped
