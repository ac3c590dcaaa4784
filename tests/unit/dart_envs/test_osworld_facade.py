"""The shape of OSWorld's environment class, on a scripted desktop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from dart_envs.envs.evaluation_target import NoCopyWarning
from dart_envs.errors import (
    ActionError,
    DartEnvError,
    DesktopFailedError,
    EvaluatorError,
    GuestError,
    TaskError,
)
from dart_envs.osworld import DesktopEnv
from dart_envs.testing.fake_desktop import FakeDesktop
from dart_envs.testing.fake_farm import FakeFarm
from dart_envs.types import Action, ActionType, Frame, Outcome
from dart_server.wire import ExecReply, FaultOwner, InputEvent, SettleSpec

PNG = b"\x89PNG\r\n\x1a\n"


def typed(desktop: FakeDesktop, _args: list[str], _stdin: str) -> ExecReply:
    return ExecReply(returncode=0, stdout=desktop.state.typed, stderr="")


def save(desktop: FakeDesktop, _args: list[str], _stdin: str) -> ExecReply:
    desktop.state.files["saved"] = b""
    return ExecReply(returncode=0, stdout="", stderr="")


def task(**changes: Any) -> dict[str, Any]:
    return {
        "id": "30e3e107-1cfb-46ee-a755-2cd080d7ba6a",
        "snapshot": "os",
        "instruction": "Type the word.",
        "source": "",
        "config": [],
        "trajectory": "trajectories/",
        "related_apps": ["os"],
        "evaluator": {
            "func": "exact_match",
            "result": {"type": "vm_command_line", "command": ["typed"]},
            "expected": {"type": "rule", "rules": {"expected": "word"}},
        },
        "proxy": False,
        **changes,
    }


INFEASIBLE = task(id="no", evaluator={"func": "infeasible"})


@pytest.fixture
def farm() -> FakeFarm:
    return FakeFarm(programs={"typed": typed})


@pytest.fixture
def env(farm: FakeFarm) -> Iterator[DesktopEnv]:
    made = DesktopEnv(action_space="computer_13", screen_size=(640, 400), require_terminal=True, farm=farm)
    assert not farm.leases, "a desktop was leased in the constructor"
    yield made
    made.close()
    made.close()
    assert all(lease.released for lease in farm.leases)


def test_an_episode_has_osworlds_shape(env: DesktopEnv) -> None:
    first = env.reset(task_config=task())
    assert set(first) == {"screenshot", "accessibility_tree", "terminal", "instruction"}
    assert first["screenshot"].startswith(PNG)
    assert first["accessibility_tree"].startswith("<desktop-frame")
    assert (first["instruction"], first["terminal"]) == ("Type the word.", "")
    assert env.evaluate() == 0.0
    observation, reward, done, _ = env.step({"action_type": "TYPING", "parameters": {"text": "word"}}, 0.0)
    assert (reward, done, observation["terminal"]) == (0.0, False, "word")
    _, reward, done, info = env.step("DONE")
    assert (reward, done, info) == (0.0, True, {"done": True})
    assert env.evaluate() == 1.0
    assert len(env.action_history) == 2
    env.reset(task_config=task())
    assert env.action_history == []
    assert env.evaluate() == 0.0, "the desktop of the last episode was used again"


def test_a_verdict_in_the_middle_of_an_episode_is_made_on_a_copy(env: DesktopEnv, farm: FakeFarm) -> None:
    saving = {"type": "execute", "parameters": {"command": ["save"]}}
    farm.programs["save"] = save
    spoiling = task(evaluator={**task()["evaluator"], "postconfig": [saving]})
    env.reset(task_config=spoiling)
    env.step({"action_type": "TYPING", "text": "word"})
    outcome = env.evaluate_outcome()
    assert (outcome.reward, outcome.details["evaluated_on"]) == (1.0, "copy")
    desktop, copy = farm.leases
    assert (copy.released, "saved" in desktop.state.files) == (True, False)
    farm.max_desktops = 1
    with pytest.warns(NoCopyWarning, match="desktop itself is judged"):
        outcome = env.evaluate_outcome()
    assert (outcome.reward, outcome.details["evaluated_on"]) == (1.0, "desktop, since there is no copy: no_capacity")
    farm.max_desktops = 2
    env.step("DONE")
    assert "evaluated_on" not in env.evaluate_outcome().details
    assert len(farm.leases) == 2


@pytest.mark.parametrize("fail", ["FAIL", {"action_type": "FAIL"}])
def test_fail_is_right_only_where_nothing_can_be_done(env: DesktopEnv, fail: Any) -> None:
    env.reset(task_config=INFEASIBLE)
    assert env.evaluate() == 0.0
    *_, done, info = env.step(fail)
    assert (done, info, env.evaluate()) == (True, {"fail": True}, 1.0)
    env.reset(task_config=task())
    env.step({"action_type": "TYPING", "text": "word"})
    env.step(fail)
    assert env.evaluate() == 0.0


@pytest.mark.parametrize("fail", ["```\nFAIL\n```", Action(ActionType.FAIL)])
def test_fail_is_what_the_action_space_reads_as_fail(farm: FakeFarm, fail: Any) -> None:
    with closing(DesktopEnv(screen_size=(640, 400), farm=farm)) as env:
        env.reset(task_config=INFEASIBLE)
        *_, done, info = env.step(fail)
        assert (done, info, env.evaluate()) == (True, {"fail": True}, 1.0)


def test_an_end_is_judged_once(env: DesktopEnv, farm: FakeFarm) -> None:
    env.reset(task_config=task())
    env.step({"action_type": "TYPING", "text": "word"})
    env.step("FAIL")
    env.step({"action_type": "TYPING", "text": "!"})
    env.step("DONE")
    assert env.evaluate() == 0.0
    farm.leases[-1].state.typed = "word"
    assert env.evaluate() == 0.0
    with pytest.raises(DartEnvError, match="call reset"):
        env.step("WAIT")
    assert env.evaluate() == 0.0


def test_there_is_no_limit_of_steps(env: DesktopEnv) -> None:
    env.reset(task_config=task())
    assert not any(env.step({"action_type": "PRESS", "key": "a"})[2] for _ in range(20)), "a task of 15 steps"


def test_without_a_task_there_is_a_clean_desktop_and_no_verdict(env: DesktopEnv) -> None:
    assert env.reset()["instruction"] is None
    with pytest.raises(TaskError, match="no task to evaluate"):
        env.evaluate()


def test_before_a_reset_there_is_nothing(env: DesktopEnv) -> None:
    for call in (lambda: env.step("WAIT"), lambda: env.vm_ip):
        with pytest.raises(DartEnvError, match="call reset"):
            call()


def test_set_up_steps_run_on_the_running_desktop(env: DesktopEnv, farm: FakeFarm) -> None:
    env.reset(task_config=task())
    assert env.setup_controller.setup([{"type": "execute", "parameters": {"command": ["true"]}}])
    with pytest.raises(ValueError, match="no proxy"):
        env.setup_controller.setup([], use_proxy=True)


def test_a_desktop_that_the_agent_broke_scores_0(farm: FakeFarm, env: DesktopEnv) -> None:
    env.reset(task_config=task())
    env.step({"action_type": "PRESS", "key": "a"})
    farm.leases[-1].kill(FaultOwner.POLICY, "oom")
    observation, _, done, info = env.step({"action_type": "PRESS", "key": "a"})
    assert (done, info["broke_desktop"], env.evaluate()) == (True, "oom", 0.0)
    assert observation["screenshot"].startswith(PNG)


def died(owner: FaultOwner) -> DesktopFailedError:
    return DesktopFailedError("died", fault_owner=owner, cause="oom")


def test_a_desktop_that_the_agent_broke_before_done_scores_0(farm: FakeFarm, env: DesktopEnv) -> None:
    env.reset(task_config=task())
    env.step({"action_type": "TYPING", "text": "word"})
    farm.leases[-1].kill(FaultOwner.POLICY, "oom")
    assert env.evaluate_outcome() == Outcome(0.0, {"broke_desktop": "oom"}), "the end was not said yet"
    observation, reward, done, info = env.step("DONE")
    assert (reward, done, info) == (0.0, True, {"done": True, "broke_desktop": "oom"})
    assert observation["screenshot"].startswith(PNG)
    assert env.evaluate() == 0.0


@pytest.mark.parametrize(
    ("error", "cause"),
    [(died(FaultOwner.POLICY), "oom"), (GuestError("no answer", code="guest_error"), "guest_error: no answer")],
)
def test_a_desktop_that_shows_nothing_after_an_action_was_broken(
    farm: FakeFarm, env: DesktopEnv, error: Exception, cause: str
) -> None:
    env.reset(task_config=task())
    farm.leases[-1].fail_next("terminal", error)
    *_, done, info = env.step({"action_type": "TYPING", "text": "word"})
    assert (done, info["broke_desktop"], env.evaluate()) == (True, cause, 0.0)


def test_what_dies_by_the_host_or_before_the_first_action_raises(farm: FakeFarm, env: DesktopEnv) -> None:
    env.reset(task_config=task())
    farm.leases[-1].kill(FaultOwner.POLICY, "session_dead")
    for call in (env.evaluate, lambda: env.step("DONE"), env.evaluate):
        with pytest.raises(DartEnvError, match="session_dead"):
            call()
    env.reset(task_config=task())
    env.step({"action_type": "TYPING", "text": "word"})
    farm.leases[-1].kill(FaultOwner.HOST, "host_oom")
    for call in (env.evaluate, lambda: env.step("DONE"), env.evaluate):
        with pytest.raises(DartEnvError, match="host_oom"):
            call()


@pytest.mark.parametrize("done", [True, False])
def test_a_reward_of_a_desktop_at_its_limit_is_0(farm: FakeFarm, env: DesktopEnv, done: bool) -> None:
    def at_the_limit(desktop: FakeDesktop, _args: list[str], _stdin: str) -> ExecReply:
        desktop.kill(FaultOwner.POLICY, "pids")
        return ExecReply(returncode=0, stdout="word", stderr="")

    farm.programs["typed"] = at_the_limit
    env.reset(task_config=task())
    env.step({"action_type": "PRESS", "key": "a"})
    if done:
        env.step("DONE")
    assert env.evaluate_outcome() == Outcome(0.0, {"broke_desktop": "pids"})


def test_an_end_without_a_verdict_raises(farm: FakeFarm, env: DesktopEnv) -> None:
    env.reset(task_config=task(evaluator={**task()["evaluator"], "result": {"type": "vm_command_line", "command": []}}))
    env.step("DONE")
    for _ in range(2):
        with pytest.raises(EvaluatorError, match="There is no verdict"):
            env.evaluate()


@pytest.mark.parametrize("done", [True, False])
def test_a_desktop_rests_before_its_verdict(env: DesktopEnv, done: bool) -> None:
    """GTK acts 250 ms after Enter."""
    env.reset(task_config=task())
    core = env._core
    assert core is not None
    core._clock = StoppedClock()
    env.step({"action_type": "TYPING", "text": "word"})
    asked: list[SettleSpec | None] = []
    lease = core.lease
    assert lease is not None
    inner = lease.step

    async def step(events: list[InputEvent], settle: SettleSpec | None = None, **options: Any) -> Frame:
        asked.append(settle)
        return await inner(events, settle, **options)

    lease.step = step  # type: ignore[method-assign]
    if done:
        env.step("DONE")
    assert asked == []
    assert env.evaluate() == 1.0
    assert [settle.quiet_ms for settle in asked if settle is not None] == [400]


class StoppedClock:
    """A clock that stands still."""

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, _seconds: float) -> None:
        return


def test_a_fault_of_the_farm_raises_and_the_next_reset_is_well(farm: FakeFarm, env: DesktopEnv) -> None:
    env.reset(task_config=task())
    farm.leases[-1].kill(FaultOwner.HOST, "host_lost")
    with pytest.raises(DartEnvError, match="host_lost"):
        env.step({"action_type": "PRESS", "key": "a"})
    assert env.reset(task_config=task())["screenshot"].startswith(PNG)


def test_pyautogui_is_run_inside_the_desktop(farm: FakeFarm) -> None:
    ran: list[str] = []

    def python(_desktop: FakeDesktop, args: list[str], _stdin: str) -> ExecReply:
        ran.append(args[-1])
        return ExecReply(returncode=0, stdout="", stderr="")

    farm.programs["python"] = python
    env = DesktopEnv(screen_size=(640, 400), farm=farm)
    env.reset(task_config=task())
    code = "for i in range(3):\n    pyautogui.press('a')"
    env.step(f"```python\n{code}\n```")
    env.step({"command": code})
    assert [one.endswith(code) for one in ran] == [True, True]
    assert env.step("DONE")[2]
    env.close()


def test_an_action_that_cannot_be_performed_is_refused(env: DesktopEnv) -> None:
    env.reset(task_config=task())
    with pytest.raises(ActionError, match="between 0 and 639"):
        env.step({"action_type": "CLICK", "x": 640, "y": 0})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"action_space": "telepathy"}, "action_space is one of"),
        ({"os_type": "Windows"}, "os_type is Ubuntu"),
        ({"enable_proxy": True}, "enable_proxy must be False"),
    ],
)
def test_what_cannot_be_kept_is_refused(words: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DesktopEnv(**words)


def test_words_of_other_trees_are_taken(farm: FakeFarm) -> None:
    DesktopEnv(provider_name="docker", path_to_vm=None, headless=True, volume_size=40, farm=farm).close()
    assert not farm.leases, "nothing is leased before the first reset"


def test_a_bad_task_names_its_field(env: DesktopEnv) -> None:
    with pytest.raises(TaskError, match="field 'instruction'"):
        env.reset(task_config=task(instruction=""))
