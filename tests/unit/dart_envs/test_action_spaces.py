"""Action spaces: every sample can be performed, every refusal is one sentence, and each form means what its users expect."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_task import ToyTask

from dart_envs.action_spaces import CODECS, make_codec
from dart_envs.action_spaces.discrete_grid import KEYS, DiscreteGridCodec
from dart_envs.action_spaces.normalized import SIZE
from dart_envs.envs.env import DartOSWorldEnv
from dart_envs.envs.vector import DartVectorEnv
from dart_envs.errors import ActionError
from dart_envs.testing.fake_desktop import FakeDesktop
from dart_envs.testing.fake_farm import FakeFarm
from dart_envs.types import Action, ActionType, DecodedAction
from dart_server.wire import (
    ButtonEvent,
    ExecReply,
    InputEvent,
    KeyEvent,
    MoveEvent,
    ScrollEvent,
    StepRequest,
    TextEvent,
    WaitEvent,
)

SCREEN = (640, 400)
SMALL = (80, 64)
HERE = (10, 20)


def down(button: int = 1) -> ButtonEvent:
    return ButtonEvent(type="down", button=button)


def up(button: int = 1) -> ButtonEvent:
    return ButtonEvent(type="up", button=button)


def key(name: str, kind: Any = "key_down") -> KeyEvent:
    return KeyEvent(type=kind, key=name)


def stroke(*names: str) -> list[InputEvent]:
    return [*(key(name) for name in names), *(key(name, "key_up") for name in reversed(names))]


def read(space: str, value: Any) -> list[InputEvent]:
    return list(make_codec(space, SCREEN).decode(value, HERE).events)


@pytest.mark.parametrize("name", CODECS)
def test_every_sample_is_inside_and_can_be_performed(name: str) -> None:
    codec = make_codec(name, SCREEN)
    codec.space.seed(3)
    for _ in range(300):
        sample = codec.space.sample()
        assert sample in codec.space
        gesture = codec.decode(sample, HERE)
        codec.commit()
        StepRequest(events=list(gesture.events))
    again = make_codec(name, SCREEN)
    assert again.space == codec.space
    first, second = (make_codec(name, SCREEN).space for _ in range(2))
    first.seed(5)
    second.seed(5)
    assert [str(first.sample()) for _ in range(10)] == [str(second.sample()) for _ in range(10)]


@pytest.mark.parametrize("name", CODECS)
def test_canonical_actions_are_taken_in_every_space(name: str) -> None:
    codec = make_codec(name, SCREEN)
    assert codec.decode(Action(ActionType.DONE), HERE) == DecodedAction((), ActionType.DONE)
    assert codec.decode(Action(ActionType.CLICK, x=3, y=4), HERE).events[0] == MoveEvent(x=3, y=4)
    with pytest.raises(ActionError, match="between 0 and 639"):
        codec.decode(Action(ActionType.CLICK, x=640, y=4), HERE)
    with pytest.raises(ActionError):
        codec.decode(object(), HERE)


def test_an_unknown_space_is_named() -> None:
    with pytest.raises(ValueError, match=r"no action space 'mouse'.*computer_13"):
        DartOSWorldEnv(ToyTask(), action_space="mouse")


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.filterwarnings("ignore:.*Not able to test alternative render modes.*")
def test_check_env_is_clean(farm: FakeFarm, name: str) -> None:
    farm.programs["python"] = lambda desktop, argv, stdin: ExecReply(returncode=0, stdout="", stderr="")
    env = DartOSWorldEnv(ToyTask(max_steps=3), resolution=SMALL, farm=farm, action_space=name)
    check_env(env)
    env.close()
    assert all(lease.released for lease in farm.leases)


@pytest.mark.parametrize("name", CODECS)
def test_a_vector_takes_batches_of_its_space(farm: FakeFarm, name: str) -> None:
    farm.programs["python"] = lambda desktop, argv, stdin: ExecReply(returncode=0, stdout="", stderr="")
    vector = DartVectorEnv(3, task=ToyTask(max_steps=50), resolution=SMALL, farm=farm, action_space=name)
    vector.action_space.seed(1)
    vector.reset(seed=1)
    for _ in range(6):
        observations, rewards, *_ = vector.step(vector.action_space.sample())
        assert observations["screenshot"].shape == (3, 64, 80, 3)
        assert rewards.shape == (3,)
    vector.close()


class TestComputer13:
    def test_what_osworlds_agents_send(self) -> None:
        assert read("computer_13", {"action_type": "MOVE_TO", "parameters": {"x": 3.7, "y": 4}}) == [
            MoveEvent(x=3, y=4)
        ]
        assert read("computer_13", {"action_type": "CLICK", "x": 3, "y": 4, "button": "right"}) == [
            MoveEvent(x=3, y=4),
            down(3),
            up(3),
        ]
        assert read("computer_13", {"action_type": "CLICK"}) == [down(), up()]
        assert read("computer_13", {"action_type": "MOUSE_DOWN", "button": "middle"}) == [down(2)]
        assert read("computer_13", {"action_type": "TYPING", "parameters": {"text": "é<"}}) == [TextEvent(text="é<")]
        assert read("computer_13", {"action_type": "HOTKEY", "parameters": {"keys": ["ctrl", "Alt", "t"]}}) == stroke(
            "ctrl", "alt", "t"
        )
        assert read("computer_13", {"action_type": "SCROLL", "parameters": {"dx": 0, "dy": -5}}) == [ScrollEvent(dy=-5)]
        assert read("computer_13", "WAIT") == [WaitEvent(ms=1000)]
        assert make_codec("computer_13", SCREEN).decode("FAIL", HERE).end is ActionType.FAIL

    def test_a_drag_begins_at_the_pointer(self) -> None:
        events = read("computer_13", {"action_type": "DRAG_TO", "parameters": {"x": 90, "y": 20}})
        assert (events[0], events[-1]) == (down(), up())
        moves = [event for event in events if isinstance(event, MoveEvent)]
        assert moves[0] == MoveEvent(x=20, y=20)
        assert moves[-1] == MoveEvent(x=90, y=20)

    @pytest.mark.parametrize(
        ("value", "sentence"),
        [
            ({"action_type": "FLY"}, "no action_type 'FLY'"),
            ({"action_type": "CLICK", "parameters": {"z": 1}}, "CLICK takes no z"),
            ({"action_type": "CLICK", "parameters": [1]}, "are a dict"),
            ({"action_type": "CLICK", "x": 1}, "needs y as a number"),
            ({"action_type": "CLICK", "x": 1, "y": float("nan")}, "needs y as a number"),
            ({"action_type": "CLICK", "x": 640, "y": 1}, "between 0 and 639"),
            ({"action_type": "CLICK", "button": "fourth"}, "left, right or middle"),
            ({"action_type": "PRESS", "key": "anykey"}, "pyautogui's names"),
            ({"action_type": "HOTKEY", "keys": []}, "1 to 5"),
            ({"action_type": "SCROLL"}, "dx or dy"),
            ({"action_type": "TYPING", "text": "a\0"}, "NUL"),
            ({"action_type": 99}, "from 0 to 15"),
            ("DANCE", "WAIT, FAIL or DONE"),
            (7, "a dict with action_type"),
        ],
    )
    def test_refusals(self, value: Any, sentence: str) -> None:
        with pytest.raises(ActionError, match=sentence):
            read("computer_13", value)


class TestPyautogui:
    @pytest.mark.parametrize(
        ("code", "events"),
        [
            ("pyautogui.click(3, 4)", [MoveEvent(x=3, y=4), down(), up()]),
            ("import pyautogui; pyautogui.click([3, 4])", [MoveEvent(x=3, y=4), down(), up()]),
            ("```python\npyautogui.rightClick(x=3.9, y=4)\n```", [MoveEvent(x=3, y=4), down(3), up(3)]),
            ("pyautogui.moveRel(5, -5)", [MoveEvent(x=15, y=15)]),
            ("pyautogui.click(duration=0.5)", [down(), up()]),
            ("pyautogui.write('a\\n<é', interval=0)", [TextEvent(text="a\n<é")]),
            ("pyautogui.press(['down', 'enter'])", [*stroke("down"), *stroke("enter")]),
            ("pyautogui.press('down', presses=2)", [*stroke("down"), *stroke("down")]),
            ("pyautogui.hotkey('Ctrl', 'S')", stroke("ctrl", "s")),
            ("pyautogui.hotkey(['ctrl', 'c'])", stroke("ctrl", "c")),
            ("pyautogui.scroll(-3, 5, 6)", [MoveEvent(x=5, y=6), ScrollEvent(dy=-3)]),
            ("import time\ntime.sleep(0.5)", [WaitEvent(ms=500)]),
            ("pyautogui.FAILSAFE = False\npyautogui.keyDown('shift')", [key("shift")]),
            (
                "with pyautogui.hold('shift'):\n    pyautogui.press('left')",
                [key("shift"), *stroke("left"), key("shift", "key_up")],
            ),
            ("pass", []),
        ],
    )
    def test_what_the_calls_mean(self, code: str, events: list[InputEvent]) -> None:
        assert read("pyautogui", code) == events

    def test_a_relative_drag_goes_on_from_the_last_move(self) -> None:
        events = read("pyautogui", "pyautogui.moveTo(100, 50); pyautogui.dragRel(40, 0)")
        assert events[:2] == [MoveEvent(x=100, y=50), down()]
        assert events[-3] == MoveEvent(x=140, y=50)

    @pytest.mark.parametrize(
        ("code", "sentence"),
        [
            ("import os", "no call of pyautogui"),
            ("import pyautogui as p", "no call of pyautogui"),
            ("pyautogui.click(open('/etc/passwd'))", "literal values"),
            ("__import__('os').system('id')", "not a function of pyautogui"),
            ("pyautogui.screenshot()", "not among the calls"),
            ("os.system('id')", "not among the calls"),
            ("x = 3", "pyautogui-exec"),
            ("for i in range(9): pyautogui.click()", "pyautogui-exec"),
            ("pyautogui.click(1, 2", "not Python"),
            ("pyautogui.click(1, 2, foo=3)", "no argument 'foo'"),
            ("pyautogui.click(1, 2, **{})", "no argument None"),
            ("pyautogui.click(9999, 2)", "outside the 640x400 screen"),
            ("pyautogui.click('a.png')", "not a number"),
            ("pyautogui.press('anykey')", "no key"),
            ("pyautogui.press('a', presses=100000)", "from 0 to 100"),
            ("time.sleep(1e9)", "at most 60 seconds"),
            ("time.sleep(float('inf'))", "literal values"),
            ("pyautogui.write('a' * 10**9)", "literal values"),
            ("a\0b", "not Python"),
            ("(" * 5000, "not Python"),
            ("pyautogui.click();" * 2000, "at most 2000|limit is"),
        ],
    )
    def test_refusals(self, code: str, sentence: str) -> None:
        with pytest.raises(ActionError, match=sentence):
            read("pyautogui", code)

    def test_words_and_commands(self) -> None:
        codec = make_codec("pyautogui", SCREEN)
        assert codec.decode("DONE", HERE).end is ActionType.DONE
        assert codec.decode(" FAIL\n", HERE).end is ActionType.FAIL
        assert codec.decode({"command": "pyautogui.click()"}, HERE).events == (down(), up())

    @given(st.text(max_size=60))
    @settings(max_examples=300, deadline=None)
    def test_no_text_does_anything_else(self, text: str) -> None:
        codec = make_codec("pyautogui", SCREEN)
        for code in (text, f"pyautogui.{text}", f"pyautogui.write({text!r})", f"pyautogui.click({text})"):
            with contextlib.suppress(ActionError):
                assert codec.decode(code, HERE).code is None

    def test_the_executed_form_runs_in_the_desktop_and_says_so(self) -> None:
        ran: list[list[str]] = []

        def python(_desktop: FakeDesktop, argv: list[str], _stdin: str) -> ExecReply:
            ran.append(argv)
            return ExecReply(returncode=1, stdout="", stderr="NameError")

        farm = FakeFarm(programs={"python": python})
        env = DartOSWorldEnv(ToyTask(), resolution=SMALL, farm=farm, action_space="pyautogui-exec")
        env.reset()
        *_, info = env.step("for i in range(3): pyautogui.click(nowhere)")
        assert info["code"] == {"returncode": 1, "timed_out": False, "stderr": "NameError"}
        assert "import pyautogui" in ran[0][-1]
        assert env.step("DONE")[2]
        env.close()


class TestUitars:
    def test_calls_with_and_without_the_marks(self) -> None:
        click = [MoveEvent(x=3, y=4), down(), up()]
        assert read("uitars", "click(start_box='(3,4)')") == click
        assert read("uitars", "Thought: first (the box).\nAction: click(start_box='(3,4)')") == click
        assert read("uitars", "type(content='Action: go')") == [TextEvent(text="Action: go")]
        assert make_codec("uitars", SCREEN).decode("finished()", HERE).end is ActionType.DONE
        with pytest.raises(ActionError, match="There is no action 'fly'"):
            read("uitars", "fly()")
        with pytest.raises(ActionError, match="not int"):
            read("uitars", 7)


class TestDiscreteGrid:
    def test_the_numbering_of_a_grid(self) -> None:
        codec = DiscreteGridCodec((1600, 900))
        cells = 16 * 9
        assert codec.space.n == 3 * cells + len(KEYS) + 4
        assert codec.centre(0) == (50, 50)
        assert codec.centre(17) == (150, 150)
        assert codec.decode(17, HERE).events == (MoveEvent(x=150, y=150), down(), up())
        assert codec.decode(np.int64(2 * cells), HERE).events == (MoveEvent(x=50, y=50), down(3), up(3))
        assert list(codec.decode(3 * cells, HERE).events) == stroke("enter")
        assert codec.decode(codec.space.n - 1, HERE).end is ActionType.DONE
        for wrong in (-1, codec.space.n, 1.5, True, "3"):
            with pytest.raises(ActionError, match="whole number"):
                codec.decode(wrong, HERE)


class TestNormalized:
    def test_a_drag_is_three_steps(self) -> None:
        codec = make_codec("normalized", SCREEN)
        still = np.full(SIZE, -1.0)
        still[5:7] = 0.0
        held = still.copy()
        held[2] = 0.5
        end = held.copy()
        end[0:2] = 1.0
        performed = []
        for numbers in (held, end, still):
            performed.append(list(codec.decode(numbers, HERE).events))
            codec.commit()
        assert performed == [
            [MoveEvent(x=0, y=0), down()],
            [MoveEvent(x=639, y=399)],
            [MoveEvent(x=0, y=0), up()],
        ]

    def test_what_was_decoded_but_not_performed_is_not_held(self) -> None:
        codec = make_codec("normalized", SCREEN)
        numbers = np.zeros(SIZE)
        numbers[7] = 1.0
        assert codec.decode(numbers, HERE).events[1:] == (key("ctrl"),)
        assert codec.decode(numbers, HERE).events[1:] == (key("ctrl"),)
        codec.commit()
        assert codec.decode(numbers, HERE).events[1:] == ()
        numbers[-1] = 1.0
        gesture = codec.decode(numbers, HERE)
        assert gesture.events[1:] == (key("ctrl", "key_up"),)
        assert gesture.end is ActionType.DONE

    @pytest.mark.parametrize("value", [np.full(SIZE, 1.5), np.zeros(3), "up", np.full(SIZE, np.nan), None])
    def test_refusals(self, value: Any) -> None:
        with pytest.raises(ActionError, match=r"numbers in \[-1, 1\]"):
            read("normalized", value)
