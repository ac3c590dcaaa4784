from __future__ import annotations

from typing import Any

import pytest
from fake_window_desktop import FakeWindow, FakeWindowDesktop, ManualClock, reply

from dart_envs.errors import DesktopFailedError, EvaluatorError, GuestError
from dart_envs.evaluators import evaluate
from dart_envs.tasks import Evaluator
from dart_envs.testing.fake_desktop import FakeDesktop
from dart_envs.types import EndReason, Outcome
from dart_server.wire import EvidenceAnswer, ExecReply, FaultOwner, FileFacts

FILE = {"type": "vm_file", "path": "/home/user/a.txt"}
HOLDS_A = {"type": "rule", "rules": {"expected": "a"}}
HOLDS_B = {"type": "rule", "rules": {"expected": "b"}}


def stat(desktop: FakeDesktop, args: list[str], _stdin: str) -> ExecReply:
    content = desktop.state.files.get(args[-1])
    if content is None:
        return reply(returncode=1)
    return reply("4096 directory" if content == b"DIR" else f"{len(content)} regular file")


@pytest.fixture
def desktop() -> FakeWindowDesktop:
    made = FakeWindowDesktop()
    made.programs["stat"] = stat
    made.state.files["/home/user/a.txt"] = b"a\n"
    return made


async def judge(
    desktop: FakeWindowDesktop, end: EndReason | None = None, clock: Any = None, **evaluator: Any
) -> Outcome:
    return await evaluate(desktop, Evaluator.model_validate(evaluator), end=end, clock=clock or ManualClock())


async def test_one_function(desktop: FakeWindowDesktop) -> None:
    assert (await judge(desktop, func="compare_text_file", result=FILE, expected=HOLDS_A)).reward == 1.0
    assert (await judge(desktop, func="compare_text_file", result=FILE, expected=HOLDS_B)).reward == 0.0


@pytest.mark.parametrize(
    ("conj", "expected_configs", "reward"),
    [
        ("and", [HOLDS_A, HOLDS_A], 1.0),
        ("and", [HOLDS_A, HOLDS_B], 0.0),
        ("or", [HOLDS_B, HOLDS_A], 1.0),
        ("or", [HOLDS_B, HOLDS_B], 0.0),
    ],
)
async def test_conjunctions(desktop: FakeWindowDesktop, conj: str, expected_configs: list[Any], reward: float) -> None:
    outcome = await judge(
        desktop, func=["compare_text_file", "file_contains"], result=[FILE, FILE], expected=expected_configs, conj=conj
    )
    assert outcome.reward == reward


async def test_and_stops_at_the_first_zero(desktop: FakeWindowDesktop) -> None:
    outcome = await judge(
        desktop,
        func=["compare_text_file", "exists"],
        result=[FILE, {"type": "vm_file"}],
        expected=[HOLDS_B, None],
        conj="and",
    )
    assert [part["func"] for part in outcome.details["parts"]] == ["compare_text_file"]


@pytest.mark.parametrize("content", [None, b"DIR", b"\xff\xfe\xfa"])
async def test_what_the_policy_deleted_or_broke_scores_0_with_a_cause(
    desktop: FakeWindowDesktop, content: bytes | None
) -> None:
    desktop.state.files.pop("/home/user/a.txt")
    if content is not None:
        desktop.state.files["/home/user/a.txt"] = content
    outcome = await judge(desktop, func="compare_text_file", result=FILE, expected=HOLDS_A)
    assert outcome.reward == 0.0
    assert "/home/user/a.txt" in outcome.details["parts"][0]["cause"]


async def test_a_huge_file_is_not_read(desktop: FakeWindowDesktop) -> None:
    desktop.programs["stat"] = lambda *_: reply(f"{1 << 40} regular file")
    assert (await judge(desktop, func="exists", result=FILE)).reward == 0.0
    assert "read_file" not in desktop.calls


@pytest.mark.parametrize(
    ("evaluator", "words"),
    [
        ({"func": "no_such", "result": FILE}, "Neither .* have metric 'no_such'"),
        ({"func": "exists", "result": {"type": "no_getter"}}, "Neither .* have getter 'no_getter'"),
        ({"func": "exists", "result": {"type": "vm_file"}}, "needs the text parameter 'path'"),
        ({"func": "exact_match", "result": FILE, "expected": {"type": "rule", "rules": {}}}, "KeyError: 'expected'"),
        ({"func": "exact_match", "result": FILE, "expected": {"type": "rule"}}, "needs `rules`"),
    ],
)
async def test_a_wrong_evaluator_is_never_a_silent_0(
    desktop: FakeWindowDesktop, evaluator: dict[str, Any], words: str
) -> None:
    with pytest.raises(EvaluatorError, match=words):
        await judge(desktop, **evaluator)


async def test_a_command_that_hangs_is_an_evaluator_error(desktop: FakeWindowDesktop) -> None:
    with pytest.raises(EvaluatorError, match="did not end"):
        await judge(desktop, func="exists", result={"type": "vm_command_line", "command": ["sleep", "100"]})


async def test_desktop_errors_keep_their_owner(desktop: FakeWindowDesktop) -> None:
    desktop.fail_next("exec", GuestError("no"))
    with pytest.raises(GuestError):
        await judge(desktop, func="exists", result=FILE)
    desktop.kill(FaultOwner.POLICY, "oom")
    with pytest.raises(DesktopFailedError):
        await judge(desktop, func="exists", result=FILE)


@pytest.mark.parametrize(("end", "reward"), [(EndReason.FAIL, 1.0), (EndReason.DONE, 0.0), (None, 0.0)])
async def test_infeasible_is_right_only_when_the_policy_said_so(
    desktop: FakeWindowDesktop, end: EndReason | None, reward: float
) -> None:
    assert (await judge(desktop, end, func="infeasible")).reward == reward


async def test_giving_up_on_a_feasible_task_scores_0(desktop: FakeWindowDesktop) -> None:
    assert (await judge(desktop, EndReason.FAIL, func="compare_text_file", result=FILE, expected=HOLDS_A)).reward == 0.0


async def test_postconfig_runs_first_and_a_closed_window_is_not_our_failure(desktop: FakeWindowDesktop) -> None:
    outcome = await judge(
        desktop,
        func="compare_text_file",
        result=FILE,
        expected=HOLDS_B,
        postconfig=[
            {"type": "activate_window", "parameters": {"window_name": "gone", "timeout_s": 1}},
            {"type": "write_file", "parameters": {"path": "/home/user/a.txt", "content": "b"}},
        ],
    )
    assert outcome.reward == 1.0
    assert "gone" in outcome.details["postconfig"][0]


async def test_command_getters(desktop: FakeWindowDesktop) -> None:
    rule = {"type": "rule", "rules": {"expected": "x y"}}
    printed = {"type": "vm_command_line", "command": "printf 'x y'"}
    assert (await judge(desktop, func="exact_match", result=printed, expected=rule)).reward == 1.0
    desktop.programs["warn"] = lambda *_: reply(stderr="x y")
    warned = {"type": "vm_command_error", "command": ["warn"]}
    assert (await judge(desktop, func="exact_match", result=warned, expected=rule)).reward == 1.0


async def test_listing_getters(desktop: FakeWindowDesktop) -> None:
    desktop.programs["find"] = lambda *_: reply(FOUND)
    names = {"type": "rule", "rules": {"exactly": ["a.txt", "b/"]}}
    listed = await judge(desktop, func="contains_names", result={"type": "file_names", "path": "/w"}, expected=names)
    assert listed.reward == 1.0
    tree = {"type": "rule", "rules": {"include": ["b/c.txt"]}}
    assert (
        await judge(desktop, func="contains_names", result={"type": "list_directory", "path": "/w"}, expected=tree)
    ).reward == 1.0
    desktop.programs["find"] = lambda *_: reply(returncode=1, stderr="No such file")
    gone = await judge(desktop, func="contains_names", result={"type": "file_names", "path": "/w"}, expected=names)
    assert "No such file" in gone.details["parts"][0]["cause"]


async def test_window_getters(desktop: FakeWindowDesktop) -> None:
    desktop.fake_windows = [FakeWindow("Apple - Thunar", "thunar.Thunar", w=300), FakeWindow("Other")]
    titles = {"type": "window_titles", "by_class": "thunar"}
    rule = {"type": "rule", "rules": {"expected": ["Apple - Thunar"]}}
    assert (await judge(desktop, func="exact_match", result=titles, expected=rule)).reward == 1.0
    size = {"type": "vm_window_size", "app_class_name": "thunar"}
    wanted = {"type": "rule", "rules": {"expected": {"width": 300, "height": 100}}}
    assert (await judge(desktop, func="exact_match", result=size, expected=wanted)).reward == 1.0
    none = {"type": "vm_window_size", "app_class_name": "gimp"}
    assert (await judge(desktop, func="exact_match", result=none, expected=wanted)).reward == 0.0


FOUND = "".join(
    f"{kind}\t644\t1\t0\t0\t1.5\t\t{name}\0" for kind, name in (("d", "b"), ("f", "a.txt"), ("f", "b/c.txt"))
)
CAPTURED = {"type": "captured", "name": "answer", "window_name": "Question"}


async def test_captured_answer(desktop: FakeWindowDesktop) -> None:
    desktop.other_script = lambda: reply("12.5\n0\na\n")
    assert (await judge(desktop, func="exact_match", result=CAPTURED, expected=HOLDS_A)).reward == 1.0
    assert desktop.ran[-1][0] == "root"


async def test_a_dialog_that_is_still_open_has_no_answer_and_costs_no_time(desktop: FakeWindowDesktop) -> None:
    clock = ManualClock()
    desktop.fake_windows = [FakeWindow("Question")]
    desktop.other_script = lambda: reply(returncode=4)
    assert (await judge(desktop, clock=clock, func="exact_match", result=CAPTURED, expected=HOLDS_A)).reward == 0.0
    assert clock.now_s == 100.0


async def test_a_dialog_that_just_closed_gets_a_moment_to_answer(desktop: FakeWindowDesktop) -> None:
    clock = ManualClock()
    desktop.other_script = lambda: reply("12.5\n0\na\n") if clock.now_s > 100.5 else reply(returncode=4)
    assert (await judge(desktop, clock=clock, func="exact_match", result=CAPTURED, expected=HOLDS_A)).reward == 1.0
    desktop.other_script = lambda: reply(returncode=4)
    assert (await judge(desktop, clock=clock, func="exact_match", result=CAPTURED, expected=HOLDS_A)).reward == 0.0
    assert clock.now_s < 105


async def test_nothing_captured_is_our_failure(desktop: FakeWindowDesktop) -> None:
    desktop.other_script = lambda: reply(returncode=3)
    with pytest.raises(EvaluatorError, match=r"Nothing was captured in .*/answer"):
        await judge(desktop, func="exact_match", result=CAPTURED, expected=HOLDS_A)


async def test_captures_in_turn_are_told_in_the_order_they_ended(desktop: FakeWindowDesktop) -> None:
    ended_s = {"one": "12.5", "two": "11.25", "three": ""}
    result = {"type": "captured_in_turn", "captures": [{"name": name} for name in ended_s]}
    wanted = {"type": "rule", "rules": {"expected": [["two", "a"], ["one", "a"]]}}

    def scripted() -> None:
        left = iter(ended_s.values())

        def said() -> ExecReply:
            when = next(left)
            return reply(f"{when}\n0\na\n") if when else reply(returncode=4)

        desktop.other_script = said

    scripted()
    assert (await judge(desktop, func="exact_match", result=result, expected=wanted)).reward == 1.0
    ended_s["two"] = "13.0"
    scripted()
    assert (await judge(desktop, func="exact_match", result=result, expected=wanted)).reward == 0.0


async def test_a_program_that_was_killed_has_answered_nothing(desktop: FakeWindowDesktop) -> None:
    desktop.other_script = lambda: reply("12.5\n1\na\n")
    assert (await judge(desktop, func="exact_match", result=CAPTURED, expected=HOLDS_A)).reward == 1.0
    for code in (126, 137, 143):
        desktop.other_script = lambda code=code: reply(f"12.5\n{code}\na\n")
        assert (await judge(desktop, func="exact_match", result=CAPTURED, expected=HOLDS_A)).reward == 0.0


async def test_a_captured_answer_is_read_from_outside(desktop: FakeWindowDesktop) -> None:
    folder = "/var/lib/dart/captured/answer"
    there = EvidenceAnswer(facts=FileFacts(kind="folder", nbytes=0, mode=0o700, uid=0, gid=0, modified_s=0.0))
    desktop.seen_from_outside = {folder: there}
    desktop.other_script = lambda: pytest.fail("a program of the desktop was asked")
    desktop.fake_windows = [FakeWindow("Question")]
    assert (await judge(desktop, func="exact_match", result=CAPTURED, expected=HOLDS_A)).reward == 0.0
    desktop.state.files |= {f"{folder}/code": b"0\n", f"{folder}/stdout": b"a\n"}
    assert (await judge(desktop, func="exact_match", result=CAPTURED, expected=HOLDS_A)).reward == 1.0
    desktop.state.files[f"{folder}/code"] = b"137\n"
    assert (await judge(desktop, func="exact_match", result=CAPTURED, expected=HOLDS_A)).reward == 0.0
    desktop.seen_from_outside = {folder: EvidenceAnswer(error="not_found")}
    assert (await judge(desktop, func="exact_match", result=CAPTURED, expected=HOLDS_A)).reward == 0.0


async def test_today_is_what_the_desktop_says(desktop: FakeWindowDesktop) -> None:
    desktop.programs["date"] = lambda _desktop, args, _stdin: reply("2024-02-29\n" if args == ["+%Y-%m-%d"] else "?")
    desktop.state.files["/home/user/a.txt"] = b"2024-02-29"
    today = {"type": "desktop_time", "format": "%Y-%m-%d"}
    assert (await judge(desktop, func="literal_match", result=FILE, expected=today)).reward == 1.0
    desktop.state.files["/home/user/a.txt"] = b"2026-11-21"
    assert (await judge(desktop, func="literal_match", result=FILE, expected=today)).reward == 0.0
    with pytest.raises(EvaluatorError):
        await judge(desktop, func="literal_match", result=FILE, expected={"type": "desktop_time"})
