"""History policies: what a prompt shows of earlier turns, and that what is dropped is dropped for good."""

from __future__ import annotations

from typing import get_args

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dart_agent.prompts.builder import PromptBuilder, preset
from dart_agent.prompts.history import History, HistoryPolicy, HistorySettings, Turn
from dart_envs.types import Observation, RgbImage


def screen(value: int) -> RgbImage:
    return np.full((64, 64, 3), value, np.uint8)


def filled(turns: int, policy: HistoryPolicy, keep: int = 1, drop: int = 1) -> History:
    history = History(HistorySettings(policy=policy, keep=keep, drop=drop), summarise=str.upper)
    for number in range(turns):
        history.add(screen(number), f"answer {number}")
    return history


def shown(history: History) -> list[tuple[int | None, int]]:
    """Of every shown turn: its screen (None: not shown), and its number."""
    return [
        (None if turn.image is None else int(turn.image[0, 0, 0]), int(turn.text.split()[1])) for turn in history.turns
    ]


def test_full_shows_everything() -> None:
    assert shown(filled(4, "full")) == [(0, 0), (1, 1), (2, 2), (3, 3)]


def test_screens_keeps_all_answers_and_the_last_screens_the_coming_one_included() -> None:
    assert shown(filled(4, "screens", keep=3)) == [(None, 0), (None, 1), (2, 2), (3, 3)]
    assert shown(filled(2, "screens", keep=1)) == [(None, 0), (None, 1)]


def test_screens_that_are_dropped_together_change_the_prompt_less_often() -> None:
    firsts = [filled(turns, "screens", keep=4, drop=3).first_screen for turns in range(10)]
    assert firsts == [0, 0, 0, 0, 3, 3, 3, 6, 6, 6]
    assert all(1 <= turns - first + 1 <= 4 for turns, first in enumerate(firsts))


def test_window_shows_the_last_turns_only() -> None:
    assert shown(filled(5, "window", keep=2)) == [(3, 3), (4, 4)]
    assert filled(5, "window", keep=2).summary == ()


def test_summary_names_what_was_dropped() -> None:
    history = filled(4, "summary", keep=2)
    assert (shown(history), history.summary) == ([(2, 2), (3, 3)], ("ANSWER 0", "ANSWER 1"))


def test_a_full_context_halves_a_window_and_leaves_the_others() -> None:
    history = filled(5, "window", keep=5)
    seen = []
    while history.shrink():
        seen.append([number for _, number in shown(history)])
    assert seen == [[3, 4], [4], []]
    assert not filled(3, "full").shrink()
    assert not filled(3, "screens", keep=3).shrink()


def state(history: History) -> tuple[list[tuple[int | None, int]], tuple[str, ...], int, int]:
    return shown(history), history.summary, history.first_turn, history.first_screen


@given(
    policy=st.sampled_from(get_args(HistoryPolicy)),
    keep=st.integers(1, 9),
    drop=st.integers(1, 9),
    shrinks=st.lists(st.integers(0, 3), min_size=1, max_size=24),
    data=st.data(),
)
def test_a_history_is_rebuilt_from_what_is_saved(
    policy: HistoryPolicy, keep: int, drop: int, shrinks: list[int], data: st.DataObject
) -> None:
    """shrinks: how often each prompt was too long."""
    history = filled(0, policy, keep, drop)
    saved_at = data.draw(st.integers(0, len(shrinks) - 1), label="saved after turn")
    again = filled(0, policy, keep, drop)
    for number, times in enumerate(shrinks):
        for _ in range(times):
            shrunk = history.shrink()
            assert number <= saved_at or again.shrink() == shrunk
        prompt, images = state(history), sum(turn.image is not None for turn in history.turns)
        history.add(screen(number), f"answer {number}")
        if number > saved_at:
            again.add(screen(number), f"answer {number}")
            assert state(again) == state(history)
        elif number == saved_at:
            turns = [Turn(screen(at), f"answer {at}") for at in range(number + 1)]
            again.restore_shown(turns[:-1], images)
            assert state(again) == prompt
            again.restore(turns, history.first_turn, history.first_screen)
            assert state(again) == state(history)


def test_the_summary_stands_behind_the_instruction() -> None:
    builder = PromptBuilder(preset("uitars", history=HistorySettings(policy="summary", keep=1)))
    history = builder.new_history()
    for number in range(3):
        prompt = builder.build(Observation(screen(number), "Click OK"), history)
        history.add(prompt.images[-1], f"Thought: t{number}\nAction: wait() # {number}")
    messages = builder.messages("Click OK", history, (56, 56))
    text = messages[0]["content"][0]["text"]
    assert text.endswith("Click OK\n\nDone before the turns below:\n1. wait() # 0\n2. wait() # 1")
    assert [message["role"] for message in messages[1:]] == ["user", "assistant", "user"]
