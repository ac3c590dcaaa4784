from __future__ import annotations

from typing import Any

import pytest

from dart_envs.errors import TaskError
from dart_envs.tasks import Task, parse_task
from dart_envs.tasks.script import resolve_actions
from dart_envs.testing.fake_desktop import FakeDesktop
from dart_envs.types import Action, ActionType
from dart_server.wire import A11yElement


def element(role: str, name: str, x: int = 0, y: int = 0, w: int = 100, h: int = 40, text: str = "") -> A11yElement:
    return A11yElement(role=role, name=name, text=text, x=x, y=y, w=w, h=h)


def task(*moves: dict[str, Any]) -> Task:
    data = {"id": "t", "instruction": "Do.", "evaluator": {"func": "infeasible"}, "oracle": list(moves)}
    return parse_task(data, name="t")


def button(name: str, **more: Any) -> dict[str, Any]:
    return {"do": "click", "target": {"role": "push button", "name": name, **more}}


@pytest.fixture
def desktop() -> FakeDesktop:
    made = FakeDesktop()
    made.state.elements = [
        element("dialog", "First"),
        element("push button", "OK", x=10, y=20),
        element("dialog", "Second"),
        element("push button", "OK", x=200, y=60),
        element("text", "", x=0, y=100, text="hello\n"),
        element("push button", "Hidden", w=0),
    ]
    return made


async def test_targets_are_found_by_role_name_window_text_and_number(desktop: FakeDesktop) -> None:
    script = task(
        button("OK"),
        button("OK", window="Second"),
        button("OK", nth=-1, at=[0.0, 1.0], dx=3, dy=-2),
        {"do": "triple_click", "target": {"text": "hello"}},
        {"do": "type", "text": "bye"},
        {"do": "key", "keys": ["ctrl", "s"]},
        {"do": "drag", "target": {"name": "OK"}, "to": {"role": "text"}},
    )
    assert await script.oracle(desktop) == [
        Action(ActionType.CLICK, x=60, y=40),
        Action(ActionType.CLICK, x=250, y=80),
        Action(ActionType.CLICK, x=203, y=98),
        Action(ActionType.TRIPLE_CLICK, x=50, y=120),
        Action(ActionType.TYPE, text="bye"),
        Action(ActionType.KEY, keys=("ctrl", "s")),
        Action(ActionType.DRAG, x=60, y=40, x2=50, y2=120),
    ]


async def test_it_goes_as_far_as_the_screen_shows_and_then_on(desktop: FakeDesktop) -> None:
    script = task(button("OK"), button("Later"), {"do": "done"})
    assert len(await script.oracle(desktop)) == 1
    desktop.state.elements.append(element("push button", "Later"))
    assert [action.type for action in await script.oracle(desktop, step=1)] == [ActionType.CLICK, ActionType.DONE]
    assert await script.oracle(desktop, step=3) == []


async def test_a_move_for_later_waits_for_its_turn(desktop: FakeDesktop) -> None:
    script = task(button("OK"), button("OK") | {"deferred": True})
    assert len(await script.oracle(desktop)) == 1
    assert len(await script.oracle(desktop, step=1)) == 1


@pytest.mark.parametrize("name", ["Absent", "Hidden"])
async def test_a_target_that_is_not_there_is_named(
    desktop: FakeDesktop, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dart_envs.tasks.model.TARGET_TIMEOUT_S", 0.0)
    with pytest.raises(TaskError, match=f"oracle of task t is stuck at move 1: no push button '{name}' in window 'A'"):
        await task(button("OK"), button(name, window="A")).oracle(desktop, step=1)


async def test_a_target_that_is_not_there_is_told_with_what_is(
    desktop: FakeDesktop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dart_envs.tasks.model.TARGET_TIMEOUT_S", 0.0)
    with pytest.raises(
        TaskError, match=r"no entry on the screen; it shows dialog 'First', push button 'OK', .*, text\.$"
    ):
        await task({"do": "click", "target": {"role": "entry"}}).oracle(desktop)
    with pytest.raises(TaskError, match=r"it shows push button 'OK', push button 'OK' in window 'Second'"):
        await task(button("Save", window="First")).oracle(desktop)
    with pytest.raises(TaskError, match=r"it shows text with text 'hello', "):
        await task({"do": "click", "target": {"role": "text", "text": "bye"}}).oracle(desktop)
    desktop.state.elements = [element("label", f"{n} {'x' * 100}") for n in range(40)]
    with pytest.raises(TaskError, match=r"and 28 more\.$") as caught:
        await task(button("OK")).oracle(desktop)
    assert len(str(caught.value)) < 800
    desktop.state.elements = []
    with pytest.raises(TaskError, match="no push button 'OK' on the screen; its accessibility tree is empty"):
        await task(button("OK")).oracle(desktop)


class DrawingClock:
    """Time that passes when somebody sleeps; after one second the screen shows one element more."""

    def __init__(self, desktop: FakeDesktop, late: A11yElement) -> None:
        self.now_s, self.desktop, self.late = 0.0, desktop, late

    def monotonic(self) -> float:
        return self.now_s

    def time(self) -> float:
        return self.now_s

    async def sleep(self, delay_s: float) -> None:
        before_s, self.now_s = self.now_s, self.now_s + delay_s
        if before_s < 1.0 <= self.now_s:
            self.desktop.state.elements.append(self.late)


async def test_a_target_that_comes_late_is_waited_for_within_the_limit(desktop: FakeDesktop) -> None:
    moves = task(button("Late")).scripts["oracle"]
    with pytest.raises(LookupError):
        await resolve_actions(
            desktop, moves, timeout_s=0.5, clock=DrawingClock(desktop, element("push button", "Late"))
        )
    clock = DrawingClock(desktop, element("push button", "Late"))
    (play,) = await resolve_actions(desktop, moves, timeout_s=5.0, clock=clock)
    assert play.target == clock.late
    assert clock.now_s == pytest.approx(1.0)


async def test_keys_alone_do_not_walk_the_tree(desktop: FakeDesktop) -> None:
    await task({"do": "key", "keys": ["enter"]}).oracle(desktop)
    assert desktop.calls == []


async def test_plays_name_their_target(desktop: FakeDesktop) -> None:
    (play,) = await task(button("OK")).resolve_script(desktop)
    assert play.target == desktop.state.elements[1]


async def test_a_task_without_a_script_says_so(desktop: FakeDesktop) -> None:
    with pytest.raises(TaskError, match="no script 'near_miss'"):
        await task(button("OK")).resolve_script(desktop, script="near_miss")
