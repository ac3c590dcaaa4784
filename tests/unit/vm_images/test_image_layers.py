"""The layers over the packages: what must hold before a program of the image is run in them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from imagebuild import layers
from imagebuild.errors import BuildError
from imagebuild.recipe import User, read_recipe

USER = User("user", 1000, "password", ())


def test_font_directories_have_whole_seconds_when_their_cache_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fonts = tmp_path / "usr/share/fonts/truetype"
    fonts.mkdir(parents=True)
    places = (fonts, fonts.parent)
    for place in places:
        os.utime(place, ns=(0, 1_700_000_000_123_456_789))
    cached = []

    def fake_chroot(_rootfs: Path, argv: list[str]) -> None:
        cached.append((argv[0], [place.stat().st_mtime_ns for place in places]))

    monkeypatch.setattr(layers, "chroot", fake_chroot)
    layers.cache_fonts(tmp_path)
    assert cached == [("fc-cache", [1_700_000_000 * 10**9] * 2)]


def test_files_of_a_recipe_need_not_be_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those in the user's home belong to the user, all others to root."""
    owned: list[str] = []
    monkeypatch.setattr(os, "chown", lambda path, *_: owned.append(str(path.relative_to(tmp_path / "rootfs"))))
    for name in ("home/user/Pictures/screen.png", "etc/motd"):
        (tmp_path / "files" / name).parent.mkdir(parents=True)
        (tmp_path / "files" / name).write_bytes(b"\x89PNG\xff")
    recipe = read_recipe(Path(layers.__file__).parents[1] / "recipes/basic.toml")
    layers.lay_files(tmp_path / "rootfs", recipe, tmp_path / "files")
    assert (tmp_path / "rootfs/home/user/Pictures/screen.png").read_bytes() == b"\x89PNG\xff"
    assert owned == ["home/user/Pictures/screen.png", "home/user/Pictures"]


@pytest.fixture
def host_commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that were to run in an image; those after `dbus-run-session --` run on this host instead."""
    given: list[list[str]] = []

    def inside(_rootfs: Path, argv: list[str]) -> list[str]:
        given.append(argv)
        return argv[argv.index("dbus-run-session") + 2 :]

    monkeypatch.setattr(layers, "inside", inside)
    return given


def test_a_warm_command_runs_as_the_user_in_a_session_of_its_own(
    tmp_path: Path, host_commands: list[list[str]]
) -> None:
    """Without D-Bus `gsettings set` ends well and keeps nothing."""
    (tmp_path / "tmp/left").mkdir(parents=True)
    said: list[str] = []
    layers.warm(tmp_path, USER, ("sh", "-c", "echo warned >&2; echo dbus-daemon[2]: x; echo done"), 2, said.append)
    (argv,) = host_commands
    assert argv[:2] == ["setpriv", "--reuid=1000"]
    assert "HOME=/home/user" in argv
    assert argv[-5:-2] == ["dbus-run-session", "--", "sh"]
    assert said == [
        "warm command 2 (`sh -c 'echo warned >&2; echo dbus-daemon[2]: x; echo done'`)",
        "  warned",
        "  done",
    ]
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_warm_command_that_fails_is_named_with_its_number(tmp_path: Path, host_commands: list[list[str]]) -> None:
    with pytest.raises(BuildError) as caught:
        layers.warm(tmp_path, USER, ("sh", "-c", "echo no such setting; exit 3"), 1, lambda _: None)
    assert host_commands
    assert str(caught.value) == (
        "warm command 1 (`sh -c 'echo no such setting; exit 3'`) failed with exit code 3: no such setting; correct `warm` and run the"
        " same command again, the packages are kept"
    )
