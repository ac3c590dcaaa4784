"""Where a farm keeps what must outlive it, and what becomes of an older layout."""

from __future__ import annotations

from pathlib import Path

import pytest

from dart_envs.farm.transport import Address, resolve_api_key
from dart_server.errors import FarmConfigError
from dart_server.process import instance, state_directory
from dart_server.settings import FarmSettings
from dart_server.wire import paths


@pytest.fixture(autouse=True)
def own_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("DART_RUNTIME_DIR", "DART_STATE_DIR", "DART_API_KEY", "DART_DB_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def test_state_lies_apart_from_what_a_boot_clears(tmp_path: Path) -> None:
    settings = FarmSettings()
    assert settings.state_dir == tmp_path / "state" / "dart"
    assert settings.database_url == f"sqlite:///{tmp_path}/state/dart/farm.db"
    assert {settings.key_path.parent, settings.secret_path.parent} == {settings.state_dir}
    assert {settings.socket_path.parent, settings.lock_path.parent, settings.log_path.parent} == {tmp_path / "run/dart"}


def test_a_farm_with_a_runtime_directory_of_its_own_shares_no_state(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DART_RUNTIME_DIR", str(tmp_path / "own"))
    assert FarmSettings().state_dir == tmp_path / "own"
    assert FarmSettings(runtime_dir=tmp_path / "other").state_dir == tmp_path / "other"
    monkeypatch.setenv("DART_STATE_DIR", str(tmp_path / "kept"))
    assert FarmSettings().state_dir == tmp_path / "kept"
    monkeypatch.setenv("DART_RUNTIME_DIR", str(paths.default_runtime_dir()))
    monkeypatch.delenv("DART_STATE_DIR")
    assert FarmSettings().state_dir == tmp_path / "state" / "dart", "the default, said aloud, is the default"


def test_client_and_farm_agree_on_the_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for environment in ({}, {"DART_RUNTIME_DIR": "own"}, {"DART_RUNTIME_DIR": "own", "DART_STATE_DIR": "kept"}):
        for name, value in environment.items():
            monkeypatch.setenv(name, str(tmp_path / value))
        settings = FarmSettings()
        state_directory.make_directories(settings)
        settings.key_path.write_text(f"key of {environment}\n")
        assert resolve_api_key(Address("http://farm", str(settings.socket_path)), None) == f"key of {environment}"
    other = Address("http://farm", str(tmp_path / "elsewhere" / "farm.sock"))
    assert resolve_api_key(other, None) is None, "a farm elsewhere has not this farm's key"


def test_what_an_older_layout_left_is_moved_once(tmp_path: Path) -> None:
    settings = FarmSettings()
    state_directory.make_directories(settings)
    old = {"farm.db": b"database", "farm.db-wal": b"wal", "farm.key": b"key", "farm.secret": b"secret"}
    for name, content in old.items():
        (settings.runtime_dir / name).write_bytes(content)
        (settings.runtime_dir / name).chmod(0o600)
    assert sorted(state_directory.migrate_legacy_layout(settings)) == sorted(old)
    assert {path.name: path.read_bytes() for path in settings.state_dir.iterdir()} == old
    assert all(path.stat().st_mode & 0o077 == 0 for path in settings.state_dir.iterdir())
    assert not any(settings.runtime_dir.iterdir())
    (settings.runtime_dir / "farm.key").write_bytes(b"of another time")
    assert state_directory.migrate_legacy_layout(settings) == []
    assert settings.key_path.read_bytes() == b"key"


def test_two_farms_do_not_share_a_state_directory(tmp_path: Path) -> None:
    first = FarmSettings(runtime_dir=tmp_path / "a", state_dir=tmp_path / "kept")
    second = FarmSettings(runtime_dir=tmp_path / "b", state_dir=tmp_path / "kept")
    third = FarmSettings(runtime_dir=tmp_path / "kept")
    for settings in (first, second, third):
        state_directory.make_directories(settings)
    with instance.exclusive_farm(first):
        with pytest.raises(FarmConfigError, match="DART_STATE_DIR"), instance.exclusive_farm(second):
            pass
        with pytest.raises(instance.AlreadyRunning), instance.exclusive_farm(third):
            pass
        with pytest.raises(instance.AlreadyRunning), instance.exclusive_farm(first):
            pass
    with instance.exclusive_farm(second):
        assert instance.running_pid(second) is not None
    assert instance.running_pid(second) is None


def test_a_state_directory_open_to_others_is_refused(tmp_path: Path) -> None:
    settings = FarmSettings(state_dir=tmp_path / "kept")
    (tmp_path / "kept").mkdir(mode=0o755)
    (tmp_path / "kept").chmod(0o755)
    with pytest.raises(FarmConfigError, match="chmod 700"):
        state_directory.make_directories(settings)
