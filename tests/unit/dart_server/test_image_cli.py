"""`dart-farm images`: the list, the builder's exit codes, sentences for wrong input."""

import json
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dart_server.cli import app, images


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DART_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DART_RUNTIME_DIR", str(tmp_path / "run"))
    image = tmp_path / "home/images/small/0123456789ab"
    image.mkdir(parents=True)
    texts = {
        name: "-" for name in ("recipe_digest", "guest_digest", "guest_version", "suite", "architecture", "built_at")
    }
    numbers = {"size_bytes": 3 << 20, "files": 1, "build_s": 1.0}
    more = {"packages": {"a": "1", "b": "2"}, "artefacts": {"qcow2": {}, "docker": {}}}
    manifest = {"name": "small", "digest": "0123456789ab", **texts, **numbers, **more}
    (image / "rootfs").mkdir()
    (image / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    (image.parent / "current").symlink_to(image.name)
    return tmp_path / "home"


@pytest.mark.parametrize("arguments", [["images", "--json"], ["images", "list", "--json"]])
def test_images_are_listed_with_and_without_the_verb(home: Path, arguments: list[str]) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0
    assert [(row["name"], row["digest"]) for row in json.loads(result.stdout)] == [("small", "0123456789ab")]


def test_the_list_is_a_table_for_people(home: Path) -> None:
    result = CliRunner().invoke(app, ["images"])
    told = ["small", "0123456789ab", "current", "3", "2", "rootfs,docker,qcow2", "-"]
    assert result.stdout.splitlines()[1].split()[: len(told)] == told


def test_older_and_unfinished_builds_are_listed(home: Path) -> None:
    folder = home / "images/small"
    for digest, built_at in (("aaaaaaaaaaaa", "2026-01-01"), ("bbbbbbbbbbbb", "2026-01-02")):
        (folder / digest).mkdir()
        (folder / digest / "manifest.json").write_text(json.dumps({"built_at": built_at}), encoding="utf-8")
    for layer in (folder / ".packages-used", folder / ".packages-failed", home / "images/kiosk/.packages-first"):
        (layer / "rootfs/usr/bin").mkdir(parents=True)
        (layer / "rootfs/usr/bin/dpkg").write_bytes(b"x" * (1 << 20))
    (folder / "0123456789ab/rootfs/dpkg").hardlink_to(folder / ".packages-used/rootfs/usr/bin/dpkg")
    (folder / ".build-7").mkdir()
    (folder / ".lock").touch()
    rows = json.loads(CliRunner().invoke(app, ["images", "--json"]).stdout)
    assert [(row["name"], row["digest"], row["state"]) for row in rows] == [
        ("kiosk", "first", "unfinished"),
        ("small", "0123456789ab", "current"),
        ("small", "bbbbbbbbbbbb", "kept"),
        ("small", "aaaaaaaaaaaa", "kept"),
        ("small", "build-7", "unfinished"),
        ("small", "failed", "unfinished"),
    ]
    assert rows[0]["size_mib"] == 1


@pytest.mark.parametrize("manifest", ["{}", '{"size_bytes": "large", "packages": [], "artefacts": null}'])
def test_an_image_from_elsewhere_is_listed_with_what_it_tells(home: Path, manifest: str) -> None:
    (home / "images/small/0123456789ab/manifest.json").write_text(manifest, encoding="utf-8")
    (row,) = json.loads(CliRunner().invoke(app, ["images", "--json"]).stdout)
    assert (row["size_mib"], row["packages"], row["artefacts"], row["built_at"]) == (None, None, ["rootfs"], None)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["build", "nope"], "known recipes: basic, desktop"),
        (["rm", "nope"], "no image nope"),
        (["add", "theirs", "/nowhere/at-all"], "there is no /nowhere/at-all"),
        (["build", "basic", "--artefact", "iso"], "invalid choice"),
    ],
)
def test_the_builder_refuses_wrong_input_with_its_own_code(
    home: Path, arguments: list[str], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    result = CliRunner().invoke(app, ["images", *arguments])
    assert result.exit_code == 2
    assert said in capfd.readouterr().err

    result = CliRunner().invoke(app, ["images", *arguments, "--json"])
    told = json.loads(result.stderr)
    assert (result.exit_code, result.stdout, told["error"]) == (2, "", "invalid")
    assert said in told["detail"]


def test_the_builder_is_given_the_whole_path_of_a_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs in a folder of its own."""
    given: list[str] = []
    monkeypatch.setattr(images, "_run_builder", lambda arguments, *_more: given.append(arguments[1]))
    monkeypatch.chdir(tmp_path)
    for name in ("mine.toml", "basic"):
        assert CliRunner().invoke(app, ["images", "build", name]).exit_code == 0
    assert given == [str(tmp_path / "mine.toml"), "basic"]


def test_the_builders_deeds_are_documents_where_that_is_asked_for(home: Path) -> None:
    result = CliRunner().invoke(app, ["images", "rm", "small", "--json"])
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout) == {"removed": "small"}


def test_an_image_that_is_not_there_cannot_be_verified(home: Path) -> None:
    result = CliRunner().invoke(app, ["images", "verify", "nope"])
    assert result.exit_code == 2
    assert "there is small" in result.output
    assert "dart-farm images build nope" in result.output


@pytest.mark.parametrize(
    ("codes", "expected"), [((0, 0), 0), ((1, 0), 1), ((0, 1), 1), ((2, 1), 2), ((0, -9), 1), ((-9, 2), 2)]
)
def test_an_image_is_verified_by_the_conformance_suite_and_a_look_at_its_programs(
    home: Path, codes: tuple[int, int], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[list[str]] = []
    keys: list[str] = []

    def run(argv: list[str], *, env: dict[str, str], **_more: object) -> subprocess.CompletedProcess[str]:
        ran.append(argv[1:])
        keys.append(env["DART_API_KEY"])
        return subprocess.CompletedProcess(argv, codes[len(ran) - 1], "ok     boots\n", "")

    monkeypatch.setenv("DART_FARM_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("DART_STATE_DIR", str(home))
    monkeypatch.delenv("DART_API_KEY", raising=False)
    (home / "farm.key").write_text("of-the-state-directory\n", encoding="utf-8")
    monkeypatch.setattr(images, "request", lambda _settings, _path: {})
    monkeypatch.setattr("dart_server.cli.images.subprocess.run", run)
    result = CliRunner().invoke(app, ["images", "verify", "small", "--start-limit-s", "9"])
    assert result.exit_code == expected
    suite, look = ran
    assert suite == ["-m", "dart_envs.testing.image_conformance", "small", "--farm", "http://127.0.0.1:1"]
    assert look[0].endswith("verify.py")
    manifest = str((home / "images" / "small" / "current").resolve() / "manifest.json")
    assert look[1:] == ["small", "--farm", "http://127.0.0.1:1", "--manifest", manifest, "--start-limit-s", "9.0"]
    assert keys == ["of-the-state-directory"] * 2
    ran.clear()
    monkeypatch.setenv("DART_API_KEY", "given")
    result = CliRunner().invoke(app, ["images", "verify", "small", "--json"])
    assert keys[2:] == ["given"] * 2
    assert result.exit_code == expected
    assert json.loads(result.stdout) == {"verified": "small", "ok": not expected, "found": ["ok     boots"] * 2}


def test_a_farm_of_another_host_does_not_learn_the_own_key(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[str] = []

    def run(argv: list[str], *, env: dict[str, str], **_more: object) -> subprocess.CompletedProcess[str]:
        keys.append(env["DART_API_KEY"])
        return subprocess.CompletedProcess(argv, 0, "", "")

    monkeypatch.setenv("DART_FARM_URL", "http://10.0.0.9:8700")
    monkeypatch.setenv("DART_STATE_DIR", str(home))
    monkeypatch.delenv("DART_API_KEY", raising=False)
    (home / "farm.key").write_text("of-the-state-directory\n", encoding="utf-8")
    monkeypatch.setattr(images, "request", lambda _settings, _path: {})
    monkeypatch.setattr("dart_server.cli.images.subprocess.run", run)
    assert CliRunner().invoke(app, ["images", "verify", "small"]).exit_code == 0
    assert keys == ["", ""]


def test_without_the_builder_the_fix_is_named(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "builder_directory", lambda: None)
    result = CliRunner().invoke(app, ["images", "build", "basic"])
    assert result.exit_code == 2
    assert "install dart-rl again" in result.output


@pytest.mark.parametrize(
    ("farm", "limit_s", "said"),
    [("/bin/false", 60.0, "ended at its start with exit code 1"), ("sleepy", 0.2, "did not answer within 0 s")],
)
def test_verify_tells_a_farm_that_ended_from_one_that_is_slow(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    farm: str,
    limit_s: float,
    said: str,
) -> None:
    if farm == "sleepy":
        program = home.parent / farm
        program.write_text("#!/bin/sh\nexec sleep 600\n", encoding="utf-8")
        program.chmod(0o755)
        farm = str(program)
    monkeypatch.setattr(images, "check_packages", lambda place: None)
    monkeypatch.setattr(images, "request", lambda settings, path: None)
    monkeypatch.setattr(images, "FARM_START_LIMIT_S", limit_s)
    monkeypatch.setattr(images.sys, "executable", farm)
    result = CliRunner().invoke(app, ["images", "verify", "small"])
    assert result.exit_code == 1
    assert said in result.stderr
