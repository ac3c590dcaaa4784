"""The packages layer: what was finished is not done again."""

from pathlib import Path

import pytest
from imagebuild import bootstrap
from imagebuild.errors import BuildError
from imagebuild.recipe import Recipe, User

RECIPE = Recipe(
    "small",
    "bookworm",
    "http://m",
    "http://s",
    ("dbus", "zenity"),
    (),
    (),
    User("user", 1000, "p", ("sudo",)),
)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commands that a build ran, in order; the base is made by a shell command, the image's programs do nothing."""
    commands: list[str] = []

    def base(_: Recipe, target: Path) -> list[str]:
        commands.append("mmdebstrap")
        return ["mkdir", "-p", f"{target}/usr/sbin", f"{target}/etc"]

    def inside(_: Path, argv: list[str]) -> list[str]:
        commands.append(" ".join(argv))
        return ["false"] if "failing" in argv else ["echo", "Setting up", argv[0]]

    monkeypatch.setattr(bootstrap, "mmdebstrap_argv", base)
    monkeypatch.setattr(bootstrap, "inside", inside)
    return commands


def test_all_packages_are_installed_and_the_layer_is_taken_over_later(tmp_path: Path, ran: list[str]) -> None:
    rootfs = bootstrap.bootstrap(RECIPE, tmp_path / "layer", tmp_path / "log", lambda _: None)
    assert ran[0] == "mmdebstrap"
    assert any(command.endswith("install dbus zenity") and "--download-only" not in command for command in ran)
    assert not (rootfs / "etc/resolv.conf").exists()
    assert (rootfs / "usr/sbin/policy-rc.d").stat().st_mode & 0o111
    ran.clear()
    assert bootstrap.bootstrap(RECIPE, tmp_path / "layer", tmp_path / "log", lambda _: None) == rootfs
    assert ran == []


def test_an_interrupted_build_keeps_its_base_and_lets_dpkg_go_on(tmp_path: Path, ran: list[str]) -> None:
    broken = Recipe("small", "bookworm", "http://m", "http://s", ("failing",), (), (), RECIPE.user)
    with pytest.raises(BuildError, match="log is"):
        bootstrap.bootstrap(broken, tmp_path / "layer", tmp_path / "log", lambda _: None)
    (tmp_path / "layer/rootfs/kept").touch()
    ran.clear()
    said: list[str] = []
    rootfs = bootstrap.bootstrap(RECIPE, tmp_path / "layer", tmp_path / "log", said.append)
    assert "mmdebstrap" not in ran
    assert ran[0] == "dpkg --configure -a"
    assert (rootfs / "kept").exists()
    assert said[0] == "going on with the build that was interrupted"


def test_a_base_that_was_not_finished_is_made_again(tmp_path: Path, ran: list[str]) -> None:
    (tmp_path / "layer/base/half").mkdir(parents=True)
    rootfs = bootstrap.bootstrap(RECIPE, tmp_path / "layer", tmp_path / "log", lambda _: None)
    assert not (rootfs / "half").exists()


def test_progress_is_counted_against_what_apt_planned() -> None:
    said: list[str] = []
    teller = bootstrap.Teller(said.append)
    teller.line("0 upgraded, 120 newly installed, 0 to remove and 0 not upgraded.")
    for number in range(120):
        teller.line(f"Unpacking p{number} (1) ...")
    assert said == ["unpacked 50 of 120 packages", "unpacked 100 of 120 packages"]


def test_a_resumed_build_counts_what_apt_did_not_plan() -> None:
    said: list[str] = []
    teller = bootstrap.Teller(said.append)
    for number in range(50):
        teller.line(f"Setting up p{number} (1) ...")
    assert said == ["set up 50 packages"]
