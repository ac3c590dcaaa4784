"""What a person's hands did, as the actions that they meant."""

from __future__ import annotations

from typing import Any

import pytest

from dart_envs.actions import check_action
from dart_envs.demos.coalesce import Coalescer, RecordedAction
from dart_envs.types import Action, ActionType
from dart_server.wire import ButtonEvent, InputEvent, KeyEvent, MoveEvent, ScrollEvent, WaitEvent

Timed = tuple[float, InputEvent]


def move(at_s: float, x: int, y: int) -> Timed:
    return at_s, MoveEvent(x=x, y=y)


def click(at_s: float, x: int, y: int, button: int = 1) -> list[Timed]:
    """As a live view sends it: where, pressed, let go a moment later."""
    return [
        move(at_s, x, y),
        (at_s + 0.01, ButtonEvent(type="down", button=button)),
        (at_s + 0.08, ButtonEvent(type="up", button=button)),
    ]


def key(at_s: float, name: str) -> list[Timed]:
    return [(at_s, KeyEvent(type="key_down", key=name)), (at_s + 0.05, KeyEvent(type="key_up", key=name))]


def down(at_s: float, name: str) -> Timed:
    return at_s, KeyEvent(type="key_down", key=name)


def up(at_s: float, name: str) -> Timed:
    return at_s, KeyEvent(type="key_up", key=name)


def typed(at_s: float, text: str) -> list[Timed]:
    """One letter every tenth of a second, the next before the last was let go."""
    events = [event for index, letter in enumerate(text) for event in key(at_s + 0.1 * index, letter)]
    return sorted(events, key=lambda one: one[0])


def all_of(*timed: Timed) -> list[RecordedAction]:
    hands = Coalescer()
    done = [one for at_s, event in timed for one in hands.feed(at_s, [event])]
    return done + list(hands.flush(1e9))


def actions(*timed: Timed) -> list[Action | None]:
    said = [one.action for one in all_of(*timed) if not one.is_hover]
    for action in said:
        if action is not None:
            check_action(action, (1280, 800))
    return said


def act(kind: str, **fields: Any) -> Action:
    return Action(ActionType(kind), **fields)


@pytest.mark.parametrize(
    ("timed", "meant"),
    [
        (click(1, 40, 50), [act("click", x=40, y=50)]),
        (click(1, 40, 50, button=3), [act("right_click", x=40, y=50)]),
        (click(1, 40, 50, button=2), [act("middle_click", x=40, y=50)]),
        ([*click(1, 40, 50), *click(1.3, 42, 50)], [act("double_click", x=40, y=50)]),
        ([*click(1, 40, 50), *click(1.3, 40, 50), *click(1.6, 40, 50)], [act("triple_click", x=40, y=50)]),
        ([*click(1, 40, 50), *click(2, 40, 50)], [act("click", x=40, y=50)] * 2),
        ([*click(1, 40, 50), *click(1.3, 90, 50)], [act("click", x=40, y=50), act("click", x=90, y=50)]),
        ([*click(1, 4, 5, 3), *click(1.3, 4, 5, 3)], [act("right_click", x=4, y=5)] * 2),
        (
            [*(e for n in range(4) for e in click(1 + 0.3 * n, 4, 5))],
            [act("triple_click", x=4, y=5), act("click", x=4, y=5)],
        ),
    ],
    ids=["one", "right", "middle", "double", "triple", "slow pair", "two places", "right twice", "four"],
)
def test_clicks(timed: list[Timed], meant: list[Action]) -> None:
    assert actions(*timed) == meant


def test_a_drag_goes_from_where_it_was_pressed_to_where_it_was_let_go() -> None:
    pulled = [move(1, 10, 10), (1.1, ButtonEvent(type="down"))]
    pulled += [move(1.2 + 0.05 * n, 10 + 20 * n, 10 + 3 * n) for n in range(6)]
    assert actions(*pulled, (2, ButtonEvent(type="up"))) == [act("drag", x=10, y=10, x2=110, y2=25)]


def test_a_hand_that_shakes_still_clicks() -> None:
    shaken = [move(1, 10, 10), (1.1, ButtonEvent(type="down")), move(1.15, 12, 11), (1.2, ButtonEvent(type="up"))]
    assert actions(*shaken) == [act("click", x=10, y=10)]


def test_a_drawn_curve_and_a_drag_of_another_button_keep_their_events() -> None:
    curve = [move(1, 10, 10), (1.1, ButtonEvent(type="down")), move(1.3, 60, 90), move(1.5, 110, 10)]
    (drawn,) = all_of(*curve, (1.6, ButtonEvent(type="up")))
    assert drawn.action is None
    assert [(e.x, e.y) for e in drawn.events if isinstance(e, MoveEvent)] == [(10, 10), (60, 90), (110, 10)]
    pulled = [move(1, 10, 10), (1.1, ButtonEvent(type="down", button=3)), move(1.3, 110, 10)]
    (right,) = all_of(*pulled, (1.6, ButtonEvent(type="up", button=3)))
    assert right.action is None
    assert [e.button for e in right.events if isinstance(e, ButtonEvent)] == [3, 3]


def test_the_wheel_is_one_scroll_until_it_stands_still_or_the_pointer_leaves() -> None:
    turned = [move(1, 30, 30), *((1 + 0.1 * n, ScrollEvent(dy=-1)) for n in range(5))]
    later = [(9.0, ScrollEvent(dx=1))]
    elsewhere = [move(9.1, 200, 30), (9.2, ScrollEvent(dy=2))]
    assert actions(*turned, *later, *elsewhere) == [
        act("scroll", x=30, y=30, dy=-5),
        act("scroll", x=30, y=30, dx=1),
        act("scroll", x=200, y=30, dy=2),
    ]


def test_more_than_an_action_may_scroll_is_two() -> None:
    assert actions(*((1 + 0.01 * n, ScrollEvent(dy=1)) for n in range(60))) == [
        act("scroll", x=0, y=0, dy=50),
        act("scroll", x=0, y=0, dy=10),
    ]


def test_letters_are_one_text_and_keys_between_them_are_keys() -> None:
    hands = [*typed(1, "Grüße 4"), *key(2, "enter"), *typed(2.5, "ok"), *key(3, "backspace"), *key(3.2, "backspace")]
    assert actions(*hands) == [
        act("type", text="Grüße 4"),
        act("key", keys=("enter",)),
        act("type", text="ok"),
        act("key", keys=("backspace",)),
        act("key", keys=("backspace",)),
    ]


def test_shift_and_altgr_belong_to_the_letter() -> None:
    shifted = [down(1, "shiftleft"), *key(1.1, "A"), up(1.3, "shiftleft"), *key(1.4, "b")]
    other = [down(1.6, "altgr"), *key(1.7, "@"), up(1.8, "altgr"), *key(1.9, "num7")]
    assert actions(*shifted, *other) == [act("type", text="Ab@7")]


def test_a_pause_ends_a_text() -> None:
    assert actions(*typed(1, "ab"), *typed(9, "cd")) == [act("type", text="ab"), act("type", text="cd")]


def test_chords() -> None:
    save = [down(1, "ctrlleft"), *key(1.1, "s"), up(1.3, "ctrlleft")]
    twice = [down(2, "ctrlleft"), down(2.1, "shiftright"), *key(2.2, "T"), up(2.3, "shiftright"), up(2.4, "ctrlleft")]
    alone = [down(3, "winleft"), up(3.1, "winleft"), down(4, "shiftleft"), up(4.1, "shiftleft")]
    back = [down(5, "shiftleft"), *key(5.1, "tab"), up(5.2, "shiftleft"), *key(6, "f5")]
    assert actions(*save, *twice, *alone, *back) == [
        act("key", keys=("ctrl", "s")),
        act("key", keys=("ctrl", "shift", "t")),
        act("key", keys=("win",)),
        act("key", keys=("shift", "tab")),
        act("key", keys=("f5",)),
    ]


def test_a_click_with_a_key_held_has_no_canonical_action_but_all_its_events() -> None:
    (held,) = all_of(down(1, "ctrlleft"), *click(1.2, 9, 9), up(1.6, "ctrlleft"))
    assert held.action is None
    assert [event.type for event in held.events if not isinstance(event, WaitEvent)] == [
        "key_down",
        "move",
        "down",
        "up",
        "key_up",
    ]


def test_what_no_action_can_name_keeps_its_events() -> None:
    (menu,) = all_of(*key(1, "apps"))
    assert menu.action is None
    assert [event.type for event in menu.events] == ["key_down", "key_up"]


def test_a_pointer_that_rests_is_told_apart() -> None:
    rested = all_of(move(1, 50, 50), move(3, 60, 90), *click(3.1, 60, 90))
    assert [(one.action, one.is_hover) for one in rested] == [
        (act("move", x=50, y=50), True),
        (act("click", x=60, y=90), False),
    ]
    passing = all_of(move(1, 50, 50), move(1.1, 55, 70), *click(1.2, 60, 90))
    assert [one.is_hover for one in passing] == [False]


def test_what_went_down_before_anybody_listened_is_left_out() -> None:
    assert all_of((1, ButtonEvent(type="up")), up(1, "ctrlleft")) == []


def test_times_tell_when_it_began_and_what_is_pending() -> None:
    hands = Coalescer()
    assert hands.pending_s is None
    for at_s, event in click(1, 4, 4):
        assert list(hands.feed(at_s, [event])) == []
    assert hands.pending_s == pytest.approx(1.01)
    assert list(hands.flush(1.3, force=False)) == []
    (one,) = hands.flush(1.7, force=False)
    assert (one.start_s, one.end_s) == (pytest.approx(1.01), pytest.approx(1.08))
    assert hands.pending_s is None


def test_events_keep_the_pauses_of_the_hand() -> None:
    (one,) = all_of(*click(1, 4, 4), *click(1.3, 4, 4))
    assert [event.ms for event in one.events if isinstance(event, WaitEvent)] == [70, 230, 70]
