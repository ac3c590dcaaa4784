"""The image store and the command line around it."""

import contextlib
import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import build
import pytest
from imagebuild import bootstrap
from imagebuild.errors import BuildError, UsageError
from imagebuild.layers import share
from imagebuild.manifest import Manifest, guest_digest, image_digest, recipe_digest, write_manifest
from imagebuild.recipe import read_recipe
from imagebuild.store import ImageStore, dart_home, remove_tree


def finished(store: ImageStore, digest: str, of_recipe: str = "r", at: str = "2026-01-01T00:00:00+00:00") -> None:
    """Publish an image with one file."""
    work = store.fresh_work("basic")
    (work / "rootfs").mkdir()
    (work / "rootfs" / "file").write_text(digest, encoding="utf-8")
    made = Manifest("basic", digest, of_recipe, "g", "1", "bookworm", "amd64", 5, 1, at, 1.0)
    write_manifest(made, work / "manifest.json")
    store.publish(work, "basic", digest)


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    (tmp_path / "images" / "basic").mkdir(parents=True)
    return ImageStore(tmp_path)


def test_home_is_chosen_by_flag_then_environment_then_default() -> None:
    assert dart_home("/a", {"DART_HOME": "/b"}) == Path("/a")
    assert dart_home(None, {"DART_HOME": "/b"}) == Path("/b")
    assert dart_home(None, {}) == Path.home() / ".local/share/dart"


def test_publishing_points_current_at_the_newest(store: ImageStore) -> None:
    finished(store, "aaa")
    finished(store, "bbb", at="2026-01-02T00:00:00+00:00")
    assert store.current("basic") == "bbb"
    assert (store.images / "basic" / "current" / "rootfs" / "file").read_text(encoding="utf-8") == "bbb"
    assert [one.digest for one in store.all()] == ["bbb", "aaa"]


def test_publishing_again_replaces_the_same_digest(store: ImageStore) -> None:
    finished(store, "aaa")
    (store.directory("basic", "aaa") / "rootfs" / "stale").write_text("", encoding="utf-8")
    finished(store, "aaa")
    assert not (store.directory("basic", "aaa") / "rootfs" / "stale").exists()
    assert not list((store.images / "basic").glob(".build-*"))


def test_leftovers_of_a_killed_build_go_with_the_next(store: ImageStore) -> None:
    leftover = store.images / "basic" / ".build-99999999"
    leftover.mkdir()
    store.fresh_work("basic")
    assert not leftover.exists()


def test_an_unfinished_directory_is_no_image(store: ImageStore) -> None:
    (store.directory("basic", "ccc") / "rootfs").mkdir(parents=True)
    assert store.finished("basic", "ccc") is None
    assert store.all() == []


def test_packages_are_shared_by_recipe_digest_only(store: ImageStore) -> None:
    finished(store, "aaa", of_recipe="one")
    assert store.same_packages("basic", "one") == store.directory("basic", "aaa") / "rootfs"
    assert store.same_packages("basic", "two") is None


def test_removing_the_current_image_removes_the_link(store: ImageStore) -> None:
    finished(store, "aaa")
    assert store.remove("basic", None) == ["aaa"]
    assert store.current("basic") is None
    with pytest.raises(UsageError, match="no image basic"):
        store.remove("basic", None)


def test_removing_the_last_build_leaves_no_file(store: ImageStore) -> None:
    finished(store, "aaa")
    finished(store, "bbb", at="2026-01-02T00:00:00+00:00")
    (store.packages_layer("basic", "p")).mkdir()
    store.build_log("basic").write_text("said", encoding="utf-8")
    with store.locked("basic"):
        pass
    store.remove("basic", "aaa")
    assert store.build_log("basic").exists()
    store.remove("basic", "bbb")
    assert list(store.images.iterdir()) == []


def test_an_image_that_another_process_has_just_removed_is_missing(
    store: ImageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished(store, "aaa")
    finished(store, "bbb", at="2026-01-02T00:00:00+00:00")
    right, other = store.locked, ImageStore(store.images.parent)

    @contextlib.contextmanager
    def second(name: str, *, wait: bool = True) -> Iterator[None]:
        other.remove("basic", "aaa")
        with right(name, wait=wait):
            yield

    monkeypatch.setattr(store, "locked", second)
    with pytest.raises(UsageError, match="there is no image basic aaa"):
        store.remove("basic", "aaa")
    assert [one.digest for one in store.all()] == ["bbb"]


def test_what_an_interrupted_removal_left_is_no_image(store: ImageStore) -> None:
    finished(store, "aaa")
    (store.images / "basic").rename(store.images / ".removed-basic-7")
    assert store.all() == []
    assert store.same_packages("basic", "r") is None
    finished_again = store.images / "basic"
    finished_again.mkdir()
    finished(store, "bbb")
    assert store.remove("basic", None) == ["bbb"]


def packages_left(store: ImageStore, digest: str, *, finished: bool = True) -> Path:
    """A packages layer, with one file."""
    layer = store.images / "basic" / f".packages-{digest}"
    (layer / "rootfs/usr/bin").mkdir(parents=True)
    (layer / "rootfs/usr/bin/dpkg").write_text("dpkg", encoding="utf-8")
    if finished:
        (layer / "done").touch()
    return layer


def test_what_a_failed_build_left_is_listed_and_removed(
    store: ImageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A warm command failed: all packages are there, no image."""
    monkeypatch.setattr(build, "become_root", lambda *_: None)
    for digest in (None, "0123456789ab"):
        packages_left(store, "0123456789ab")
        assert run(monkeypatch, "list", "--home", str(tmp_path)) == 0
        assert capsys.readouterr().out.split() == ["basic", "0123456789ab", "unfinished"]
        assert run(monkeypatch, "rm", "basic", *([digest] if digest else []), "--home", str(tmp_path)) == 0
        assert capsys.readouterr().out == "image basic: removed 0123456789ab\n"
        assert list(store.images.iterdir()) == []


def test_packages_of_a_finished_build_are_no_leftover(store: ImageStore) -> None:
    layer = packages_left(store, "used")
    share(layer / "rootfs", store.fresh_work("basic") / "rootfs")
    made = Manifest("basic", "aaa", "r", "g", "1", "bookworm", "amd64", 5, 1, "2026-01-01T00:00:00+00:00", 1.0)
    (work,) = (store.images / "basic").glob(".build-*")
    write_manifest(made, work / "manifest.json")
    store.publish(work, "basic", "aaa")
    half = packages_left(store, "half", finished=False)
    killed = store.images / "basic" / ".build-77"
    killed.mkdir()
    assert store.unfinished("basic") == {"build-77": killed, "half": half}
    assert store.remove("basic", "half") == ["half"]
    assert store.remove("basic", "build-77") == ["build-77"]
    assert store.current("basic") == "aaa"
    assert layer.is_dir()


def test_only_names_of_images_are_removed(store: ImageStore) -> None:
    for name in ("..", ".", "other", "basic/../basic"):
        with pytest.raises(UsageError, match="there is no image"):
            store.remove(name, None)
    assert (store.images / "basic").is_dir()


def test_an_image_that_is_being_built_is_not_removed(store: ImageStore) -> None:
    finished(store, "aaa")
    with store.locked("basic"), pytest.raises(BuildError, match="basic is being built"):
        store.remove("basic", None)
    assert store.current("basic") == "aaa"


def test_a_builder_that_waited_for_a_removal_locks_anew(store: ImageStore) -> None:
    finished(store, "aaa")
    entered = threading.Event()

    def build_after() -> None:
        with store.locked("basic"):
            entered.set()
            store.fresh_work("basic")

    with store.locked("basic"):
        waiting = threading.Thread(target=build_after)
        waiting.start()
        remove_tree(store.images / "basic")
    waiting.join(10)
    assert entered.is_set()
    assert (store.images / "basic" / ".lock").exists()


def test_a_directory_that_goes_while_it_is_looked_at_is_made_anew(
    store: ImageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`mkdir` finds the directory, and it is removed before `mkdir` asks whether it is one."""
    made = Path.mkdir
    left = [FileExistsError(17, "File exists")]

    def mkdir(self: Path, *args: Any, **kwargs: Any) -> None:
        if left:
            raise left.pop()
        made(self, *args, **kwargs)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with store.locked("basic"):
        assert (store.images / "basic").is_dir()
    monkeypatch.undo()
    (store.images / "taken").write_text("no directory")
    with pytest.raises(FileExistsError), store.locked("taken"):
        pass


def test_an_image_in_use_is_neither_removed_nor_replaced(store: ImageStore) -> None:
    finished(store, "aaa")
    place = store.directory("basic", "aaa")
    with contextlib.ExitStack() as held:
        used = os.open(place, os.O_RDONLY)
        held.callback(os.close, used)
        fcntl.flock(used, fcntl.LOCK_SH)
        for change in (lambda: store.remove("basic", "aaa"), lambda: finished(store, "aaa")):
            with pytest.raises(BuildError, match=r"basic aaa is used by running desktops.* `dart-farm stop`"):
                change()
            assert (place / "rootfs" / "file").is_file()
            assert store.current("basic") == "aaa"
    store.remove("basic", "aaa")


def test_a_disk_that_a_machine_reads_is_not_removed(store: ImageStore) -> None:
    finished(store, "aaa")
    disk = store.directory("basic", "aaa") / "disk.qcow2"
    disk.write_bytes(b"disk")
    hold = f"import fcntl, sys; f = open({str(disk)!r}); fcntl.lockf(f, fcntl.LOCK_SH, 1, 100); print(1, flush=True); sys.stdin.read()"
    reader = subprocess.Popen([sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert reader.stdout is not None
    assert reader.stdout.readline() == b"1\n"
    with pytest.raises(BuildError, match="used by running desktops"):
        store.remove("basic", None)
    reader.communicate()
    assert store.remove("basic", None) == ["aaa"]


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["build.py", *arguments])
    return build.main()


def test_an_image_that_is_there_is_not_built_again(
    store: ImageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    of_recipe = recipe_digest(read_recipe(build.RECIPES / "basic.toml"), build.RECIPES / "basic")
    finished(store, image_digest(of_recipe, guest_digest(build.GUEST)), of_recipe)
    assert run(monkeypatch, "build", "basic", "--home", str(tmp_path)) == 0
    assert "image basic: up to date" in capsys.readouterr().out


def test_an_unknown_recipe_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "build", "nope", "--home", str(tmp_path)) == 2
    assert "no recipe 'nope'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_missing_tool_is_named_with_its_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "CLEAN_PATH", str(tmp_path))
    with pytest.raises(UsageError, match="apt-get install -y mmdebstrap"):
        bootstrap.check_host(tmp_path)


def test_too_little_disk_is_told_before_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap.shutil, "which", lambda *_, **__: "/usr/bin/mmdebstrap")
    monkeypatch.setattr(bootstrap, "KEYRING", Path(__file__))
    monkeypatch.setattr(bootstrap, "MIN_FREE_BYTES", 1 << 62)
    with pytest.raises(UsageError, match="MiB free"):
        bootstrap.check_host(tmp_path)


def test_the_log_of_a_failed_build_stays_with_the_images(store: ImageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "mmdebstrap_argv", lambda *_: ["sh", "-c", "echo E: broken; exit 1"])
    recipe = read_recipe(build.RECIPES / "basic.toml")
    log = store.build_log("basic")
    assert log.is_relative_to(store.images)
    with pytest.raises(BuildError, match=f"broken.*{log}"):
        build.fill(recipe, build.RECIPES / "basic", None, store.fresh_work("basic"), store, build.Progress("basic"))
    assert log.read_text(encoding="utf-8") == "E: broken\n"


def test_every_path_filter_reaches_dpkg(tmp_path: Path) -> None:
    recipe = read_recipe(build.RECIPES / "basic.toml")
    argv = bootstrap.mmdebstrap_argv(recipe, tmp_path / "rootfs")
    assert {f"--dpkgopt=path-exclude={path}" for path in recipe.exclude_paths} <= set(argv)
    assert argv.index(recipe.suite) + 1 == argv.index(str(tmp_path / "rootfs"))


def test_a_shared_tree_is_not_changed_by_what_writes_in_place(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    for name in ("etc/group-", "var/lib/dpkg/lock", "usr/bin/tool"):
        (source / name).parent.mkdir(parents=True)
        (source / name).write_text("before", encoding="utf-8")
    share(source, target)
    for name in ("etc/group-", "var/lib/dpkg/lock"):
        with (target / name).open("r+", encoding="utf-8") as file:
            file.write("after!")
        assert (source / name).read_text(encoding="utf-8") == "before"
    assert (target / "usr/bin/tool").stat().st_ino == (source / "usr/bin/tool").stat().st_ino


def test_a_recipe_elsewhere_is_named_by_its_path(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text("", encoding="utf-8")
    assert build.recipe_file("basic") == build.RECIPES / "basic.toml"
    assert build.recipe_file(str(mine)) == mine
    (tmp_path / "basic.toml").write_text("", encoding="utf-8")
    for wrong, words in (
        (str(tmp_path / "basic.toml"), "call this one otherwise"),
        (str(tmp_path / "mine"), "neither the name of a recipe nor the path"),
        (str(tmp_path / "absent.toml"), "there is no file"),
        ("../basic", "neither the name"),
    ):
        with pytest.raises(UsageError, match=words):
            build.recipe_file(wrong)


def test_a_recipe_elsewhere_is_built_into_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, home = tmp_path / "mine.toml", tmp_path / "home"
    mine.touch()
    built: list[tuple[Path, Path]] = []

    def record(file: Path, into: Path, force: bool) -> int:
        built.append((file, into))
        return 0

    monkeypatch.setattr(build, "build", record)
    assert run(monkeypatch, "build", str(mine), "--home", str(home)) == 0
    assert built == [(mine, home)]
