"""The scripts that run a command beside a server or a browser: its exit code, its environment, and an interruption that it can heed."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

DEPLOY = Path(__file__).resolve().parents[3] / "server" / "deploy"
SCRIPTS = ["postgres_server", "browser_host"]
GIVEN = {"postgres_server": "DART_TEST_POSTGRES_URL", "browser_host": "DART_BROWSER"}
INTERRUPTED = """
import os, pathlib, signal, time
place = pathlib.Path({place!r})
try:
    os.kill(os.getppid(), signal.SIGINT)
    time.sleep(60)
except KeyboardInterrupt:
    (place / "cleaned").write_text(str((place / "ended").exists()))
"""


@pytest.fixture
def script(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The module, with pretended programs."""
    monkeypatch.syspath_prepend(str(DEPLOY))
    module = importlib.import_module(request.param)

    @contextlib.contextmanager
    def cluster(_programs: object) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(directory=tmp_path, url="pretended")
        (tmp_path / "ended").touch()

    for name, pretended in {
        "private_cluster": cluster,
        "newest_programs": lambda: tmp_path,
        "ensure_browser": lambda: ("pretended", "driver"),
        "install_novnc": lambda *_: None,
    }.items():
        if hasattr(module, name):
            monkeypatch.setattr(module, name, pretended)
    monkeypatch.delenv(GIVEN[request.param], raising=False)
    return module


def run(script: ModuleType, monkeypatch: pytest.MonkeyPatch, program: str) -> int:
    monkeypatch.setattr(sys, "argv", [script.__name__, "--", sys.executable, "-c", program])
    code: int = script.main()
    return code


@pytest.fixture(autouse=True)
def same_signals() -> Iterator[None]:
    """What the scripts do with signals ends with the test."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("script", SCRIPTS, indirect=True)
def test_the_command_has_what_was_found_for_it_and_gives_its_exit_code(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = f"import os; raise SystemExit(7 if os.environ[{GIVEN[script.__name__]!r}] == 'pretended' else 1)"
    assert run(script, monkeypatch, program) == 7
    assert GIVEN[script.__name__] not in os.environ


@pytest.mark.parametrize("script", SCRIPTS, indirect=True)
def test_an_interrupted_command_cleans_up_first(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert run(script, monkeypatch, INTERRUPTED.format(place=str(tmp_path))) == 128 + signal.SIGINT
    assert (tmp_path / "cleaned").read_text() == "False", "the server was still there"
