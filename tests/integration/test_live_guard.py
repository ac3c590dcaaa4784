"""Tests that this host cannot run are skipped with the reason, and fail where live tests are required."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import live_host
import pytest

from dart_server.providers.docker import engine as docker_engine
from dart_server.providers.libvirt import engine as libvirt_engine

ROOT = Path(__file__).resolve().parents[2]
LIVE_TEST = "tests/integration/test_fault_owners.py"


def run_on_an_empty_home(home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "killed_by_the_host", LIVE_TEST]
    names = {name: value for name, value in os.environ.items() if name != "DART_REQUIRE_LIVE"}
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**names, "DART_HOME": str(home), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_host_without_desktops_skips_and_says_why(tmp_path: Path) -> None:
    done = run_on_an_empty_home(tmp_path)
    assert done.returncode == 0, done.stdout
    assert "1 skipped" in done.stdout
    assert "this host cannot run `desktop` tests: " in done.stdout


def test_where_live_tests_are_required_it_fails(tmp_path: Path) -> None:
    done = run_on_an_empty_home(tmp_path, DART_REQUIRE_LIVE="1")
    assert done.returncode == 1, done.stdout
    assert "DART_REQUIRE_LIVE is set" in done.stdout


def test_a_missing_container_engine_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DART_REQUIRE_LIVE", raising=False)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")
    monkeypatch.setattr(docker_engine.rlimits, "has_capability", lambda _number: True)
    live_host.LACKING["docker"].cache_clear()
    try:
        with pytest.raises(pytest.skip.Exception, match=r"container engine: .*docker"):
            live_host.require("docker")
    finally:
        live_host.LACKING["docker"].cache_clear()


def test_a_missing_libvirt_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DART_REQUIRE_LIVE", raising=False)
    monkeypatch.setenv("DART_LIBVIRT_URI", f"qemu+unix:///session?socket={tmp_path}/nobody")
    monkeypatch.setattr(libvirt_engine.shutil, "which", lambda name: name)
    live_host.LACKING["libvirt"].cache_clear()
    try:
        with pytest.raises(pytest.skip.Exception, match=r"libvirt: .*(DART_LIBVIRT_URI|\[libvirt\])"):
            live_host.require("libvirt")
    finally:
        live_host.LACKING["libvirt"].cache_clear()


def test_a_missing_vllm_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DART_REQUIRE_LIVE", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    live_host.LACKING["vllm"].cache_clear()
    try:
        with pytest.raises(pytest.skip.Exception, match="vLLM is not installed: pip install"):
            live_host.require("vllm")
    finally:
        live_host.LACKING["vllm"].cache_clear()
