"""`dart-farm doctor`: each finding about the farm's own process, good and bad, with its fix."""

from __future__ import annotations

import json
import os
import resource
import socket
import ssl
import subprocess
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dart_server.cli import app
from dart_server.errors import FarmConfigError
from dart_server.hostd.layout import ownership_problem
from dart_server.process import checks, instance, preflight
from dart_server.settings import FarmSettings

NAMES = [
    *("runtime directory", "state directory", "snapshot directory", "listening address", "certificate", "open files"),
    *("database", "clock"),
]


@pytest.fixture(autouse=True)
def _own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("DART_")]:
        monkeypatch.delenv(name)


def settings(place: Path, **given: Any) -> FarmSettings:
    return FarmSettings(**{"provider": "sim", "runtime_dir": place, "snapshot_dir": place, "port": 0, **given})


def look(chosen: FarmSettings) -> dict[str, checks.Check]:
    return {check.name: check for check in checks.of_process(chosen)}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


def test_a_good_host_passes_and_nothing_is_made(place: Path) -> None:
    chosen = settings(place / "run", snapshot_dir=place / "snaps")
    found = look(chosen)
    assert list(found) == NAMES
    assert all(check.ok for check in found.values()), found
    assert not (place / "run").exists()


def test_directories_that_are_open_or_others_are_told(place: Path) -> None:
    place.chmod(0o755)
    check = look(settings(place))["runtime directory"]
    assert not check.ok
    assert f"chmod 700 {place}" in check.fix
    file = place / "file"
    file.touch()
    assert not look(settings(file, state_dir=place))["runtime directory"].ok


def test_where_snapshots_lie_is_told(place: Path) -> None:
    assert checks.file_system_of(Path("/proc")) == "proc"
    detail = look(settings(place))["snapshot directory"].detail
    assert ("in memory" in detail) == (checks.file_system_of(place) == "tmpfs")


def test_a_place_for_snapshots_that_others_can_shape_is_refused(place: Path) -> None:
    shared = place / "shared"
    shared.mkdir()
    for mode, fine in ((0o700, True), (0o777, False), (0o1777, True)):
        shared.chmod(mode)
        for snapshots in (shared, shared / "not" / "there"):
            chosen = settings(place, provider="libvirt", snapshot_dir=snapshots)
            assert look(chosen)["snapshot directory"].ok is fine, (mode, snapshots)
    shared.chmod(0o777)
    with pytest.raises(FarmConfigError, match="may be written by others"):
        preflight.require(settings(place, provider="runc", snapshot_dir=shared))
    shared.chmod(0o700)
    (shared / "link").symlink_to(shared / "nowhere")
    assert "link" in str(ownership_problem(shared / "link", os.getuid()))
    if os.getuid() == 0:
        os.chown(shared, 65534, 65534)
    assert "another user" in str(ownership_problem(shared / "deeper", os.getuid() and os.getuid() + 1))


def test_a_port_in_use_is_told_with_the_way_out(place: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        check = look(settings(place, port=other.getsockname()[1]))["listening address"]
        assert not check.ok
        assert "--port" in check.fix


def test_beyond_loopback_needs_a_certificate(place: Path) -> None:
    check = look(settings(place, host="0.0.0.0"))["listening address"]
    assert not check.ok
    assert "--tls-cert" in check.detail


def test_socket_paths_that_cannot_be_used_are_told(place: Path) -> None:
    assert look(settings(place, uds=place / "a.sock"))["listening address"].ok
    assert "too long" in look(settings(place, uds=place / ("x" * 120)))["listening address"].detail
    (place / "plain").touch()
    assert "not a socket" in look(settings(place, uds=place / "plain"))["listening address"].detail


def test_a_running_farm_is_no_fault(place: Path) -> None:
    chosen = settings(place)
    with instance.exclusive_farm(chosen):
        check = look(chosen)["listening address"]
    assert check.ok
    assert str(os.getpid()) in check.detail


def certificate(place: Path, name: str, *, ended: bool = False) -> tuple[Path, Path]:
    """A self-signed certificate and its key, made by the openssl of the host."""
    cert, key = place / f"{name}.pem", place / f"{name}.key"
    start, end = ("20200101000000Z", "20200201000000Z") if ended else ("20240101000000Z", "20491231235959Z")
    config = place / "ca.cnf"
    (place / "index").write_text("")
    config.write_text(
        f"[ca]\ndefault_ca=c\n[c]\ndatabase={place}/index\nnew_certs_dir={place}\nrand_serial=yes\ndefault_md=sha256\n"
        "policy=p\n[p]\ncommonName=supplied\n[req]\ndistinguished_name=d\n[d]\n"
    )
    request = place / f"{name}.csr"
    new = ["openssl", "req", "-new", "-newkey", "rsa:2048", "-nodes", "-config", str(config), "-subj", "/CN=farm"]
    subprocess.run([*new, "-keyout", str(key), "-out", str(request)], check=True, capture_output=True)
    sign = ["openssl", "ca", "-batch", "-selfsign", "-config", str(config), "-in", str(request), "-keyfile", str(key)]
    subprocess.run(
        [*sign, "-out", str(cert), "-startdate", start, "-enddate", end, "-notext"], check=True, capture_output=True
    )
    return cert, key


def test_certificates_are_read_and_matched(place: Path) -> None:
    cert, key = certificate(place, "good")
    check = look(settings(place, tls_cert=cert, tls_key=key))["certificate"]
    assert check.ok, check
    assert "2049-12-31" in check.detail
    _, other_key = certificate(place, "other")
    check = look(settings(place, tls_cert=cert, tls_key=other_key))["certificate"]
    assert not check.ok
    assert "DART_TLS_KEY" in check.fix
    cert, key = certificate(place, "old", ended=True)
    assert "ended on 2020-02-01" in look(settings(place, tls_cert=cert, tls_key=key))["certificate"].detail
    assert not look(settings(place, tls_cert=place / "none"))["certificate"].ok


@pytest.mark.parametrize("pem", ["", ssl.PEM_HEADER, f"{ssl.PEM_HEADER}\nMIIB\n{ssl.PEM_FOOTER}"])
def test_what_is_no_certificate_is_refused(pem: str) -> None:
    with pytest.raises(ValueError, match="certificate"):
        checks.certificate_expiry(pem)


def test_a_low_limit_of_open_files_is_told(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _what: (256, 256))
    check = look(settings(place))["open files"]
    assert not check.ok
    assert "ulimit" in check.fix


async def database_with_event(chosen: FarmSettings, at_s: float) -> None:
    """A real database with one event of a given time."""
    from dart_server.clock import SystemClock
    from dart_server.database.repository import NewEvent, Repository
    from dart_server.database.write_queue import Database

    class Then(SystemClock):
        def time(self) -> float:
            return at_s

    database = Database(chosen.database_url)
    await database.start()
    await Repository(database, Then()).add_event(NewEvent("farm_started"))
    await database.aclose()


async def test_a_clock_that_went_back_is_told_from_the_ledger(place: Path) -> None:
    chosen = settings(place)
    await database_with_event(chosen, time.time())
    found = look(chosen)
    assert found["database"].ok
    assert found["clock"].ok
    (place / "farm.db").unlink()
    await database_with_event(chosen, (datetime.now(UTC) + timedelta(hours=1)).timestamp())
    assert "went back" in look(chosen)["clock"].detail


def test_a_ledger_that_cannot_be_used_is_told_without_its_password(place: Path) -> None:
    (place / "farm.db").write_bytes(b"no database" * 1000)
    check = look(settings(place))["database"]
    assert not check.ok
    assert "cannot be used" in check.detail
    check = look(settings(place, db_url="nonsense"))["database"]
    assert not check.ok
    check = look(settings(place, db_url="postgresql+nodriver://me:hunter2@localhost:1/x"))["database"]
    assert not check.ok
    assert "hunter2" not in check.detail + check.fix
    assert "pip install" in check.fix


def test_the_command_tells_all_and_ends_with_2_when_something_is_missing(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DART_RUNTIME_DIR", str(place))
    monkeypatch.setenv("DART_PORT", "0")
    done = CliRunner().invoke(app, ["doctor", "--provider", "sim", "--json"])
    assert done.exit_code == 0, done.output
    assert [check["name"] for check in json.loads(done.stdout)][: len(NAMES)] == NAMES
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = CliRunner().invoke(app, ["doctor", "--provider", "sim", "--port", str(port)])
        assert done.exit_code == 2
        assert f"NO  listening address: 127.0.0.1, port {port}: " in done.stdout
    place.chmod(0o755)
    done = CliRunner().invoke(app, ["doctor", "--provider", "sim"])
    assert done.exit_code == 2
    assert f"NO  runtime directory: {place} is open to other users. Run `chmod 700 {place}`." in done.stdout
