"""The commit-msg hook: what it refuses, what it says, and that git obeys it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

HOOK = Path(__file__).resolve().parents[3] / ".ci" / "check_commit_message.py"
BODY = "\n\nA closed lease kept its desktop for a minute.\n"


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_commit_message", HOOK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "message",
    [
        pytest.param("Release the desktop of a closed lease" + BODY, id="subject and reason"),
        pytest.param("x" * 72 + BODY, id="a subject of exactly 72 characters"),
        pytest.param("é" * 72 + BODY, id="characters are counted, not bytes"),
        pytest.param("Release it" + BODY + "\nSigned-off-by: A <a@example.org>\n", id="trailers after the reason"),
        pytest.param(
            "Release it\n\nWhy: a closed lease kept its desktop.\nIt waited a minute.\n", id="a colon in prose"
        ),
        pytest.param("# a comment\n\nRelease it\n# a comment" + BODY, id="comments are not part of the message"),
        pytest.param("Release it\r\n\r\nA closed lease kept its desktop.\r\n", id="line ends of Windows"),
    ],
)
def test_a_message_with_a_short_subject_and_a_reason_is_accepted(hook: ModuleType, message: str) -> None:
    assert hook.complaint(message) is None


@pytest.mark.parametrize(
    "subject",
    [
        "Merge branch 'a-branch-with-a-name-that-is-far-longer-than-a-subject-of-a-commit-may-be' into main",
        "Merge remote-tracking branch 'origin/main'",
        "Merge pull request #12 from somebody/branch",
        "Merge tag 'v0.1.0'",
        'Revert "Release the desktop of a closed lease before the queue is told of it, and tell it"',
        'Reapply "Release the desktop of a closed lease"',
        "fixup! Release the desktop of a closed lease",
    ],
)
def test_what_git_writes_itself_is_accepted(hook: ModuleType, subject: str) -> None:
    assert hook.complaint(subject + "\n") is None


@pytest.mark.parametrize(
    ("message", "said"),
    [
        pytest.param("", "is empty", id="nothing"),
        pytest.param("\n# only comments\n", "is empty", id="comments only"),
        pytest.param("x" * 73 + BODY, "has 73 characters, and the limit is 72", id="a subject of 73 characters"),
        pytest.param("Release it\n", "no body that says why", id="a subject only"),
        pytest.param("Release it\n\n# a comment\n", "no body that says why", id="a body of comments"),
        pytest.param("Release it\n\nwip\n", "no body that says why", id="a body of one word"),
        pytest.param(
            "Release it\n\nSigned-off-by: A <a@example.org>\nCo-authored-by: B <b@example.org>\n",
            "no body that says why",
            id="a body of trailers",
        ),
        pytest.param(
            "Release it\n\n# ------------------------ >8 ------------------------\ndiff --git a/a b/a\n+one two three\n",
            "no body that says why",
            id="the change that --verbose shows is no body",
        ),
        pytest.param("Release it\nA closed lease kept it.\n", "second line", id="no empty line after the subject"),
        pytest.param(
            "Merge the two queues into one\n", "no body that says why", id="a subject that begins like a merge"
        ),
        pytest.param("Revert to one queue\n", "no body that says why", id="a subject that begins like a revert"),
    ],
)
def test_a_refusal_is_one_sentence_with_the_fix(hook: ModuleType, message: str, said: str) -> None:
    complaint = hook.complaint(message)
    assert complaint is not None
    assert said in complaint
    assert complaint.count(": ") == 1, "what is wrong, then the fix"
    assert complaint.endswith(".")
    assert "\n" not in complaint


Git = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def git(tmp_path: Path) -> Git:
    """git in a new repository that has the hook and one commit."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    for who in ("AUTHOR", "COMMITTER"):
        environment |= {f"GIT_{who}_NAME": "A", f"GIT_{who}_EMAIL": "a@example.org"}

    def run(*argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["git", *argv], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    assert run("init", "--initial-branch=main").returncode == 0
    script = tmp_path / ".git" / "hooks" / "commit-msg"
    script.parent.mkdir(exist_ok=True)
    script.write_text(f"#!/bin/sh\nexec '{sys.executable}' '{HOOK}' \"$1\"\n", encoding="utf-8")
    script.chmod(0o755)
    assert run("commit", "--allow-empty", "-m", "Begin", "-m", "There was nothing before.").returncode == 0
    return run


def test_git_refuses_the_commit_and_keeps_the_text(git: Git, tmp_path: Path) -> None:
    refused = git("commit", "--allow-empty", "-m", "No reason")
    assert refused.returncode == 1
    sentence, fix = refused.stderr.splitlines()
    assert "no body that says why" in sentence
    kept = tmp_path / fix.rpartition("--file=")[2]
    assert kept.read_text(encoding="utf-8") == "No reason\n"
    with kept.open("a", encoding="utf-8") as file:
        file.write("\nIt has a reason now.\n")
    assert git("commit", "--allow-empty", f"--file={kept}").returncode == 0


def test_git_merges_and_reverts_with_messages_of_its_own(git: Git, tmp_path: Path) -> None:
    git("checkout", "-b", "side")
    (tmp_path / "file").write_text("one\n", encoding="utf-8")
    git("add", "file")
    added = git("commit", "-m", "Add a line " + "x" * 61, "-m", "Two branches are needed to merge.")
    assert added.returncode == 0, added.stderr
    git("checkout", "main")
    for step in (["merge", "--no-ff", "--no-edit", "side"], ["revert", "--no-edit", "side"]):
        done = git(*step)
        assert done.returncode == 0, done.stderr
    subjects = git("log", "--first-parent", "--format=%s", "-2").stdout.splitlines()
    assert subjects == ['Revert "Add a line ' + "x" * 61 + '"', "Merge branch 'side'"]


def test_a_message_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    told = subprocess.run(
        [sys.executable, str(HOOK), str(tmp_path / "nothing")], capture_output=True, text=True, check=False
    )
    assert told.returncode == 2
    assert "cannot be read" in told.stderr
