"""Verdicts about files are of one moment: the user's programs stand still meanwhile, and verdicts about programs are not stopped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from fake_window_desktop import FakeWindowDesktop, ManualClock, reply

from dart_envs.evaluators.scoring import evaluate
from dart_envs.tasks.model import Evaluator
from dart_server.wire import ExecReply

RULE = {"type": "rule", "rules": {"expected": "b"}}
FILE = {"type": "content_from_vm_file", "path": "/home/user/a"}

TWICE = {"func": ["exact_match"] * 2, "result": [FILE] * 2, "expected": [RULE] * 2}


def recorded(returncode: int) -> tuple[FakeWindowDesktop, list[str]]:
    desktop, sent = FakeWindowDesktop(), []
    desktop.state.files["/home/user/a"] = b"b"

    def python(_desktop: Any, arguments: Sequence[str], _stdin: str) -> ExecReply:
        sent.append(arguments[-1])
        return reply(returncode=returncode)

    desktop.programs["/usr/bin/python3"] = python
    desktop.programs["/usr/bin/stat"] = lambda *_: sent.append("look") or reply("1 regular file\n")
    return desktop, sent


async def judged(desktop: FakeWindowDesktop, **config: Any) -> float:
    return (await evaluate(desktop, Evaluator(**config), clock=ManualClock(), scorer="builtin")).reward


async def test_the_users_programs_are_stopped_while_files_are_read() -> None:
    desktop, sent = recorded(0)
    assert await judged(desktop, **TWICE) == 1
    assert sent == ["look", "look", "SIGSTOP", "look", "look", "SIGCONT"]


async def test_who_prevents_it_scores_0() -> None:
    desktop, _ = recorded(-9)
    assert await judged(desktop, **TWICE) == 0


async def test_what_changes_between_two_looks_is_not_right() -> None:
    desktop, sent = recorded(0)
    other = {"type": "content_from_vm_file", "path": "/home/user/b"}
    stat = desktop.programs["/usr/bin/stat"]

    def toggling(given: Any, arguments: Sequence[str], stdin: str) -> ExecReply:
        if arguments[-1].endswith("b") and "SIGSTOP" not in sent:
            desktop.state.files |= {"/home/user/a": b"x", "/home/user/b": b"b"}
        return stat(given, arguments, stdin)

    desktop.programs["/usr/bin/stat"] = toggling
    assert await judged(desktop, func=["exact_match"] * 2, result=[FILE, other], expected=[RULE, RULE]) == 0
    assert sent.count("SIGSTOP") == 1


async def test_one_look_and_a_wrong_answer_need_no_second_round() -> None:
    desktop, sent = recorded(0)
    assert await judged(desktop, func="exact_match", result=FILE, expected=RULE) == 1
    desktop.state.files["/home/user/a"] = b"other"
    assert await judged(desktop, **TWICE) == 0
    assert "SIGSTOP" not in sent


@pytest.mark.parametrize("getter", [{"type": "window_titles"}, {"type": "vm_command_line", "command": ["date"]}])
async def test_what_programs_say_they_say_running(getter: dict[str, Any]) -> None:
    desktop, sent = recorded(0)
    desktop.programs["date"] = lambda *_: reply("b")
    await judged(desktop, func=["exact_match", "exact_match"], result=[FILE, getter], expected=[RULE, RULE])
    assert "SIGSTOP" not in sent
