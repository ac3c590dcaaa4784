"""Processes of the osworld scorer that hang, die or talk nonsense, played by a program of the test's own; and what an installation is."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer.testing

from dart_envs.cli.main import app
from dart_envs.scorer import install, paths
from dart_envs.scorer.osworld import parse_outcome
from dart_envs.scorer.paths import Installation
from dart_envs.scorer.worker_process import parent_watch
from dart_envs.scorer.worker_process.evaluation_env import RequestMonitor
from dart_envs.scorer.workers import ScorerNotInstalledError, ScorerPool, ScorerWorker, ScorerWorkerError, max_workers
from tests.support.local_server import LocalHandler, LocalServer, serving

ORPHAN = Path(parent_watch.__file__)
PROGRAM = (
    f"""
import importlib.util, json, os, sys, time
spec = importlib.util.spec_from_file_location("orphan", {str(ORPHAN)!r})
orphan = importlib.util.module_from_spec(spec)
spec.loader.exec_module(orphan)
orphan.exit_with_parent(0)
"""
    + """
for line in sys.stdin:
    said = json.loads(line)
    if said["op"] == "hang":
        orphan.evaluation_folders.update(said.get("folders", []))
        for folder in orphan.evaluation_folders:
            open(folder + "/busy", "w").close()
        time.sleep(600)
    if said["op"] == "grow":
        try:
            bytearray(9 << 30)
        except MemoryError:
            print(json.dumps({"grown": False}), flush=True)
            continue
    if said["op"] == "die":
        print("out of memory", file=sys.stderr)
        os._exit(3)
    if said["op"] == "nonsense":
        print("this is not JSON", flush=True)
        continue
    print(json.dumps({"pid": os.getpid(), "environment": sorted(os.environ), "home": os.environ["HOME"]}), flush=True)
"""
)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation whose scorer is `PROGRAM`."""
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    monkeypatch.setattr(paths, "WORKER_PACKAGE", program)
    python = paths.interpreter(tmp_path / "scorer")
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    paths.write_record(tmp_path / "scorer", Installation("1.0.2", "3.11.9", (), "pins"))
    return tmp_path / "scorer"


def test_a_worker_has_no_secret_and_its_home_goes_with_it(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DART_API_KEY", "secret")
    monkeypatch.setenv("HTTPS_PROXY", "http://user:secret@proxy")
    with ScorerWorker(place) as worker:
        said = worker.request({"op": "hello"}, timeout_s=20.0)
        assert not {"DART_API_KEY", "HTTPS_PROXY"} & set(said["environment"])
        assert os.path.isdir(said["home"])
    assert not os.path.exists(said["home"])


def test_a_file_that_grows_in_memory_ends_at_the_workers_own_limit(place: Path) -> None:
    with ScorerWorker(place) as worker:
        assert worker.request({"op": "grow"}, timeout_s=20.0) == {"grown": False}


class RedirectingHandler(LocalHandler):
    """Leads every request elsewhere, as a program in a desktop may."""

    def do_GET(self) -> None:
        assert isinstance(self.server, RedirectingServer)
        self.send_response(302)
        self.send_header("Location", self.server.target)
        self.send_header("Content-Length", "0")
        self.end_headers()


class RedirectingServer(LocalServer):
    def __init__(self, target: str) -> None:
        super().__init__(RedirectingHandler)
        self.target = target


class SecretHandler(LocalHandler):
    """A service of the host that no desktop may be shown."""

    def do_GET(self) -> None:
        self.answer(200, b"secret")


def test_a_port_of_the_desktop_leads_no_request_to_other_services(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = pytest.importorskip("requests.sessions")
    monkeypatch.setattr(sessions.Session, "send", sessions.Session.send)  # put back afterwards
    monitor = RequestMonitor()
    monitor.install()
    with serving(LocalServer(SecretHandler)) as secret, serving(RedirectingServer(f"http://{secret.place}/")) as port:
        assert sessions.Session().get(f"http://{port.place}/").text == "secret"
        monitor.start(SimpleNamespace(vm_ip="127.0.0.1", server_port=1))  # type: ignore[arg-type]
        answer = sessions.Session().get(f"http://{port.place}/")
    assert (answer.status_code, answer.text) == (302, "")


@pytest.mark.parametrize(("op", "words"), [("die", "died .*out of memory"), ("nonsense", "died")])
def test_a_worker_that_dies_or_talks_nonsense_is_gone(place: Path, op: str, words: str) -> None:
    worker = ScorerWorker(place)
    with pytest.raises(ScorerWorkerError, match=words):
        worker.request({"op": op}, timeout_s=20.0)
    assert not worker.alive


def test_a_worker_that_hangs_is_ended_in_time(place: Path) -> None:
    with ScorerWorker(place) as worker:
        worker.request({"op": "hello"}, timeout_s=20.0)
        started_s = time.monotonic()
        with pytest.raises(ScorerWorkerError, match=r"within 0\.2 s"):
            worker.request({"op": "hang"}, timeout_s=0.2)
        assert time.monotonic() - started_s < 10
        assert not worker.alive


def until(true: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 20.0
    while not true():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


ASKER = """
import sys
from pathlib import Path
from dart_envs.scorer import paths
from dart_envs.scorer.workers import ScorerWorker
paths.WORKER_PACKAGE = Path(sys.argv[2])
worker = ScorerWorker(Path(sys.argv[1]))
said = worker.request({"op": "hello"}, timeout_s=20.0)
print(said["pid"], said["home"], flush=True)
worker.request({"op": "hang", "folders": sys.argv[3:]}, timeout_s=600.0)
"""


def test_a_worker_whose_asker_was_killed_tidies_up_in_the_middle_of_a_request(place: Path, tmp_path: Path) -> None:
    ours, others = tmp_path / f"{parent_watch.FOLDER_PREFIX}1", tmp_path / "not-ours"
    for folder in (ours, others):
        folder.mkdir()
    command = [sys.executable, "-c", ASKER, str(place), str(paths.WORKER_PACKAGE), str(ours), str(others)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as asker:
        assert asker.stdout is not None
        pid, home = asker.stdout.readline().split()
        assert os.path.isdir(home)
        until(lambda: (others / "busy").exists() and (ours / "busy").exists())
        asker.kill()
    until(lambda: not os.path.exists(home) and not os.path.exists(f"/proc/{pid}"))
    assert (ours.exists(), others.exists()) == (False, True)


async def test_a_pool_reuses_workers_and_replaces_what_failed(place: Path) -> None:
    pool = ScorerPool(place, 1)
    try:
        first = (await pool.request({"op": "hello"}, timeout_s=20.0))["pid"]
        assert (await pool.request({"op": "hello"}, timeout_s=20.0))["pid"] == first
        with pytest.raises(ScorerWorkerError):
            await pool.request({"op": "die"}, timeout_s=20.0)
        second = (await pool.request({"op": "hello"}, timeout_s=20.0))["pid"]
        assert second != first
        waiting = asyncio.create_task(pool.request({"op": "hang"}, timeout_s=600.0))
        while pool._free:  # until the request is under way  # noqa: ASYNC110 - nothing tells when a thread has taken it
            await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (await pool.request({"op": "hello"}, timeout_s=20.0))["pid"] not in (first, second)
    finally:
        pool.close()


async def test_without_an_installation_the_cure_is_told(tmp_path: Path) -> None:
    pool = ScorerPool(tmp_path, 1)
    with pytest.raises(ScorerNotInstalledError, match="dart-envs scorer install"):
        await pool.request({"op": "hello"}, timeout_s=5.0)
    pool.close()
    with pytest.raises(ScorerNotInstalledError, match=r"package easyocr.*scorer install"):
        parse_outcome({"failed": "missing_package", "message": "The metric a needs the package easyocr."})


def test_an_installation_counts_once_its_record_is_there(place: Path) -> None:
    assert paths.read_installation(place) == Installation("1.0.2", "3.11.9", (), "pins")
    paths.record_path(place).write_text("{half")
    assert paths.read_installation(place) is None
    paths.write_record(place, Installation("1.0.2", "3.11.9", ("audio",), "pins"))
    paths.interpreter(place).unlink()
    assert paths.read_installation(place) is None


def test_what_is_installed_already_is_left_alone(place: Path) -> None:
    record = Installation("1.0.2", "3.11.9", ("audio",), paths.pins_digest(("audio",)))
    paths.write_record(place, record)
    said: list[str] = []
    assert install.install(place, ["audio"], on_message=said.append) == record
    assert "nothing to do" in said[0]


@pytest.mark.parametrize("arguments", [["--with", "speech"], ["--python", "/bin/false"]])
def test_wrong_input_is_one_sentence(arguments: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(paths.DIRECTORY_VARIABLE, str(tmp_path / "nowhere"))
    ended = typer.testing.CliRunner().invoke(app, ["scorer", "install", *arguments])
    assert ended.exit_code == 2
    assert not (tmp_path / "nowhere").exists()
    ended = typer.testing.CliRunner().invoke(app, ["scorer", "status"])
    assert ended.exit_code == 1


def test_every_pin_is_exact_but_for_torch() -> None:
    for extra in (*paths.EXTRAS, "base"):
        for line in (paths.PINS / f"{extra}.txt").read_text().splitlines():
            if line and not line.startswith(("#", " ")) and extra != "ocr":
                assert "==" in line, line


def test_the_bound_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DART_SCORER_WORKERS", "many")
    with pytest.raises(Exception, match="from 1 to 64, not 'many'"):
        max_workers()
