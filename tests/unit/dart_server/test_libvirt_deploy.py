"""The daemon that is started for a command: chosen, ended and removed, with a small program of ours in the place of libvirtd."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import sys
from pathlib import Path
from types import ModuleType

import pytest

DEPLOY = Path(__file__).resolve().parents[3] / "server" / "deploy"
FAKE_DAEMON = """#!{python}
import signal, socket, sys, time
settings = dict(line.split(" = ") for line in open(sys.argv[sys.argv.index("--config") + 1]).read().splitlines())
with socket.socket(socket.AF_UNIX) as listening:
    listening.bind(settings["unix_sock_dir"].strip('"') + "/libvirt-sock")
    listening.listen()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    time.sleep(60)
"""


@pytest.fixture
def deploy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    monkeypatch.syspath_prepend(str(DEPLOY))
    spec = importlib.util.spec_from_file_location("libvirt_host", DEPLOY / "libvirt_host.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "SEARCH", str(tmp_path))
    monkeypatch.setattr(module, "SYSTEM_SOCKET", tmp_path / "none")
    monkeypatch.setattr(module, "as_root", lambda argv: argv)
    monkeypatch.setattr(module, "check_sudo", lambda: None)
    monkeypatch.setattr(module, "install_programs", lambda: None)
    monkeypatch.setattr(module, "isolated_command", lambda _place: [])
    monkeypatch.setattr(module, "leftover_processes", lambda _place, _namespace: [])
    monkeypatch.setattr(module.tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("DART_LIBVIRT_URI", raising=False)
    return module


def install_fake_program(program: str, folder: Path) -> None:
    path = folder / "libvirtd"
    path.write_text(program, encoding="utf-8")
    path.chmod(0o755)


def run(deploy: ModuleType, monkeypatch: pytest.MonkeyPatch, program: str) -> int:
    monkeypatch.setattr(sys, "argv", ["libvirt_host.py", "--", sys.executable, "-c", program])
    code: int = deploy.main()
    return code


def test_a_daemon_of_its_own_ends_with_the_command(
    deploy: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install_fake_program(FAKE_DAEMON.format(python=sys.executable), tmp_path)
    said = tmp_path / "said"
    program = (
        "import os, socket; uri = os.environ['DART_LIBVIRT_URI']; "
        "s = socket.socket(socket.AF_UNIX); s.connect(uri.partition('socket=')[2]); "
        f"open({str(said)!r}, 'w').write(uri); raise SystemExit(7)"
    )
    assert run(deploy, monkeypatch, program) == 7
    uri = said.read_text()
    assert uri.startswith("qemu+unix:///system?socket=")
    assert not Path(uri.partition("socket=")[2]).parent.exists()


def test_a_daemon_that_does_not_start_is_told_and_removed(
    deploy: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install_fake_program("#!/bin/sh\necho no such luck\nexit 3\n", tmp_path)
    assert run(deploy, monkeypatch, "raise SystemExit(0)") == 2
    assert "no such luck" in capsys.readouterr().err
    assert not list(tmp_path.glob("dart-libvirt-*"))


def test_one_that_is_named_or_answers_is_used(
    deploy: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said = tmp_path / "said"
    program = f"import os; open({str(said)!r}, 'w').write(os.environ['DART_LIBVIRT_URI'])"
    monkeypatch.setenv("DART_LIBVIRT_URI", "test:///default")
    assert run(deploy, monkeypatch, program) == 0
    assert said.read_text() == "test:///default"
    monkeypatch.delenv("DART_LIBVIRT_URI")
    monkeypatch.setattr(deploy.os, "geteuid", lambda: 0)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "none"))
        listening.listen()
        assert run(deploy, monkeypatch, program) == 0
    assert said.read_text() == "qemu:///system"
    assert os.environ.get("DART_LIBVIRT_URI") is None


INTERRUPTED = """
import os, pathlib, signal, socket, subprocess, sys, time
place = pathlib.Path({place!r})
uri = os.environ["DART_LIBVIRT_URI"].partition("socket=")[2]
child = subprocess.Popen(["sleep", "300"])
(place / "child").write_text(str(child.pid))
try:
    os.kill(os.getppid(), signal.SIGINT)
    time.sleep(60)
except KeyboardInterrupt:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.connect(uri)
    (place / "cleaned").write_text("the daemon was still there")
"""


@pytest.mark.parametrize("before", [signal.default_int_handler, signal.SIG_IGN], ids=["terminal", "background"])
def test_at_an_interruption_the_command_cleans_up_before_the_daemon_ends(
    deploy: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, before: signal.Handlers
) -> None:
    install_fake_program(FAKE_DAEMON.format(python=sys.executable), tmp_path)
    signal.signal(signal.SIGINT, before)
    assert run(deploy, monkeypatch, INTERRUPTED.format(place=str(tmp_path))) == 130
    assert (tmp_path / "cleaned").exists()
    assert not list(tmp_path.glob("dart-libvirt-*"))
    stat = Path(f"/proc/{(tmp_path / 'child').read_text()}/stat")
    assert not stat.exists() or ") Z " in stat.read_text(), "what the command left behind is killed"


def test_a_command_that_does_not_heed_an_interruption_is_killed(
    deploy: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install_fake_program(FAKE_DAEMON.format(python=sys.executable), tmp_path)
    supervised_command = sys.modules["supervised_command"]
    monkeypatch.setattr(supervised_command, "INTERRUPT_GRACE_S", 0.2)
    monkeypatch.setattr(supervised_command, "TERMINATE_TIMEOUT_S", 0.2)
    deaf = "signal.signal(signal.SIGINT, signal.SIG_IGN); signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    program = f"import os, signal, time; {deaf}; os.kill(os.getppid(), signal.SIGINT); time.sleep(60)"
    assert run(deploy, monkeypatch, program) == 130
    assert not list(tmp_path.glob("dart-libvirt-*"))
