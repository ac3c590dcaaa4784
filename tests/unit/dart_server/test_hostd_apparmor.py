"""The AppArmor profile of desktops: when they get it, what the doctor says of it, and that it compiles."""

from __future__ import annotations

import logging
import subprocess
from pathlib import Path

import pytest

from dart_server.hostd import doctor
from dart_server.hostd.errors import HostdHostFault
from dart_server.hostd.linux import credentials
from dart_server.hostd.runtime import apparmor, oci
from dart_server.hostd.verbs import Limits

LINE = f"{apparmor.NAME} (enforce)\n"


class Host:
    """A host with AppArmor, made of files; its parser loads what it reads unless it is told otherwise."""

    def __init__(self, place: Path) -> None:
        self.enabled, self.profiles = place / "enabled", place / "apparmor" / "profiles"
        self.parser, self.loads = place / "apparmor_parser", place / "loads"
        self.profiles.parent.mkdir()
        self.enabled.write_text("Y\n")
        self.profiles.write_text("other (unconfined)\n")
        self.set_parser(f"cat >>{self.loads}; echo '{LINE.strip()}' >>{self.profiles}")

    def set_parser(self, script: str) -> None:
        self.parser.write_text(f"#!/bin/sh\n{script}\n")
        self.parser.chmod(0o755)

    def unload_all(self) -> None:
        self.profiles.write_text("")


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host(tmp_path)
    monkeypatch.setattr(apparmor, "ENABLED", made.enabled)
    monkeypatch.setattr(apparmor, "PROFILES", made.profiles)
    monkeypatch.setattr(apparmor, "PARSERS", (made.parser,))
    monkeypatch.setattr(credentials, "lies_with_root", lambda _path: True)
    return made


def said_by_doctor(place: Path) -> str:
    (check,) = [check for check in doctor.run_checks(place, place) if check.name == "AppArmor"]
    assert check.ok, "a host without it is no fault"
    return check.detail


def test_a_helper_loads_the_profile_once_and_starts_desktops_under_it(host: Host, tmp_path: Path) -> None:
    profile = apparmor.DesktopProfile()
    profile.load()
    assert profile.missing_because == ""
    assert [profile.for_start(), profile.for_start()] == [apparmor.NAME, apparmor.NAME]
    assert host.loads.read_text() == apparmor.profile_text(), "loaded once"
    assert said_by_doctor(tmp_path) == f"on, desktops are under {apparmor.NAME}"


def test_what_is_loaded_already_is_not_loaded_again(host: Host) -> None:
    host.profiles.write_text(LINE)
    apparmor.DesktopProfile().load()
    assert not host.loads.exists()


def test_a_profile_that_was_unloaded_is_loaded_again(host: Host) -> None:
    profile = apparmor.DesktopProfile()
    profile.load()
    host.unload_all()
    assert profile.for_start() == apparmor.NAME
    assert host.profiles.read_text() == LINE
    host.unload_all()
    host.set_parser("echo 'no memory' >&2; exit 1")
    with pytest.raises(HostdHostFault, match="no memory"):
        profile.for_start()


@pytest.mark.parametrize("enabled", ["N\n", None])
def test_without_apparmor_nothing_is_said_or_done(
    host: Host, tmp_path: Path, caplog: pytest.LogCaptureFixture, enabled: str | None
) -> None:
    host.enabled.unlink()
    if enabled is not None:
        host.enabled.write_text(enabled)
    with caplog.at_level(logging.INFO):
        profile = apparmor.DesktopProfile()
        profile.load()
    assert (profile.for_start(), caplog.records) == ("", [])
    assert not host.loads.exists()
    assert said_by_doctor(tmp_path) == "not on this host"


def test_a_helper_that_has_not_loaded_it_starts_desktops_without_it(host: Host) -> None:
    assert apparmor.DesktopProfile().for_start() == ""


def test_what_stands_in_the_way_is_told_with_its_fix(
    host: Host, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without(fix: str) -> None:
        """Desktops run, and log and doctor name the fix."""
        caplog.clear()
        profile = apparmor.DesktopProfile()
        profile.load()
        assert profile.for_start() == ""
        assert fix in caplog.text
        told = doctor.apparmor_check(profile.missing_because).detail
        assert told.startswith("on, but desktops run without a profile: ")
        assert fix in told

    host.set_parser("cat >/dev/null; echo 'syntax error in line 3' >&2; exit 1")
    without("(syntax error in line 3): update the package apparmor")
    host.set_parser("cat >/dev/null")
    without("(exit code 0): update the package apparmor")
    host.profiles.parent.rename(tmp_path / "elsewhere")
    without("`sudo mount -t securityfs securityfs /sys/kernel/security`")
    assert "securityfs" in said_by_doctor(tmp_path)
    monkeypatch.setattr(credentials, "lies_with_root", lambda _path: False)
    without("`sudo apt install --reinstall apparmor`")
    host.parser.unlink()
    without("the parser is missing: `sudo apt install apparmor`")
    assert "`sudo apt install apparmor`" in said_by_doctor(tmp_path)


def test_the_running_helper_knows_better_than_the_look_of_the_host(host: Host, tmp_path: Path) -> None:
    checks = doctor.run_checks(tmp_path, tmp_path, no_profile_because="it cannot be loaded")
    (check,) = [check for check in checks if check.name == "AppArmor"]
    assert check.detail == "on, but desktops run without a profile: it cannot be loaded"


def test_runc_is_told_of_a_profile_only_where_there_is_one() -> None:
    def process(profile: str) -> dict[str, object]:
        config = oci.runtime_config(
            rootfs=Path("/r"), argv=("/i",), env={}, cgroup="/p/d", netns=None, criu_config=Path("/c"),
            limits=Limits(512, 100, 1.5, 64), apparmor_profile=profile,
        )  # fmt: skip
        found: dict[str, object] = config["process"]
        return found

    assert process("some-profile")["apparmorProfile"] == "some-profile"
    assert "apparmorProfile" not in process("")


def test_the_profile_allows_no_more_rights_than_a_desktop_has() -> None:
    lines = [line.strip() for line in apparmor.profile_text().splitlines()]
    allowed = {line for line in lines if line.startswith("capability")}
    assert allowed == {f"capability {one.removeprefix('CAP_').lower()}," for one in oci.CAPABILITIES}
    assert f"profile {apparmor.NAME} flags=(attach_disconnected,mediate_deleted) {{" in lines
    assert not [line for line in lines if line.startswith(("change_profile", "#include", "include", "abi"))]


def test_other_rules_have_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oci, "CAPABILITIES", (*oci.CAPABILITIES, "CAP_SYS_ADMIN"))
    assert apparmor._name() != apparmor.NAME


def test_the_hosts_parser_compiles_it(tmp_path: Path) -> None:
    parser = apparmor.find_parser()
    if parser is None:
        pytest.skip("this host has no apparmor_parser (`sudo apt install apparmor`); `make test-apparmor` brings one")
    compiled = tmp_path / "profile"
    command = [str(parser), "--skip-kernel-load", "--skip-cache", "--ofile", str(compiled)]
    done = subprocess.run(command, input=apparmor.profile_text(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert apparmor.NAME.encode() in compiled.read_bytes()
