"""What CRIU cannot save at a moment is saved a moment later; what it can never save is refused with the reason."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dart_server.hostd import containers, standstill
from dart_server.hostd.containers import ContainerManager
from dart_server.hostd.errors import HostdHostFault
from dart_server.hostd.linux import cgroups, rlimits, vfork
from dart_server.hostd.runtime.runc import Runc
from dart_server.hostd.storage import MAX_LAYERS

CREDENTIALS = "(00.065114) Error (criu/sk-queue.c:117): skqueue: Control messages in queue, not supported"
HALF_ENDED = "(00.031406) Error (criu/seize.c:882): Zombies with threads are not supported"
TERMINAL = "(00.049113) Error (criu/tty.c:2281): tty: ctty inheritance detected sid/pgrp 44, no PTY slave with sid/pgrp"


class FakeStorage:
    """Remembers what was asked of it."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def commit_layer(self, name: str, layer_id: str) -> None:
        self.calls.append("commit_layer")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for the images and logs of one snapshot; what stops and resumes the desktop leaves a line in `ran`."""

    def note(word: str, *, done: bool = True) -> bool:
        with (tmp_path / "ran").open("a") as ran:
            ran.write(word + "\n")
        return done

    monkeypatch.setattr(cgroups, "freeze", lambda group, timeout_s: note("freeze"))
    monkeypatch.setattr(cgroups, "thaw", lambda group: note("thaw"))
    monkeypatch.setattr(rlimits, "is_needed", lambda: False)
    monkeypatch.setattr(containers, "RETRY_WAITS_S", (0.01, 0.01))
    for name in ("images", "work"):
        (tmp_path / name).mkdir()
    return tmp_path


def manager(place: Path, said: str, failures: int) -> tuple[ContainerManager, FakeStorage]:
    """A manager of desktops whose first checkpoints fail with these words of CRIU; each fake command leaves a line in `ran`."""
    (place / "said").write_text(said + "\n")
    program = place / "fake-runc"
    program.write_text(
        "#!/bin/sh\n"
        f'for word in "$@"; do case $word in checkpoint) echo $word >>{place}/ran; break ;; esac; done\n'
        f'[ $word = checkpoint ] && [ "$(grep -c checkpoint {place}/ran)" -le {failures} ] || exit 0\n'
        f"cp {place}/said {place}/work/dump.log; touch {place}/images/half\nexit 1\n"
    )
    program.chmod(0o755)
    storage: Any = FakeStorage()
    layout: Any = SimpleNamespace(prefix="dart-no-such-prefix")
    return ContainerManager(layout, storage, Runc(program, place / "criu", place, place / "failure.log")), storage


def save(held: ContainerManager, place: Path) -> float:
    desktop: Any = SimpleNamespace(name="desk", restored=False, first_id=0)
    return held._save(desktop, place / "images", place / "work", "1")


@pytest.mark.parametrize("said", [CREDENTIALS, HALF_ENDED])
def test_a_desktop_in_a_state_that_passes_runs_on_and_is_saved_then(place: Path, said: str) -> None:
    held, storage = manager(place, said, failures=2)
    assert save(held, place) > 0
    assert (place / "ran").read_text().split() == ["freeze", "checkpoint", "thaw"] * 3
    assert storage.calls == ["commit_layer"]
    assert list((place / "images").iterdir()) == [], "half an attempt is left"


def test_a_queue_that_is_never_read_is_told_after_the_last_attempt(place: Path) -> None:
    held, storage = manager(place, CREDENTIALS, failures=9)
    with pytest.raises(HostdHostFault, match="Control messages in queue"):
        save(held, place)
    assert (place / "ran").read_text().split() == ["freeze", "checkpoint", "thaw"] * 3
    assert storage.calls == []


def test_a_terminal_at_a_password_prompt_is_refused_at_once_with_what_to_do(place: Path) -> None:
    held, _ = manager(place, TERMINAL, failures=9)
    with pytest.raises(HostdHostFault, match="ctty inheritance detected") as refused:
        save(held, place)
    assert "sudo does at its password prompt" in refused.value.hint
    assert "Answer the prompt or end the program" in refused.value.hint
    assert (place / "ran").read_text().split() == ["freeze", "checkpoint", "thaw"]


def test_a_desktop_that_cannot_be_stopped_is_not_saved(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held, storage = manager(place, "", failures=0)
    monkeypatch.setattr(cgroups, "freeze", lambda group, timeout_s: False)
    with pytest.raises(HostdHostFault, match="could not be frozen, so it was not saved"):
        save(held, place)
    assert not (place / "ran").exists()
    assert storage.calls == []


def test_a_desktop_that_stays_stopped_is_a_fault_of_the_host(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held, _ = manager(place, "", failures=0)
    monkeypatch.setattr(cgroups, "thaw", lambda group: False)
    with pytest.raises(HostdHostFault, match="could not be thawed"):
        save(held, place)


def test_a_desktop_is_saved_at_a_moment_when_no_process_starts_another(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, _ = manager(place, "", failures=0)
    found = iter([[7], [7], []])
    monkeypatch.setattr(vfork, "waiting", lambda pids: next(found))
    save(held, place)
    assert (place / "ran").read_text().split() == ["freeze", "thaw"] * 2 + ["freeze", "checkpoint", "thaw"]


def test_a_process_that_never_ends_starting_another_is_named(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held, _ = manager(place, "", failures=0)
    monkeypatch.setattr(vfork, "waiting", lambda pids: [7])
    monkeypatch.setattr(standstill, "FREEZE_TIMEOUT_S", 0.03)
    with pytest.raises(HostdHostFault, match="the process 7 of the desktop desk is starting another without end"):
        save(held, place)
    assert (place / "ran").read_text().split()[-1] == "thaw"


@pytest.mark.parametrize("in_thread", [False, True])
def test_a_process_that_waits_for_its_childs_program_is_found(tmp_path: Path, in_thread: bool) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    code = (
        "import os, sys, threading\n"
        "def spawn():\n"
        "    os.posix_spawn('/bin/true', ['true'], {}, "
        "file_actions=[(os.POSIX_SPAWN_OPEN, 3, sys.argv[1], os.O_RDONLY, 0)])\n"
        "    print('begun', flush=True)\n"
        + ("threading.Thread(target=spawn).start()\n" if in_thread else "spawn()\n")
        + "input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(fifo)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        deadline_s = time.monotonic() + 30
        while vfork.waiting([parent.pid]) != [parent.pid]:
            assert time.monotonic() < deadline_s, "the child stands at the pipe, and its parent is not seen to wait"
            time.sleep(0.01)
        os.close(os.open(fifo, os.O_WRONLY))
        assert parent.stdout.readline() == b"begun\n"
        assert vfork.waiting([parent.pid, 2**22 + 1]) == []
        parent.communicate(b"\n")


@pytest.mark.parametrize(("unified", "told"), [(True, ["cgroup-root /p/copy"]), (False, [])])
def test_criu_is_told_the_group_of_a_copy_where_runc_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unified: bool, told: list[str]
) -> None:
    monkeypatch.setattr(cgroups, "is_unified", lambda: unified)
    program = tmp_path / "fake-runc"
    program.write_text(f"#!/bin/sh\ncp {tmp_path}/criu.conf {tmp_path}/read; echo 7 >{tmp_path}/init.pid\n")
    program.chmod(0o755)
    held = Runc(program, tmp_path / "criu", tmp_path, tmp_path / "failure.log")
    assert held.restore("copy", tmp_path, tmp_path, tmp_path, "/p/copy") == 7
    lines = (tmp_path / "read").read_text().splitlines()
    assert [line for line in lines if line.startswith("cgroup-root")] == told
    assert "cgroup-root" not in (tmp_path / "criu.conf").read_text(), "the next checkpoint reads it, too"


def test_a_snapshot_that_could_not_be_restored_is_refused_before_it_is_saved(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, storage = manager(place, "", failures=0)
    layers = tuple(str(number) for number in range(MAX_LAYERS))
    monkeypatch.setattr(
        ContainerManager, "_running", lambda *_: SimpleNamespace(name="desk", layers=layers), raising=True
    )
    monkeypatch.setattr(cgroups, "is_frozen", lambda group: False)
    with pytest.raises(HostdHostFault, match="d1 stands on 40 snapshots, and no more can be restored"):
        held.checkpoint("d1", "s1")
    assert not (place / "ran").exists()
    assert storage.calls == []


def test_a_desktop_that_cannot_be_killed_does_not_keep_the_others(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held, _ = manager(place, "", failures=0)
    removed: list[str] = []

    def destroy(_: ContainerManager, desktop_id: str) -> dict[str, Any]:
        if desktop_id == "a":
            raise HostdHostFault("processes of the desktop a could not be killed")
        removed.append(desktop_id)
        return {}

    monkeypatch.setattr(ContainerManager, "destroy", destroy)
    held._desktops.update(dict.fromkeys(("a", "b"), SimpleNamespace()))  # type: ignore[arg-type]
    assert held.reap(frozenset()) == {"removed": ["b"]}
    assert removed == ["b"]
