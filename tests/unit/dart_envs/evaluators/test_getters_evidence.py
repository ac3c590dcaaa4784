"""Getters take what the host sees of a desktop, and nothing that a program inside says of it."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from dart_envs.clock import SYSTEM_CLOCK
from dart_envs.errors import TOO_LARGE_CODE, FarmError, GuestError
from dart_envs.evaluators.artifacts import GuestFile, InvalidArtifact
from dart_envs.evaluators.evidence import read_content, run_program
from dart_envs.evaluators.getters import GETTERS, GetterContext
from dart_envs.setup.protected import PROTECTED_GID
from dart_envs.testing.fake_desktop import FakeDesktop, fake_reply
from dart_server.wire import EvidenceAnswer, FileFacts, ListeningPort, ProcessFacts

SLEEP = "/usr/bin/sleep"


def facts(kind: str, path: str, **more: Any) -> FileFacts:
    return FileFacts(kind=kind, path=path, nbytes=1, mode=0o640, uid=1000, gid=1000, modified_s=1.0, **more)


def process(pid: int, executable: str, *argv: str, **more: Any) -> ProcessFacts:
    known = {"uid": 1000, "state": "S", "started_s": 1.0, "from_image": True, "code_from_image": True}
    return ProcessFacts(pid=pid, executable=executable, argv=list(argv), **known | more)


IMAGE_PROGRAM = EvidenceAnswer(facts=facts("file", "program", from_image=True))
PROGRAMS = ("curl", "dbus-send", "xfconf-query", "python3", "true", "env")


def seen(**answers: EvidenceAnswer) -> FakeDesktop:
    """A desktop whose programs all lie."""
    desktop = FakeDesktop()
    desktop.seen_from_outside = {f"/usr/bin/{name}": IMAGE_PROGRAM for name in PROGRAMS} | answers
    for name in ("stat", "find", "cat", "ps", "sh", "sha256sum"):
        desktop.programs[name] = lambda *_: pytest.fail("a program of the desktop was asked")
    return desktop


def path_seen(path: str, answer: EvidenceAnswer) -> FakeDesktop:
    desktop = seen()
    assert desktop.seen_from_outside is not None
    desktop.seen_from_outside[path] = answer
    return desktop


async def get(desktop: FakeDesktop, type: str, **config: Any) -> Any:
    return await GETTERS[type](GetterContext(desktop, SYSTEM_CLOCK), {"type": type, **config})


@pytest.mark.parametrize("path", ["a", "./a", "~/a"])
async def test_a_relative_path_of_a_getter_is_below_the_home_folder(path: str) -> None:
    desktop = seen()
    desktop.state.files["/home/user/a"] = b"real"
    assert await get(desktop, "vm_file", path=path) == GuestFile("/home/user/a", b"real")


async def test_a_file_is_what_the_host_reads() -> None:
    desktop = seen()
    desktop.state.files["/home/user/a"] = b"real"
    assert await get(desktop, "vm_file", path="/home/user/a") == GuestFile("/home/user/a", b"real")
    with pytest.raises(InvalidArtifact, match="/home/user/b does not exist"):
        await get(desktop, "vm_file", path="/home/user/b")
    for error in ("not_regular_file", "not_readable", "too_large", "too_slow"):
        with pytest.raises(InvalidArtifact, match="/x"):
            await get(path_seen("/x", EvidenceAnswer(error=error)), "vm_file", path="/x")


async def test_a_folder_is_what_the_host_lists() -> None:
    entries = [
        facts("folder", "b"),
        facts("file", "b/c", sha256="00"),
        facts("pipe", "p"),
        facts("link", "l", target="/z"),
    ]
    desktop = path_seen("/w", EvidenceAnswer(entries=entries))
    assert await get(desktop, "list_directory", path="/w") == ["b/", "b/c", "l", "p"]
    with pytest.raises(InvalidArtifact, match="/w/p is a pipe"):
        await get(desktop, "file_names", path="/w")
    plain = path_seen("/w", EvidenceAnswer(entries=[one for one in entries if one.kind != "pipe"]))
    assert await get(plain, "file_names", path="/w") == ["b/", "l"]
    assert await get(desktop, "copies", sha256=["00"], below=["/w"]) == ["/w/b/c"]
    assert await get(desktop, "copies", sha256=["01"], below=["/w"]) == []
    assert await get(desktop, "file_tree", path="/w") == {
        "b": {"kind": "folder", "mode": "640"},
        "b/c": {"kind": "file", "mode": "640", "sha256": "00"},
        "p": {"kind": "other", "mode": "640"},
        "l": {"kind": "link", "mode": "640", "target": "/z"},
    }
    with pytest.raises(InvalidArtifact, match="too_many_entries"):
        await get(path_seen("/w", EvidenceAnswer(error="too_many_entries")), "file_tree", path="/w")


async def test_the_trash_is_read_from_outside() -> None:
    trash = "/home/user/.local/share/Trash"
    digest = hashlib.sha256(b"x").hexdigest()
    desktop = path_seen(f"{trash}/info", EvidenceAnswer(entries=[facts("file", "a b.trashinfo"), facts("file", "odd")]))
    assert desktop.seen_from_outside is not None
    desktop.seen_from_outside[f"{trash}/files"] = EvidenceAnswer(entries=[facts("file", "a b", sha256=digest)])
    desktop.state.files[f"{trash}/info/a b.trashinfo"] = (
        b"[Trash Info]\nPath=/home/user/a%20b\nDeletionDate=2026-01-01T00:00:00\n"
    )
    assert await get(desktop, "trash") == {"/home/user/a b": {"kind": "file", "mode": "640", "sha256": digest}}
    assert await get(path_seen(f"{trash}/info", EvidenceAnswer(error="not_found")), "trash") == {}


async def test_a_process_is_what_it_executes() -> None:
    running = [
        process(2, SLEEP, "kite-worker", "9"),
        process(3, "/tmp/sleep", "drum-worker", "9", from_image=False),
        process(4, "/usr/bin/python3.11", "moon-worker", "9"),
        process(5, SLEEP, "wolf-worker", "9", state="Z"),
        process(6, SLEEP, "lamp-worker", "9", state="T"),
    ]
    desktop = seen(processes=EvidenceAnswer(processes=running))
    assert await get(desktop, "processes", matching="-worker 9$", executable=SLEEP) == [
        "kite-worker 9",
        "lamp-worker 9",
    ]
    assert len(await get(desktop, "processes", matching="-worker 9$")) == 4


@pytest.mark.parametrize("error", ["too_slow", "too_large"])
async def test_processes_that_are_too_many_to_look_at_prove_nothing(error: str) -> None:
    """A list that cannot be had is not an empty one: "it has ended" would be rewarded."""
    desktop = seen(processes=EvidenceAnswer(error=error))
    assert desktop.seen_from_outside is not None
    desktop.seen_from_outside["/w"] = EvidenceAnswer(entries=[])
    for type, config in {
        "processes": {"matching": "worker"},
        "watched_folders": {"path": "/w", "executable": SLEEP},
    }.items():
        with pytest.raises(InvalidArtifact, match=error):
            await get(desktop, type, **config)


class Growing(FakeDesktop):
    """A desktop without evidence from outside, whose file grows after its size was asked for."""

    grown: bytes | Exception = b""

    async def exec(self, argv: list[str], **more: Any) -> Any:
        if "/usr/bin/stat" in argv:
            return fake_reply("4 regular file")
        return await super().exec(argv, **more)

    async def read_file(self, path: str) -> bytes | None:
        if isinstance(self.grown, Exception):
            raise self.grown
        return self.grown


async def test_a_file_that_grows_while_it_is_read_is_the_policys() -> None:
    desktop = Growing()
    desktop.grown = b"fine"
    assert await read_content(desktop, "/a", 8) == b"fine"
    for grown in (b"too long by far", GuestError("The answer has 300 MiB.", code=TOO_LARGE_CODE)):
        desktop.grown = grown
        with pytest.raises(InvalidArtifact, match="/a"):
            await read_content(desktop, "/a", 8)


async def test_a_program_is_run_by_its_path_without_the_sessions_environment_and_only_unchanged() -> None:
    ran: list[list[str]] = []

    class Recording(FakeDesktop):
        async def exec(self, argv: list[str], **more: Any) -> Any:
            ran.append(argv)
            return await super().exec(argv, **more)

    desktop = Recording()
    desktop.programs["true"] = lambda *_: fake_reply("done")
    desktop.seen_from_outside = {"/usr/bin/true": IMAGE_PROGRAM, "/usr/bin/env": IMAGE_PROGRAM}
    assert (await run_program(desktop, ["/usr/bin/true", "x"])).stdout == "done"
    assert ran[0][:2] == ["/usr/bin/env", "-i"]
    assert ran[0][-2:] == ["/usr/bin/true", "x"]
    assert all("=" in word for word in ran[0][2:-2])
    for answer in (EvidenceAnswer(facts=facts("file", "true", from_image=False)), EvidenceAnswer(error="not_found")):
        for path in ("/usr/bin/true", "/usr/bin/env"):
            desktop.seen_from_outside = {"/usr/bin/true": IMAGE_PROGRAM, "/usr/bin/env": IMAGE_PROGRAM, path: answer}
            with pytest.raises(InvalidArtifact):
                await run_program(desktop, ["/usr/bin/true"])
    changed = EvidenceAnswer(facts=facts("file", "ld.so.preload", from_image=False))
    desktop.seen_from_outside = {
        "/usr/bin/true": IMAGE_PROGRAM,
        "/usr/bin/env": IMAGE_PROGRAM,
        "/etc/ld.so.preload": changed,
    }
    with pytest.raises(InvalidArtifact):
        await run_program(desktop, ["/usr/bin/true"])
    assert len(ran) == 1


VLC = process(7, "/usr/bin/vlc", "vlc", listening=[ListeningPort(address="127.0.0.1", port=8080)])


@pytest.mark.parametrize(
    ("running", "scripts", "good"),
    [
        ([VLC], False, True),
        ([VLC], True, False),
        ([], False, False),
        ([VLC.model_copy(update={"executable": "/usr/bin/python3.11"})], False, False),
        ([VLC.model_copy(update={"code_from_image": False})], False, False),
        ([VLC, VLC.model_copy(update={"pid": 8})], False, False),
    ],
)
async def test_only_the_player_itself_answers_for_the_player(
    running: list[ProcessFacts], scripts: bool, good: bool
) -> None:
    desktop = seen(processes=EvidenceAnswer(processes=running))
    desktop.programs["curl"] = lambda *_: fake_reply('{"state": "playing", "information": {}}')
    assert desktop.seen_from_outside is not None
    if scripts:
        desktop.seen_from_outside["/home/user/.local/share/vlc/lua"] = EvidenceAnswer(facts=facts("folder", "lua"))
    if good:
        assert (await get(desktop, "vlc_state"))["state"] == "playing"
    else:
        with pytest.raises(InvalidArtifact):
            await get(desktop, "vlc_state")


@pytest.mark.parametrize(
    ("executable", "code", "good"),
    [
        ("/usr/lib/x86_64-linux-gnu/xfce4/xfconf/xfconfd", True, True),
        ("/usr/lib/x86_64-linux-gnu/xfce4/xfconf/xfconfd", False, False),
        ("/home/user/usr/lib/x/xfce4/xfconf/xfconfd", True, False),
        ("/usr/bin/python3.11", True, False),
    ],
)
async def test_only_the_settings_daemon_answers_for_settings(executable: str, code: bool, good: bool) -> None:
    desktop = seen(processes=EvidenceAnswer(processes=[process(35, executable, "xfconfd", code_from_image=code)]))
    desktop.programs["dbus-send"] = lambda *_: fake_reply("   uint32 35\n")
    desktop.programs["xfconf-query"] = lambda *_: fake_reply("4\n")
    if good:
        assert await get(desktop, "xfconf", channel="xfwm4", property="/a") == "4"
    else:
        with pytest.raises(InvalidArtifact):
            await get(desktop, "xfconf", channel="xfwm4", property="/a")


async def test_a_farm_that_fails_is_not_a_desktop_without_evidence() -> None:
    desktop = seen()
    desktop.fail_next("evidence", FarmError("away", code="unreachable"))
    with pytest.raises(FarmError, match="away"):
        await get(desktop, "vm_file", path="/home/user/a")


THUNAR = "/usr/bin/thunar"


async def test_a_window_belongs_to_the_program_that_opened_it() -> None:
    running = [
        process(5, THUNAR, "thunar"),
        process(6, "/usr/bin/python3.11", "thunar"),
        process(7, THUNAR, code_from_image=False),
    ]
    desktop = seen(processes=EvidenceAnswer(processes=running))
    listed = [["Kite - Thunar", "thunar.Thunar", pid] for pid in (5, 6, 7, 0)] + [["Kite", "xterm.XTerm", 5]]
    desktop.programs["python3"] = lambda *_: fake_reply(json.dumps(listed))
    config = {"by_class": "thunar", "executable": THUNAR}
    assert await get(desktop, "window_titles", **config) == ["Kite - Thunar"]
    desktop.programs["python3"] = lambda *_: fake_reply("Traceback")
    with pytest.raises(InvalidArtifact):
        await get(desktop, "window_titles", **config)


async def test_a_folder_that_is_shown_is_watched_by_the_program_itself() -> None:
    folders = [facts("folder", name, identity=f"9:{n}") for n, name in enumerate(("Drum", "Drum/Kite", "Kite", "Moon"))]
    running = [process(5, THUNAR, watched=["9:1", "9:2"]), process(6, "/usr/bin/python3.11", watched=["9:3"])]
    desktop = seen(processes=EvidenceAnswer(processes=running))
    assert desktop.seen_from_outside is not None
    desktop.seen_from_outside["/w"] = EvidenceAnswer(entries=folders)
    assert await get(desktop, "watched_folders", path="/w", executable=THUNAR) == ["Kite"]
    with pytest.raises(InvalidArtifact):
        await get(desktop, "watched_folders", path="/none", executable=THUNAR)


async def test_what_the_task_started_is_known_by_the_group_that_the_host_tells() -> None:
    running = [
        process(5, THUNAR, gid=PROTECTED_GID, watched=["9:0"]),
        process(6, THUNAR, gid=1000, watched=["9:1"]),
        process(7, SLEEP, "kite-worker", gid=PROTECTED_GID),
        process(8, SLEEP, "drum-worker", gid=1000),
    ]
    desktop = seen(processes=EvidenceAnswer(processes=running))
    assert desktop.seen_from_outside is not None
    folders = [facts("folder", name, identity=f"9:{n}") for n, name in enumerate(("Drum", "Kite"))]
    desktop.seen_from_outside["/w"] = EvidenceAnswer(entries=folders)
    assert await get(desktop, "watched_folders", path="/w", executable=THUNAR, protected=True) == ["Drum"]
    workers = {"matching": "-worker$", "executable": SLEEP, "protected": True}
    assert await get(desktop, "processes", **workers) == ["kite-worker"]
    stopped = [process(7, SLEEP, "kite-worker", gid=PROTECTED_GID, state="T")]
    with pytest.raises(InvalidArtifact, match="stopped"):
        await get(seen(processes=EvidenceAnswer(processes=stopped)), "processes", **workers)


async def test_a_player_plays_what_it_has_open() -> None:
    said = '{"state": "paused", "information": {"category": {"meta": {"filename": "a.wav"}}}}'
    for open_files, name in (["/m/a.wav"], "a.wav"), (["/m/b.wav"], ""):
        player = process(
            5, "/usr/bin/vlc", listening=[ListeningPort(address="127.0.0.1", port=8080)], open_files=open_files
        )
        desktop = seen(processes=EvidenceAnswer(processes=[player]))
        desktop.programs["curl"] = lambda *_: fake_reply(said)
        assert (await get(desktop, "vlc_state"))["file"] == name


async def test_files_that_are_there_and_hold_something() -> None:
    desktop = path_seen("/a", EvidenceAnswer(facts=facts("file", "a")))
    assert desktop.seen_from_outside is not None
    empty = FileFacts(kind="file", nbytes=0, mode=0o640, uid=1, gid=1, modified_s=1.0)
    desktop.seen_from_outside |= {"/b": EvidenceAnswer(facts=empty), "/c": EvidenceAnswer(facts=facts("pipe", "c"))}
    assert await get(desktop, "present_files", paths=["/a", "/b", "/c", "/d"]) == ["/a", "/c"]
