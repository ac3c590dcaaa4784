"""What the warm start draws from recorded screens for a policy with an action head."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import numpy as np

from dart_agent.grounding.acting.settings import tell_of_targets
from dart_agent.prompts.builder import PromptBuilder, preset
from dart_envs.types import Action, ActionType
from dart_server.wire import A11yElement
from dart_train.warmup.config import WarmupConfig
from dart_train.warmup.lessons import Lessons
from dart_train.warmup.screens import AnnotatedScreen

PIXELS = np.full((400, 640, 3), 200, np.uint8)


def dialog(words: tuple[str, ...]) -> tuple[A11yElement, ...]:
    buttons = [
        A11yElement(role="push button", name=word, x=110 + 90 * n, y=100, w=80, h=30) for n, word in enumerate(words)
    ]
    return (A11yElement(role="dialog", name="", x=100, y=60, w=400, h=100), *buttons)


def screen(family: str, number: int, step: int, action: Action | None = None) -> AnnotatedScreen:
    clicked = Action(ActionType.CLICK, x=120, y=110) if action is None else action
    name = Path(f"{family}-{number}-{step}.png")
    elements = dialog(("Moon", "Tiger"))
    return AnnotatedScreen(name, f"basics/{family}/{number:04}", "Press Moon.", step, elements, clicked)


def lessons(tmp_path: Path, screens: list[AnnotatedScreen]) -> Lessons:
    config = WarmupConfig(
        start_model="none", screens=tmp_path, out_dir=tmp_path / "warm", metrics=tmp_path / "m.jsonl", pointer=True
    )
    return Lessons(
        config,
        PromptBuilder(tell_of_targets(preset("tiny"))),
        [(PIXELS, each) for each in screens],
        Random(1),
        imitated={each.of_step for each in screens},
        described=True,
        by_text=True,
    )


def test_steps_are_drawn_alike_however_many_screens_they_have_and_then_by_their_loss(tmp_path: Path) -> None:
    typed = Action(ActionType.TYPE, text="mkdir Moon")
    many = [screen("press_button", number, 0) for number in range(20)]
    drawn = lessons(tmp_path, [*many, screen("shell_mkdir", 1, 0, typed)])
    first = drawn.draw_answers(400)
    counts = Counter(lesson.step for lesson in first)
    assert 150 < counts["shell_mkdir", 0] < 250
    assert {lesson.queries[0].answer for lesson in first if lesson.step == ("shell_mkdir", 0)} == {
        "Action: type(content='mkdir Moon')"
    }
    drawn.learn_answers(first, [9.0 if lesson.step == ("shell_mkdir", 0) else 1.0 for lesson in first])
    counts = Counter(lesson.step for lesson in drawn.draw_answers(400))
    assert counts["shell_mkdir", 0] > 300
    assert counts["press_button", 0] > 10


def test_questions_to_the_head_are_drawn_by_the_loss_of_their_names(tmp_path: Path) -> None:
    drawn = lessons(tmp_path, [screen("press_button", number, 0) for number in range(4)])
    first = drawn.draw_questions(50)
    names = [name for lesson in first for name in lesson.names]
    by_text = ("press_button", None)
    assert set(names) >= {by_text}
    assert all(len(lesson.questions) == len(lesson.names) <= 6 for lesson in first)
    for lesson in first:
        assert [name[1] is None for name in lesson.names] == [each.text is not None for each in lesson.questions]
    for _ in range(30):
        drawn.learn_questions(first, [8.0 if name == by_text else 0.1 for name in names])
    asked = drawn.draw_questions(200)
    assert sum(lesson.names[0] == by_text for lesson in asked) > 150
