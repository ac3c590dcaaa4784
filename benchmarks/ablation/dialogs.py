"""Tasks of the ablation: dialogs of simulated desktops, known to the processes of a run by an entry point.

Role: `SUITE`, and `install`, which makes the entry points of suite and perturbed engine. Rule: how many items there are, what they say, and
size and place of the dialog are drawn anew, so that only looking at the screen tells where to click; items are told by their place and
instructions are words of the preset `tiny`. The answer of a dialog counts only as a whole. Non-goals: realism (the demo has live
desktops); the point is a task that two cores learn in minutes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from dart_envs.tasks import Family, Suite, TaskDraft
from dart_envs.tasks.basics.screen_names import ORDINALS, BasicsScreenNames
from dart_envs.tasks.basics.words import sample_nouns

NAME = "ablation"
RESOLUTION = (640, 400)
DIALOG_FILE, ANSWER_FILE = "/sim/dialog.json", "/sim/answer"
"""Those of the provider `sim`."""
VARIATIONS = 160
"""Enough for disjoint tasks of training, validation and test; how many are trained on says the recipe."""
TRAINED = ("press_nth", "press_two", "press_three", "choose_nth", "tick_nth", "tick_two")
HELD_OUT = ("press_two_of_five", "choose_nth_of_six")
"""They ask as trained families do, on larger dialogs."""
HARD = ("press_four", "tick_three", "press_then_ok")
"""Candidates for families without a success in 256 samples: one click more than the longest trained families of their kind, and a sentence
that the warm start never saw, all with elements that it finds. A probe before the runs says which of them have none."""
SPARE_STEPS = 2
"""Steps that an episode may take beyond the shortest solution."""
_TITLE_PX, _MARGIN_PX, _GAP_PX = 22, 10, 8
_NOUNS = {"push button": "button", "check box": "box", "table cell": "row"}

Item = tuple[str, str, tuple[int, int, int, int]]
"""Role, name and box relative to the dialog, (left, top, right, bottom) in pixels."""


def _column(role: str, words: Sequence[str], top: int) -> list[Item]:
    """Boxes or rows below each other."""
    return [(role, word, (10, top + 32 * index, 190, top + 32 * index + 26)) for index, word in enumerate(words)]


def _line(words: Sequence[str], top: int) -> list[Item]:
    """Buttons side by side."""
    return [
        ("push button", word, (10 + 88 * index, top, 90 + 88 * index, top + 34)) for index, word in enumerate(words)
    ]


def _draft(
    random: Random, instruction: str, items: Sequence[Item], clicks: Sequence[str], presses: int, answer: str
) -> TaskDraft:
    """A task whose solution clicks on items by their names; a near miss leaves the first click out."""
    width = max(box[2] for _, _, box in items) + _MARGIN_PX
    height = max(box[3] for _, _, box in items) + _MARGIN_PX
    left, top = random.randint(0, RESOLUTION[0] - width), random.randint(0, RESOLUTION[1] - height)
    dialog = {
        "title": "Question",
        "box": [left, top, left + width, top + height],
        "presses": presses,
        "items": [
            {"role": role, "name": name, "box": [left + box[0], top + box[1], left + box[2], top + box[3]]}
            for role, name, box in items
        ],
    }
    roles = {name: role for role, name, _ in items}
    moves = [{"do": "click", "target": {"role": roles[name], "name": name}} for name in clicks]
    return TaskDraft(
        instruction=instruction,
        config=[{"type": "write_file", "parameters": {"path": DIALOG_FILE, "content": json.dumps(dialog)}}],
        evaluator={
            "func": "exact_match",
            "result": {"type": "vm_command_line", "command": ["cat", ANSWER_FILE]},
            "expected": {"type": "rule", "rules": {"expected": answer}},
        },
        oracle=moves,
        near_miss=moves[1:] or [{"do": "wait"}],
    )


def _said(index: int, count: int, random: Random, role: str) -> str:
    last = index == count - 1 and (index >= len(ORDINALS) or random.random() < 0.3)
    return f"the {'last' if last else ORDINALS[index]} {_NOUNS[role]}"


def _pressing(number: int, least: int, most: int, *, ok: bool = False) -> Callable[[Random], TaskDraft]:
    """Buttons in an order; `ok`: and OK below them at the end."""

    def generate(random: Random) -> TaskDraft:
        words = sample_nouns(random, random.randint(least, most))
        chosen = random.sample(range(len(words)), number)
        said = [_said(index, len(words), random, "push button") for index in chosen]
        clicks = [words[index] for index in chosen]
        items = _line(words, _TITLE_PX + _GAP_PX)
        if ok:
            below = items[-1][2][3] + _GAP_PX
            items.append(("push button", "OK", (10, below, 74, below + 34)))
            said.append("OK")
            clicks.append("OK")
        return _draft(random, f"Press {', then '.join(said)}.", items, clicks, len(clicks), " ".join(clicks))

    return generate


def _marking(role: str, number: int, *, least: int = 3, most: int = 5) -> Callable[[Random], TaskDraft]:
    """Boxes or rows, then OK."""

    def generate(random: Random) -> TaskDraft:
        words = sample_nouns(random, random.randint(max(least, number + 1), most))
        marked = sorted(random.sample(range(len(words)), number))
        items = _column(role, words, _TITLE_PX + _GAP_PX)
        below = items[-1][2][3] + _GAP_PX
        items.append(("push button", "OK", (10, below, 74, below + 34)))
        said = " and ".join(_said(index, len(words), random, role) for index in marked)
        verb = "Choose" if role == "table cell" else "Tick"
        names = [words[index] for index in marked] + ["OK"]
        return _draft(random, f"{verb} {said}, then press OK.", items, names, 1, " ".join(names))

    return generate


_FAMILIES = {
    "press_nth": (1, _pressing(1, 3, 4)),
    "press_two": (2, _pressing(2, 3, 4)),
    "press_three": (3, _pressing(3, 3, 5)),
    "choose_nth": (2, _marking("table cell", 1)),
    "tick_nth": (2, _marking("check box", 1)),
    "tick_two": (3, _marking("check box", 2)),
    "press_two_of_five": (2, _pressing(2, 5, 5)),
    "choose_nth_of_six": (2, _marking("table cell", 1, least=6, most=6)),
    "press_four": (4, _pressing(4, 4, 5)),
    "tick_three": (4, _marking("check box", 3)),
    "press_then_ok": (2, _pressing(1, 3, 4, ok=True)),
}

SUITE = Suite.from_families(
    NAME,
    [
        Family(
            name,
            "sim",
            f"A dialog that takes {clicks} clicks.",
            clicks + SPARE_STEPS,
            generate,
            publish_setup=False,
            held_out=name in HELD_OUT,
            variations=VARIATIONS,
        )
        for name, (clicks, generate) in _FAMILIES.items()
    ],
    screen_names=BasicsScreenNames(),
)


def install(folder: Path) -> None:
    """Make a folder that brings suite and perturbed engine along when it is on the path of Python.

    Args:
        folder: The folder; it may be there already.
    """
    info = folder / f"dart_{NAME}-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: dart-{NAME}\nVersion: 0\n", encoding="utf-8")
    entry_points: dict[str, Any] = {
        "dart_envs.suites": f"{NAME} = {__name__}:SUITE",
        "vllm.general_plugins": f"dart_{NAME} = benchmarks.ablation.perturbed_engine:register",
    }
    text = "".join(f"[{group}]\n{line}\n" for group, line in entry_points.items())
    (info / "entry_points.txt").write_text(text, encoding="utf-8")
