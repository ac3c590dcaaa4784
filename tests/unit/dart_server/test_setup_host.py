"""The setup's decisions, with small programs of ours in the place of sudo, apt and Python."""

import importlib.util
import os
from pathlib import Path
from types import ModuleType

import pytest

from dart_server.process import host_setup
from dart_server.process.host_setup import SetupFailed

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def setup_host() -> ModuleType:
    spec = importlib.util.spec_from_file_location("setup_host", ROOT / "server" / "deploy" / "setup_host.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only directory on PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)


def as_somebody(monkeypatch: pytest.MonkeyPatch, setup_host: ModuleType) -> None:
    monkeypatch.setattr(host_setup.os, "geteuid", lambda: 65534)


def test_root_needs_no_sudo_and_somebody_keeps_the_proxies(
    setup_host: ModuleType, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_setup.os, "geteuid", lambda: 0)
    assert host_setup.as_root(["apt-get"]) == ["apt-get"]
    as_somebody(monkeypatch, setup_host)
    with pytest.raises(SetupFailed, match="install sudo"):
        host_setup.as_root(["apt-get"])
    program(programs, "sudo", "exit 0")
    monkeypatch.setenv("http_proxy", "http://proxy:1")
    assert host_setup.as_root(["apt-get"]) == ["sudo", "-n", "env", "http_proxy=http://proxy:1", "apt-get"]


def test_a_sudo_that_asks_for_a_password_is_refused_with_the_cure(
    setup_host: ModuleType, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_somebody(monkeypatch, setup_host)
    program(programs, "sudo", "exit 0")
    host_setup.check_sudo()
    program(programs, "sudo", "exit 1")
    with pytest.raises(SetupFailed, match="dart-farm setup --user"):
        host_setup.check_sudo()


def test_the_hosts_own_python_is_taken_when_it_makes_environments(
    setup_host: ModuleType, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup_host.sys, "executable", str(programs / "gone"))
    program(programs, "python3", "exit 0")
    assert setup_host.find_python() == str(programs / "python3")


def test_a_python_without_venv_gets_its_own_package(
    setup_host: ModuleType, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debian 13: python3 is 3.13, and its venv package is python3-venv."""
    monkeypatch.setattr(setup_host.sys, "executable", str(programs / "gone"))
    has_venv = programs / "has-venv"
    program(programs, "python3", f'case "$2" in *ensurepip*) [ -e {has_venv} ];; esac')
    program(programs, "apt-cache", '[ "$2" = python3-venv ]')
    asked: list[list[str]] = []

    def install(packages: list[str]) -> None:
        asked.append(packages)
        has_venv.touch()

    monkeypatch.setattr(setup_host, "install_packages", install)
    assert setup_host.find_python() == "python3"
    assert asked == [["python3", "python3-venv"]]


def test_an_old_python_is_passed_over_for_one_from_the_archive(
    setup_host: ModuleType, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ubuntu 22.04: python3 is 3.10, and the archive has python3.11."""
    monkeypatch.setattr(setup_host.sys, "executable", str(programs / "gone"))
    program(programs, "python3", "exit 1")
    program(programs, "apt-cache", '[ "$2" = python3.11-venv ] || [ "$2" = python3-venv ]')
    monkeypatch.setattr(setup_host, "install_packages", lambda packages: program(programs, packages[0], "exit 0"))
    assert setup_host.find_python() == "python3.11"
    os.unlink(programs / "python3.11")
    program(programs, "apt-cache", "exit 1")
    with pytest.raises(SetupFailed, match=r"install python3\.11"):
        setup_host.find_python()


def test_what_is_missing_may_be_a_program_or_a_file(setup_host: ModuleType, programs: Path) -> None:
    assert not host_setup.has_tool("no-such-tool")
    program(programs, "a-tool", "exit 0")
    assert host_setup.has_tool("a-tool")
    assert host_setup.has_tool(str(programs / "a-tool"))
    assert not host_setup.has_tool("/nowhere/a-tool")
