"""What a farm and an image are made of: locked by sha256, listed as CycloneDX, and compared with what is there."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from test_setup_host import setup_host  # noqa: F401 - a fixture
from typer.testing import CliRunner

from dart_server.cli import app
from dart_server.process import sbom

ROOT = Path(__file__).resolve().parents[3]
BUILD_LOCK = ROOT / "server" / "deploy" / "locked-build.txt"
EXTRAS = ("server", "docker", "postgres", "otel")


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements(extra: str) -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    given = project["dependencies"] + project["optional-dependencies"][extra]
    return {normal(re.split(r"[\[<>=!~ ;]", one)[0]) for one in given}


@pytest.mark.parametrize("lock", [sbom.LOCK, BUILD_LOCK], ids=lambda path: path.stem)
def test_every_line_of_a_lock_has_a_version_and_hashes(lock: Path) -> None:
    text = "\n".join(line for line in lock.read_text().splitlines() if not line.startswith("#"))
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]
    assert len(lines) == len(sbom.locked_packages(lock)) > 3
    for line in lines:
        assert re.match(r"[a-z0-9][a-z0-9._-]*(\[[a-z,]+\])?==[^ ]+( ; [^\\]+)? +--hash=sha256:[0-9a-f]{64}", line), (
            line
        )


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_lock_has_all_that_an_extra_needs(extra: str) -> None:
    assert requirements(extra) <= {normal(one.name) for one in sbom.locked_packages()}


def test_the_lock_says_what_the_lock_for_development_says() -> None:
    known: dict[tuple[str, str], set[str]] = {}
    for package in tomllib.loads((ROOT / "uv.lock").read_text())["package"]:
        files = [*package.get("wheels", []), *([package["sdist"]] if "sdist" in package else [])]
        known[(normal(package["name"]), package.get("version", ""))] = {
            one["hash"].removeprefix("sha256:") for one in files
        }
    for package in sbom.locked_packages():
        assert set(package.sha256) <= known[(normal(package.name), package.version)], (
            f"{package.name}: run `uv export` again"
        )


def test_the_locked_setup_installs_nothing_unchecked(setup_host: ModuleType) -> None:  # noqa: F811
    *checked, project = setup_host.locked_commands(Path("python"))
    assert [command[-1] for command in checked] == [str(sbom.LOCK), str(BUILD_LOCK)]
    assert all({"--require-hashes", "--only-binary"} <= set(command) for command in checked)
    assert {"--no-deps", "--no-build-isolation"} <= set(project)


def run(*arguments: str) -> Any:
    result = CliRunner().invoke(app, ["sbom", *arguments])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_farms_bill_of_materials(tmp_path: Path) -> None:
    bill = run()
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    by_name = {one["name"]: one for one in bill["components"]}
    assert by_name["fastapi"]["purl"] == f"pkg:pypi/fastapi@{by_name['fastapi']['version']}"
    assert all(one.get("hashes") or one.get("properties") for one in bill["components"])
    assert len({one["bom-ref"] for one in bill["components"]}) == len(bill["components"])
    assert run() == bill, "the same twice"
    installed = {one["name"] for one in run("--installed")["components"]}
    assert {"fastapi", "pytest"} <= installed
    file = tmp_path / "bill.json"
    assert CliRunner().invoke(app, ["sbom", "--output", str(file)]).exit_code == 0
    assert json.loads(file.read_text()) == bill


STATUS = """Package: bash
Status: install ok installed
Architecture: amd64
Version: 5.2.15-2+b7

Package: adduser
Status: install ok installed
Architecture: all
Version: 1:3.134
"""


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of an installed image of two packages."""
    monkeypatch.setenv("DART_HOME", str(tmp_path))
    place = tmp_path / "images" / "small" / "abc"
    status = place / "rootfs" / "var" / "lib" / "dpkg" / "status"
    status.parent.mkdir(parents=True)
    status.write_text(STATUS)
    (place.parent / "current").symlink_to("abc")
    packages = {"bash": "5.2.15-2+b7", "adduser": "1:3.134"}
    hashes = {"bash": "a" * 64, "adduser": "b" * 64}
    (place / "manifest.json").write_text(json.dumps({"digest": "abc", "packages": packages, "package_sha256": hashes}))
    return place


def test_an_images_bill_of_materials(image: Path) -> None:
    bill = run("--image", "small")
    assert bill["metadata"]["component"]["version"] == "abc"
    adduser, bash = bill["components"]
    assert adduser["purl"] == "pkg:deb/debian/adduser@1%3A3.134?arch=all"
    assert bash["purl"] == "pkg:deb/debian/bash@5.2.15-2%2Bb7?arch=amd64"
    assert bash["hashes"] == [{"alg": "SHA-256", "content": "a" * 64}]
    assert CliRunner().invoke(app, ["sbom", "--image", "none"]).exit_code == 2
    assert CliRunner().invoke(app, ["sbom", "--image", "small", "--installed"]).exit_code == 2


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("Version: 1:3.134", "Version: 1:3.135", "adduser: recorded as 1:3.134, installed as 1:3.135"),
        ("Package: bash", "Package: dash", "bash: recorded as 5.2.15-2+b7, not installed and 1 more"),
        (
            "Status: install ok installed\nArchitecture: all",
            "Status: deinstall ok",
            "adduser: recorded as 1:3.134, not",
        ),
    ],
)
def test_an_image_that_was_changed_is_not_verified(image: Path, before: str, after: str, problem: str) -> None:
    (image / "rootfs" / "var" / "lib" / "dpkg" / "status").write_text(STATUS.replace(before, after))
    result = CliRunner().invoke(app, ["images", "verify", "small"])
    assert result.exit_code == 1
    assert problem in " ".join(result.output.split())


def test_a_package_without_a_recorded_digest_is_told(image: Path) -> None:
    manifest = json.loads((image / "manifest.json").read_text())
    assert sbom.image_packages(image).problems == ()
    del manifest["package_sha256"]["bash"]
    (image / "manifest.json").write_text(json.dumps(manifest))
    assert sbom.image_packages(image).problems == ("bash: without a recorded sha256",)
