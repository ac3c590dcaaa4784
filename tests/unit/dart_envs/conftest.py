from __future__ import annotations

import pytest

from dart_envs.farm import live
from dart_envs.testing.fake_desktop import FakeDesktop
from dart_envs.testing.fake_farm import FakeFarm
from dart_server.wire import ExecReply


def _typed(desktop: FakeDesktop, _args: list[str], _stdin: str) -> ExecReply:
    return ExecReply(returncode=0, stdout=desktop.state.typed, stderr="")


@pytest.fixture(autouse=True)
def _no_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here opens a window on the screen of who runs the tests."""
    monkeypatch.setattr(live, "has_browser", lambda: False)


@pytest.fixture
def farm() -> FakeFarm:
    return FakeFarm(programs={"typed": _typed})
