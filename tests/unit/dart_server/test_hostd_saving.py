"""What CRIU cannot save at a moment is saved a moment later; what it can never save is refused with the reason."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dart_server.hostd import containers
from dart_server.hostd.containers import ContainerManager
from dart_server.hostd.errors import HostdHostFault
from dart_server.hostd.linux import cgroups, rlimits
from dart_server.hostd.runtime.runc import Runc

CREDENTIALS = "(00.065114) Error (criu/sk-queue.c:117): skqueue: Control messages in queue, not supported"
TERMINAL = "(00.049113) Error (criu/tty.c:2281): tty: ctty inheritance detected sid/pgrp 44, no PTY slave with sid/pgrp"


class FakeStorage:
    """Remembers what was asked of it."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def commit_layer(self, name: str, layer_id: str) -> None:
        self.calls.append("commit_layer")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for the images and logs of one snapshot."""
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
        f'for word in "$@"; do case $word in pause|resume|checkpoint) echo $word >>{place}/ran; break ;; esac; done\n'
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


def test_a_desktop_whose_programs_pass_credentials_runs_on_and_is_saved_then(place: Path) -> None:
    held, storage = manager(place, CREDENTIALS, failures=2)
    assert save(held, place) > 0
    assert (place / "ran").read_text().split() == ["pause", "checkpoint", "resume"] * 3
    assert storage.calls == ["commit_layer"]
    assert list((place / "images").iterdir()) == [], "half an attempt is left"


def test_a_queue_that_is_never_read_is_told_after_the_last_attempt(place: Path) -> None:
    held, storage = manager(place, CREDENTIALS, failures=9)
    with pytest.raises(HostdHostFault, match="Control messages in queue"):
        save(held, place)
    assert (place / "ran").read_text().split() == ["pause", "checkpoint", "resume"] * 3
    assert storage.calls == []


def test_a_terminal_at_a_password_prompt_is_refused_at_once_with_what_to_do(place: Path) -> None:
    held, _ = manager(place, TERMINAL, failures=9)
    with pytest.raises(HostdHostFault, match="ctty inheritance detected") as refused:
        save(held, place)
    assert "sudo does at its password prompt" in refused.value.hint
    assert "Answer the prompt or end the program" in refused.value.hint
    assert (place / "ran").read_text().split() == ["pause", "checkpoint", "resume"]


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
