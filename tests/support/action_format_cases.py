"""Turns, prompts and actions for tests of action formats.

Role: past turns, the shape of messages, and samples of canonical actions that a format can write. Rule: deterministic by seed. Non-goals:
what single formats look like.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dart_envs.action_formats.base import ActionFormat, Message
from dart_envs.errors import ActionError
from dart_envs.key_names import NAMED_KEYS
from dart_envs.observations.geometry import PointMap
from dart_envs.types import Action, ActionType, RgbImage

SCREEN_WH = (1920, 1080)
TEXTS = (
    "hello",
    'it\'s (here), "ok"',
    "C:\\new\\n",
    "two\nlines\n",
    "\ttab\r",
    "</tool_call>",
    "<think>",
    "Action: go",
    "日本語 😀 \u202e",
    "]]}}'''",
    "```\nDONE\n```",
    "",
)
KEYS = (*NAMED_KEYS, "a", "S", "+", "-", "'", '"', "\\", "/", "é")


@dataclass(frozen=True)
class PlainTurn:
    """A finished step."""

    image: RgbImage | None
    text: str


def past_turns(count: int, shown: int) -> list[PlainTurn]:
    """Steps of which the last `shown` have pictures; their answers are UI-TARS'."""
    picture = np.zeros((1, 1, 3), np.uint8)
    return [
        PlainTurn(
            picture if index >= count - shown else None, f"Thought: {index}\nAction: click(start_box='({index},9)')"
        )
        for index in range(count)
    ]


def turn_shape(messages: Sequence[Message]) -> list[tuple[str, list[str]]]:
    """Role and kinds of parts of each message."""
    return [(message["role"], [part["type"] for part in message["content"]]) for message in messages]


def turn_texts(messages: Sequence[Message], role: str) -> list[Any]:
    """The texts of one role."""
    return [
        part["text"]
        for message in messages
        if message["role"] == role
        for part in message["content"]
        if part["type"] == "text"
    ]


def point_map(action_format: ActionFormat, screen_wh: tuple[int, int] = SCREEN_WH) -> PointMap:
    """How the format's points map to a screen."""
    return PointMap(action_format.picture.fit(screen_wh), screen_wh, action_format.coordinates)


def sample_action(kind: ActionType, points: PointMap, chance: random.Random) -> Action:
    """A canonical action whose points the format can write exactly."""

    def place() -> tuple[int, int]:
        width, height = points.coordinate_wh
        screen = points.to_screen(chance.randrange(width), chance.randrange(height))
        assert screen is not None
        return screen

    x, y = place()
    match kind:
        case ActionType.DRAG:
            x2, y2 = place()
            return Action(kind, x=x, y=y, x2=x2, y2=y2)
        case ActionType.SCROLL:
            amount = chance.choice([-50, -5, -1, 1, 5, 50])
            return Action(kind, x=x, y=y, **chance.choice([{"dx": amount}, {"dy": amount}]))
        case ActionType.TYPE:
            return Action(kind, text=chance.choice(TEXTS))
        case ActionType.KEY:
            return Action(kind, keys=tuple(chance.sample(KEYS, chance.randint(1, 3))))
        case ActionType.WAIT:
            return Action(kind, duration_s=chance.choice([0.5, 1.0, 2.0, 3.0, 5.0]))
        case ActionType.DONE | ActionType.FAIL:
            return Action(kind)
        case _:
            return Action(kind, x=x, y=y)


def sample_answer(action_format: ActionFormat, points: PointMap, chance: random.Random) -> str:
    """An answer with one to three actions that the format can write."""
    kinds = sorted(action_format.expresses)
    while True:
        actions = [sample_action(chance.choice(kinds), points, chance) for _ in range(chance.choice([1, 1, 1, 2, 3]))]
        try:
            return action_format.format(actions, points, thought=chance.choice(["", "Click OK", "Press «Save»"]))
        except ActionError:
            continue
