"""The packages layer: what was finished is not done again."""

import os
import subprocess
import sys
import time
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


def test_packages_that_the_archive_lacks_are_told_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The archive is asked in mmdebstrap's setup hook, after the lists and before anything is installed."""
    (hook,) = [one for one in bootstrap.mmdebstrap_argv(RECIPE, tmp_path) if one.startswith("--setup-hook=")]
    assert hook.endswith("apt-get -q update && apt-get -q --simulate install dbus zenity >/dev/null")
    lines = [
        "E: Unable to locate package gtkhashh",
        "E: Package 'flash' has no installation candidate",
        "E: setup failed",
    ]
    failing = ["sh", "-c", f'printf "%s\\n" "{lines[0]}" "{lines[1]}" "{lines[2]}"; exit 1']
    monkeypatch.setattr(bootstrap, "mmdebstrap_argv", lambda *_: failing)
    with pytest.raises(BuildError, match=r"the archive has no package gtkhashh, flash; correct \[packages\]"):
        bootstrap.bootstrap(RECIPE, tmp_path / "layer", tmp_path / "log", lambda _: None)


def test_progress_tells_what_the_hook_does_in_place_of_its_command() -> None:
    said: list[str] = []
    bootstrap.Teller(said.append).line("I: running --setup-hook in shell: sh -c 'export APT_CONFIG=x; apt-get'")
    assert said == ["fetching the lists of packages, and looking for those of the recipe"]


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


RUNS = "import sys; from pathlib import Path; from imagebuild.bootstrap import Teller, run_logged; "
RUNS += "run_logged(['sh', '-c', 'echo $$; exec sleep 60'], Path(sys.argv[1]), Teller(print))"


def test_what_a_killed_builder_was_running_ends_with_it(tmp_path: Path) -> None:
    log = tmp_path / "build.log"
    environment = {**os.environ, "PYTHONPATH": str(Path(bootstrap.__file__).parents[1])}
    with subprocess.Popen([sys.executable, "-c", RUNS, str(log)], env=environment) as builder:
        limit_s = time.monotonic() + 20.0
        while True:
            children = Path(f"/proc/{builder.pid}/task/{builder.pid}/children").read_text().split()
            if children and b"sleep" in Path(f"/proc/{children[0]}/cmdline").read_bytes():
                break
            assert time.monotonic() < limit_s
            time.sleep(0.01)
        builder.kill()
    left = Path(f"/proc/{children[0]}")
    while left.exists() and "Z" not in (left / "stat").read_text().rsplit(")", 1)[1]:
        assert time.monotonic() < limit_s, "it goes on without its builder"
        time.sleep(0.01)
