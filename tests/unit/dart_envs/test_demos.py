"""Demonstrations: the files, a solution that is recorded and replayed, a human who is recorded, wrong input."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from dart_envs.cli.main import app
from dart_envs.demos import DemonstrationError, DemoWriter, read_demonstration
from dart_envs.demos import human as person_module
from dart_envs.demos.human import HumanRecorder
from dart_envs.demos.replay import screens_match
from dart_envs.demos.store import Demonstration, load_screen
from dart_envs.observations.annotated_screens import annotations_of
from dart_envs.testing.fake_farm import FakeFarm
from dart_envs.types import Action, ActionType
from dart_server.wire import (
    A11yElement,
    ButtonEvent,
    DesktopShape,
    HumanInput,
    HumanInputs,
    InputEvent,
    KeyEvent,
    MoveEvent,
)

SHAPE = DesktopShape(resolution=(80, 64))
HEAD = Demonstration(
    task_id="toy/a/0000",
    content_hash="c0ffee",
    instruction="Type hello.",
    recorded_by="human",
    shape=SHAPE,
    image_digest="sha256:" + "0" * 64,
    started_at="2026-01-01T00:00:00+00:00",
    max_steps=5,
)
BLACK, WHITE = np.zeros((64, 80, 3), np.uint8), np.full((64, 80, 3), 255, np.uint8)
CLICK = Action(ActionType.CLICK, x=3, y=4)
BUTTON = A11yElement(role="push button", name="OK", x=1, y=2, w=3, h=4)


def test_a_demonstration_is_read_as_it_was_written(tmp_path: Path) -> None:
    writer = DemoWriter(tmp_path / "demo", HEAD)
    writer.add(CLICK, [ButtonEvent(type="down")], before=BLACK, after=WHITE, at_s=1, duration_s=0.2, elements=[BUTTON])
    writer.add(None, [MoveEvent(x=1, y=2)], before=WHITE, after=WHITE, at_s=2, duration_s=0)
    broken_off = read_demonstration(tmp_path / "demo")
    assert (broken_off.end, broken_off.reward) == (None, None)
    writer.finish("done", 1.0, duration_s=3.0, cause=None, outcome={"a": 1})
    made = read_demonstration(tmp_path / "demo")
    assert (made.end, made.reward, made.shape, made.outcome) == ("done", 1.0, SHAPE, {"a": 1})
    first, second = made.steps
    assert (first.action, second.action) == (CLICK, None)
    assert first.after == second.before == second.after
    assert second.events == (MoveEvent(x=1, y=2),)
    assert np.array_equal(load_screen(tmp_path / "demo", first.before), BLACK)
    screen = json.loads(annotations_of(tmp_path / "demo" / "screens" / f"{first.before}.png")[0].read_text())
    assert screen["elements"][0]["name"] == "OK"
    assert screen["action"] == {"type": "click", "x": 3, "y": 4}
    assert not annotations_of(tmp_path / "demo" / "screens" / f"{second.before}.png"), "its tree was not known"


def test_what_is_no_demonstration_is_said(tmp_path: Path) -> None:
    with pytest.raises(DemonstrationError, match="holds no demonstration"):
        read_demonstration(tmp_path)
    with pytest.raises(DemonstrationError, match="choose another folder"):
        DemoWriter(_full(tmp_path), HEAD)
    (tmp_path / "demonstration.json").write_text('{"format": "other"}')
    with pytest.raises(DemonstrationError, match="not of the format"):
        read_demonstration(tmp_path)
    (tmp_path / "demonstration.json").unlink()
    writer = DemoWriter(tmp_path / "demo", HEAD)
    (writer.folder / "steps.jsonl").write_text('{"index": 0}\n')
    with pytest.raises(DemonstrationError, match="line 1"):
        read_demonstration(writer.folder)


def _full(folder: Path) -> Path:
    (folder / "something").write_text("x")
    return folder


def test_screens_look_alike_but_for_a_caret() -> None:
    caret = BLACK.copy()
    caret[10:14, 10] = 255
    assert screens_match(BLACK, caret)
    window = BLACK.copy()
    window[10:30, 10:30] = 255
    assert not screens_match(BLACK, window)
    assert not screens_match(BLACK, BLACK[:32])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["tasks", "run", "basics/nothing/0000"], "nothing"),
        (["tasks", "run", "basics/press_nth/0000", "--resolution", "big"], "640x400"),
        (["demos", "record", "basics/nothing/0000", "new"], "nothing"),
        (["demos", "record", "basics/press_nth/0000", "full"], "choose another folder"),
        (["demos", "record", "basics/press_nth/0000", "new", "--resolution", "big"], "640x400"),
        (["demos", "record", "basics/press_nth/0000"], "Missing argument"),
        (["demos", "replay", "nowhere"], "there is no demonstration.json"),
        (["demos", "replay", "nowhere", "--oracle"], "No such option"),
    ],
)
def test_wrong_input_is_one_sentence_before_a_desktop_is_leased(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    _full(tmp_path / "full")
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2, result.output
    assert sentence in result.output
    assert not (tmp_path / "new").exists()


class FakeHumanInput:
    """Stands in for the farm's route: gives what the test puts, in order."""

    def __init__(self) -> None:
        self.said: list[HumanInput] = []
        self.controlled = False
        self.changed = asyncio.Event()

    def do(self, *events: InputEvent) -> None:
        self.said.append(HumanInput(number=len(self.said) + 1, at=datetime.now(UTC), events=list(events)))
        self.changed.set()

    async def listen(self, _lease: object, after: int, wait_s: float) -> HumanInputs:
        if wait_s and not any(one.number > after for one in self.said):
            self.changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.changed.wait(), min(wait_s, 0.05))
        new = [one for one in self.said if one.number > after]
        return HumanInputs(inputs=new, controlled=self.controlled, now=datetime.now(UTC))


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what is waited for is the recorder's own state
            await asyncio.sleep(0.01)


async def test_a_person_is_recorded_with_the_screens_around_each_action(
    farm: FakeFarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hands = FakeHumanInput()
    monkeypatch.setattr(person_module, "poll_human_inputs", hands.listen)
    monkeypatch.setattr(person_module, "CAPTURE_INTERVAL_S", 0.01)
    monkeypatch.setattr(person_module, "STABLE_BEFORE_A11Y_S", 0.0)
    lease = await farm.lease(SHAPE)
    screens = [BLACK]

    async def step(events: list[InputEvent], settle: object = None, **_options: object) -> Any:
        assert events == [], "a recorder presses nothing"
        frame = await type(lease).step(lease, [])
        return type(frame)(screens[-1], frame.header)

    async def a11y() -> list[A11yElement]:
        return [BUTTON]

    monkeypatch.setattr(lease, "step", step)
    monkeypatch.setattr(lease, "a11y", a11y)
    told: list[int] = []
    writer = DemoWriter(tmp_path / "demo", HEAD)
    recorder = HumanRecorder(lease, writer, on_step=lambda one: told.append(one.index))  # type: ignore[arg-type]
    await recorder.start()
    hands.controlled = True
    await until(lambda: recorder._screens[-1].elements)
    hands.do(MoveEvent(x=3, y=4), ButtonEvent(type="down"), ButtonEvent(type="up"))
    screens.append(WHITE)
    await until(lambda: len(recorder._screens) > 1)
    hands.do(*(KeyEvent(type=kind, key="x") for kind in ("key_down", "key_up")))  # type: ignore[arg-type]
    await until(lambda: told == [0])
    hands.controlled = False
    hands.changed.set()
    await recorder.wait(recorder.control_returned)
    await recorder.stop(ActionType.DONE)
    writer.finish("done", 1.0, duration_s=1, cause=None, outcome={})
    made = read_demonstration(tmp_path / "demo")
    assert [step.action for step in made.steps] == [CLICK, Action(ActionType.TYPE, text="x"), Action(ActionType.DONE)]
    click, typed, done = made.steps
    assert np.array_equal(load_screen(tmp_path / "demo", click.before), BLACK)
    assert np.array_equal(load_screen(tmp_path / "demo", typed.before), WHITE)
    assert click.after == typed.before == done.before
    assert annotations_of(tmp_path / "demo" / "screens" / f"{click.before}.png"), (
        "the tree of the screen it met was read"
    )
    assert recorder.lost_inputs == 0
