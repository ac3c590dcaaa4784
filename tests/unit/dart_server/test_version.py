"""`--version` of every program: what is installed, with the commit where pip recorded one."""

from __future__ import annotations

import importlib
import json
from importlib.metadata import PackageNotFoundError

import pytest
from typer.testing import CliRunner

from dart_server.wire import extras

PROGRAMS = ("dart_server.cli", "dart_envs.cli.main", "dart_agent.cli", "dart_train.cli")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Installed:
    """What the metadata holds."""

    version = "1.2.3"

    def __init__(self, origin: str | None) -> None:
        self._origin = origin

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return self._origin


@pytest.mark.parametrize(
    ("origin", "told"),
    [
        (None, "1.2.3"),
        (json.dumps({"url": "file:///clone", "dir_info": {"editable": True}}), "1.2.3"),
        (json.dumps({"url": "https://x", "vcs_info": {"vcs": "git", "commit_id": COMMIT}}), "1.2.3+g0123456789ab"),
        ("no json", "1.2.3"),
        ("[]", "1.2.3"),
    ],
)
def test_the_commit_is_told_where_pip_fetched_it(
    origin: str | None, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "distribution", lambda _name: Installed(origin))
    assert extras.package_version() == told


def test_a_bare_tree_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Installed:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(extras, "distribution", missing)
    assert extras.package_version() == "0"


@pytest.mark.parametrize("module", PROGRAMS)
def test_every_program_tells_the_version(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "distribution", lambda _name: Installed(None))
    result = CliRunner().invoke(importlib.import_module(module).app, ["--version"])
    assert (result.exit_code, result.output) == (0, "dart-rl 1.2.3\n")
