"""Metrics and getters of the suite `system`, on archives made here and on a scripted desktop."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from typing import Any

import pytest
from fake_window_desktop import FakeWindowDesktop, ManualClock, reply

from dart_envs.errors import EvaluatorError
from dart_envs.evaluators.artifacts import GuestFile, InvalidArtifact
from dart_envs.evaluators.getters import GETTERS, GetterContext
from dart_envs.evaluators.metrics import METRICS
from dart_envs.evaluators.metrics import system as metrics


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def zipped(files: dict[str, str], **options: Any) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", **options) as archive:
        archive.mkdir("box")
        for name, text in files.items():
            archive.writestr(name, text)
    return made.getvalue()


def tarred(files: dict[str, str], mode: str = "w:gz") -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode=mode) as archive:  # type: ignore[call-overload]
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    return made.getvalue()


FILES = {"box/a.txt": "one", "box/b.txt": "two"}
SUMS = {name: sha(text) for name, text in FILES.items()}


def judged(content: bytes, form: str) -> float:
    return METRICS["archive_is"](GuestFile("/x", content), {"format": form, "files": SUMS}, {})


def test_archives_are_judged_by_every_file_in_them() -> None:
    assert judged(zipped(FILES), "zip") == 1
    assert judged(tarred(FILES), "tar.gz") == 1
    assert judged(tarred({f"./{name}": text for name, text in FILES.items()}, "w:xz"), "tar.xz") == 1
    assert judged(zipped(FILES | {"box/c.txt": ""}), "zip") == 0
    assert judged(zipped({"box/a.txt": "one"}), "zip") == 0
    assert judged(tarred(FILES | {"box/b.txt": "2"}), "tar.gz") == 0


@pytest.mark.parametrize(
    ("content", "form"),
    [
        (b"", "zip"),
        (zipped(FILES), "tar.gz"),
        (tarred(FILES), "zip"),
        (tarred(FILES), "tar.xz"),
        (zipped(FILES)[:60], "zip"),
        (tarred(FILES)[:60], "tar.gz"),
        (tarred(FILES, "w:xz")[:80], "tar.xz"),
    ],
    ids=["nothing", "zip-as-gz", "tar-as-zip", "gz-as-xz", "cut-zip", "cut-gz", "cut-xz"],
)
def test_a_broken_archive_or_one_of_another_kind_is_spoiled(content: bytes, form: str) -> None:
    with pytest.raises(InvalidArtifact):
        judged(content, form)


def test_an_archive_that_unpacks_to_more_than_any_answer_needs_is_spoiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MAX_UNPACKED_BYTES", 1_000_000)
    monkeypatch.setattr(metrics, "MAX_MEMBERS", 50)
    huge = zipped({"bomb": "0" * (metrics.MAX_UNPACKED_BYTES + 1)}, compression=zipfile.ZIP_DEFLATED)
    assert len(huge) < 10_000
    with pytest.raises(InvalidArtifact, match="more than any answer"):
        judged(huge, "zip")
    many = zipped({f"{number}": "" for number in range(metrics.MAX_MEMBERS + 1)})
    with pytest.raises(InvalidArtifact, match="more than any answer"):
        judged(many, "zip")


TREE = {"a.txt": {"kind": "file", "mode": "644", "sha256": sha("one")}, "b": {"kind": "folder", "mode": "755"}}


@pytest.mark.parametrize(
    ("rules", "score"),
    [
        ({"entries": {"a.txt": {"sha256": sha("one")}, "b": {"kind": "folder"}}}, 1),
        ({"entries": {"a.txt": {"mode": "644"}}, "others": True}, 1),
        ({"entries": {"a.txt": {"mode": "644"}}}, 0),
        ({"entries": {"a.txt": {"mode": "600"}, "b": {}}}, 0),
        ({"entries": {"a.txt": {}, "b": {"sha256": sha("")}}}, 0),
        ({"entries": {"a.txt": {}, "b": {}, "c": {}}}, 0),
    ],
)
def test_trees(rules: dict[str, Any], score: float) -> None:
    assert METRICS["tree_is"](TREE, rules, {}) == score


def test_settings_files() -> None:
    text = "[core]\nvolume=3\n#loop=1\nrandom=0 \n loop=1\nloop =1\nvolume=5\n"

    def says(**expected: str) -> float:
        return METRICS["settings_are"](GuestFile("/rc", text.encode()), {"expected": expected}, {})

    assert says(volume="5", random="0") == 1
    assert says(volume="3") == 0
    assert says(loop="1") == 0


def context(desktop: FakeWindowDesktop) -> GetterContext:
    return GetterContext(desktop, ManualClock())


async def test_a_tree_is_read_with_kinds_modes_targets_and_sums() -> None:
    desktop = FakeWindowDesktop()
    facts = "3\t1000\t1000\t1.5"
    listing = f"f\t644\t{facts}\t\ta b.txt\0d\t755\t{facts}\t\tbox\0l\t777\t{facts}\t/x\tlink\0"
    desktop.programs["find"] = lambda _desktop, _args, _stdin: reply(listing)
    desktop.other_script = lambda: reply(f"{sha('one')}  ./a b.txt\0")
    assert await GETTERS["file_tree"](context(desktop), {"type": "file_tree", "path": "/w"}) == {
        "a b.txt": {"kind": "file", "mode": "644", "sha256": sha("one")},
        "box": {"kind": "folder", "mode": "755"},
        "link": {"kind": "link", "mode": "777", "target": "/x"},
    }
    desktop.programs["find"] = lambda _desktop, _args, _stdin: reply("", returncode=1, stderr="no such folder")
    with pytest.raises(InvalidArtifact, match="cannot be listed"):
        await GETTERS["file_tree"](context(desktop), {"type": "file_tree", "path": "/w"})
    desktop.programs["find"] = lambda _desktop, _args, _stdin: reply(
        "".join(f"f\t6\t{facts}\t\t{n}\0" for n in range(2001))
    )
    with pytest.raises(InvalidArtifact, match="more than any answer"):
        await GETTERS["file_tree"](context(desktop), {"type": "file_tree", "path": "/w"})


async def test_processes_that_are_dead_do_not_count_and_stopped_ones_do() -> None:
    desktop = FakeWindowDesktop()
    listing = "1 S 1000 kite-worker 5\n2 T 61018 drum-worker 5\n3 Z 61018 wolf-worker 5\n4 R 1000 ps -e kite-worker\n"
    desktop.programs["ps"] = lambda _desktop, _args, _stdin: reply(listing)
    config = {"type": "processes", "matching": "^[a-z]+-worker 5$"}
    assert await GETTERS["processes"](context(desktop), config) == ["drum-worker 5", "kite-worker 5"]
    assert await GETTERS["processes"](context(desktop), config | {"protected": True}) == ["drum-worker 5"]
    with pytest.raises(EvaluatorError, match="matching"):
        await GETTERS["processes"](context(desktop), {"type": "processes"})


async def test_a_setting_that_is_not_set_is_spoiled() -> None:
    desktop = FakeWindowDesktop()
    desktop.programs["xfconf-query"] = lambda _desktop, args, _stdin: (
        reply("4\n") if "/a" in args else reply(returncode=1)
    )
    assert await GETTERS["xfconf"](context(desktop), {"type": "xfconf", "channel": "c", "property": "/a"}) == "4"
    with pytest.raises(InvalidArtifact, match="c/b is not set"):
        await GETTERS["xfconf"](context(desktop), {"type": "xfconf", "channel": "c", "property": "/b"})


def test_an_access_list_says_more_than_a_mode() -> None:
    held = {"a": {"kind": "file", "mode": "640", "access_list": True}}
    assert METRICS["tree_is"](held, {"entries": {"a": {"kind": "file"}}}, {}) == 1
    assert METRICS["tree_is"](held, {"entries": {"a": {"kind": "file", "mode": "640"}}}, {}) == 0
