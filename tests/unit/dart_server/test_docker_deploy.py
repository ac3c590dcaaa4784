"""The engine that is started for a command: chosen, ended and removed, with a small program of ours in the place of dockerd."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
from pathlib import Path
from types import ModuleType

import pytest

DEPLOY = Path(__file__).resolve().parents[3] / "server" / "deploy"
FAKE_ENGINE = """#!{python}
import signal, socket, sys, time
open("{stray}", "w").close()
place = sys.argv[sys.argv.index("--host") + 1].removeprefix("unix://")
with socket.socket(socket.AF_UNIX) as listening:
    listening.bind(place)
    listening.listen()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    time.sleep(60)
"""


@pytest.fixture
def deploy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    monkeypatch.syspath_prepend(str(DEPLOY))
    spec = importlib.util.spec_from_file_location("docker_engine", DEPLOY / "docker_engine.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "SOCKETS", ())
    monkeypatch.setattr(module, "EXTERNAL_FILES", (tmp_path / "stray",))
    monkeypatch.setattr(module, "as_root", lambda argv: argv)
    monkeypatch.setattr(module, "check_sudo", lambda: None)
    monkeypatch.setattr(module.tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    return module


def install_fake_program(deploy: ModuleType, monkeypatch: pytest.MonkeyPatch, program: str, folder: Path) -> None:
    path = folder / "dockerd"
    path.write_text(program, encoding="utf-8")
    path.chmod(0o755)
    monkeypatch.setattr(deploy, "find_dockerd", lambda: str(path))


def test_an_engine_that_answers_is_used(deploy: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert deploy.find_running_engine() is None
    path = tmp_path / "engine.sock"
    monkeypatch.setattr(deploy, "SOCKETS", (path,))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        assert deploy.find_running_engine() is None
        listening.listen()
        assert deploy.find_running_engine() == f"unix://{path}"
    monkeypatch.setenv("DOCKER_HOST", "unix:///chosen")
    assert deploy.find_running_engine() == "unix:///chosen"


def test_the_command_runs_against_an_engine_of_its_own_that_ends_with_it(
    deploy: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install_fake_program(
        deploy, monkeypatch, FAKE_ENGINE.format(python=sys.executable, stray=tmp_path / "stray"), tmp_path
    )
    program = (
        "import os, socket, sys; s = socket.socket(socket.AF_UNIX)\n"
        "s.connect(os.environ['DOCKER_HOST'].removeprefix('unix://')); s.close(); sys.exit(7)"
    )
    monkeypatch.setattr(sys, "argv", ["docker_engine", "--", sys.executable, "-c", program])
    assert deploy.main() == 7
    assert os.listdir(tmp_path) == ["dockerd"]


def test_an_engine_that_does_not_start_is_one_sentence(
    deploy: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install_fake_program(deploy, monkeypatch, "#!/bin/sh\necho no cgroups here\nexit 1\n", tmp_path)
    monkeypatch.setattr(sys, "argv", ["docker_engine", "--", "true"])
    assert deploy.main() == 2
    assert "no cgroups here" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["dockerd"]
