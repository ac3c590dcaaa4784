"""The built sdist and wheel: what they contain, and what an install without a checkout can do."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "dart_envs": "dart_envs",
    "dart_agent": "dart_agent",
    "dart_train": "dart_train",
    "dart_server": "server/dart_server",
    "vm_images": "vm_images",
}
HEAVY = {"torch", "fastapi", "sqlalchemy", "uvicorn", "vllm", "transformers", "alembic", "rich-argparse"}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "build", "--outdir", folder, ROOT], check=True, stdout=subprocess.DEVNULL)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


def tracked(folder: str) -> set[str]:
    """Files that git tracks in a folder, relative to it."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT / folder, capture_output=True, check=True, text=True)
    return {name for name in listing.stdout.split("\0") if name}


def install(folder: Path, requirement: str) -> Path:
    """A fresh virtual environment with this requirement; returns its programs' folder."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    programs = folder / "bin"
    subprocess.run([programs / "pip", "install", "-q", requirement], check=True)
    return programs


def run(program: Path, *words: str, place: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program away from the checkout, with a home of its own."""
    clean: Mapping[str, str] = {
        name: value for name, value in os.environ.items() if not name.startswith(("DART_", "PYTHON", "XDG_"))
    }
    return subprocess.run(
        [program, *words],
        cwd=place,
        env={**clean, "HOME": str(place), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_the_wheel_holds_every_tracked_file_of_the_packages_and_nothing_else(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == {f"{package}/{name}" for package, folder in PACKAGES.items() for name in tracked(folder)}
    for needed in (
        "vm_images/recipes/basic.toml",
        "vm_images/guest/dart_guest/__main__.py",
        "dart_server/hostd/installation.py",
        "dart_train/recipes/demo.toml",
    ):
        assert needed in names


def test_the_sdist_can_be_tested_but_brings_no_records(built: Path) -> None:
    (found,) = built.glob("*.tar.gz")
    with tarfile.open(found) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "LICENSE", "README.md", "tests/conftest.py", "Makefile"} <= names
    assert not [name for name in names if name.startswith("benchmarks/results") or name.endswith(".pyc")]


def test_a_client_installs_nothing_heavy_and_works(wheel: Path, tmp_path: Path) -> None:
    programs = install(tmp_path / "venv", str(wheel))
    listing = run(programs / "pip", "list", "--format=freeze", place=tmp_path).stdout.lower()
    assert not {line.partition("==")[0] for line in listing.splitlines()} & HEAVY
    code = "import gymnasium, dart_envs, dart_envs.farm, dart_server.wire; print(gymnasium.spec('DartOSWorld-v0').id)"
    done = run(programs / "python", "-c", code, place=tmp_path)
    assert done.stdout.strip() == "DartOSWorld-v0", done.stderr
    shown = run(programs / "dart-envs", "tasks", "list", "basics", place=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "press_nth" in shown.stdout


def test_a_farm_needs_no_checkout(wheel: Path, tmp_path: Path) -> None:
    programs = install(tmp_path / "venv", f"{wheel}[server]")
    listing = run(programs / "pip", "list", "--format=freeze", place=tmp_path).stdout.lower()
    assert not {line.partition("==")[0] for line in listing.splitlines()} & {"torch", "vllm", "transformers"}
    assert run(programs / "dart-farm", "setup", "--help", place=tmp_path).returncode == 0
    refused = run(programs / "dart-farm", "images", "build", "no-such-recipe", place=tmp_path)
    assert refused.returncode == 2
    assert "no-such-recipe" in refused.stderr
    code = """
import gymnasium as gym, dart_envs
env = gym.make("DartOSWorld-v0", task="basics/press_nth", resolution=(640, 400), max_steps=1)
with dart_envs.FarmClient.connect() as farm:
    print(farm.status().provider if hasattr(farm, "status") else "connected")
"""
    tried = run(
        programs / "python", "-c", code, place=tmp_path, DART_PROVIDER="sim", DART_RUNTIME_DIR=str(tmp_path / "run")
    )
    stopped = run(programs / "dart-farm", "stop", place=tmp_path, DART_RUNTIME_DIR=str(tmp_path / "run"))
    assert tried.returncode == 0, tried.stderr
    assert stopped.returncode == 0, stopped.stderr
