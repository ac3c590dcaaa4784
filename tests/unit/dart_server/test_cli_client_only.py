"""Commands in an installation without the extra `server`: those that ask a farm work, the others say what to install."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dart_envs.errors import FarmError
from dart_envs.farm import embedded
from dart_server.wire import extras
from dart_server.wire.extras import extras_of, install_command
from tests.support.local_server import LocalHandler, LocalServer, serving

HEAVY = ("pydantic_settings", "fastapi", "sqlalchemy", "uvicorn", "alembic", "torch", "matplotlib", "transformers")
RUN = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {heavy}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
sys.argv = {argv}
from {module} import main
main()
"""


def run(module: str, *argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command line where the heavy packages cannot be imported."""
    program = RUN.format(heavy=HEAVY, argv=["program", *argv], module=module)
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        check=False,
    )


class FakeFarmHandler(LocalHandler):
    def do_GET(self) -> None:
        self.answer(200, b"[]")


@pytest.mark.parametrize(
    "argv",
    [
        ["leases", "list"],
        ["desktops", "list"],
        ["claims", "list"],
        ["keys", "list"],
        ["events"],
        ["pools", "list"],
        ["snapshots"],
    ],
)
def test_what_asks_a_farm_works_without_the_server(argv: list[str]) -> None:
    with serving(LocalServer(FakeFarmHandler)) as server:
        done = run("dart_server.cli", *argv, "--json", DART_FARM_URL=f"http://{server.place}")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("module", "argv", "extra"),
    [
        ("dart_server.cli", ["status"], "server"),
        ("dart_server.cli", ["serve"], "server"),
        ("dart_server.cli", ["doctor"], "server"),
        ("dart_server.cli", ["reap"], "server"),
        ("dart_server.cli", ["images", "list"], "server"),
        ("dart_train.cli", ["init-model", "{tmp}/model"], "train"),
        ("dart_train.cli", ["report", "{tmp}"], "train"),
    ],
)
def test_what_needs_more_says_which_extra_in_one_sentence(
    tmp_path: Path, module: str, argv: list[str], extra: str
) -> None:
    done = run(module, *(one.format(tmp=tmp_path) for one in argv))
    assert done.returncode == 1, done.stderr
    assert f"needs the extra {extra} (" in done.stderr
    assert install_command(extra) in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_an_environment_without_a_farm_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    with pytest.raises(FarmError, match=r"DART_FARM_URL.*\[server\]'"):
        embedded._server_command()


def test_extras_are_read_from_the_metadata() -> None:
    assert "server" in extras_of("fastapi.routing")
    assert extras_of("libvirt") == ["libvirt"]
    assert extras_of("ulid") == ["train"]
    assert set(extras_of("torch")) >= {"agent", "train"}
    assert extras_of("no_such_module") == []


def test_json_output_and_a_given_address_change_what_is_said() -> None:
    done = run("dart_server.cli", "status", "--json")
    said = json.loads(done.stderr)
    assert (done.returncode, said["error"], done.stdout) == (1, "missing_extra", "")
    assert "DART_FARM_URL" in said["hint"]
    done = run("dart_server.cli", "stop", DART_FARM_URL="http://127.0.0.1:1")
    assert "needs the extra server" in done.stderr
    assert "DART_FARM_URL" not in done.stderr


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'dart-rl[otel,rl]'"),
        ({"url": "file:///my%20clone", "dir_info": {"editable": True}}, "pip install -e '/my clone[otel,rl]'"),
        ({"url": "file:///clone", "dir_info": {}}, "pip install 'dart-rl[otel,rl] @ file:///clone'"),
        ({"url": "https://a.example/dart_rl.whl"}, "pip install 'dart-rl[otel,rl] @ https://a.example/dart_rl.whl'"),
    ],
)
def test_the_command_installs_from_where_the_installation_came(
    monkeypatch: pytest.MonkeyPatch, origin: dict[str, object] | None, command: str
) -> None:
    class FakeDistribution:
        def read_text(self, name: str) -> str | None:
            assert name == "direct_url.json"
            return None if origin is None else json.dumps(origin)

    monkeypatch.setattr(extras, "distribution", lambda name: FakeDistribution())
    assert install_command("otel", "rl") == command
