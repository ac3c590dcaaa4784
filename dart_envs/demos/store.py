"""A demonstration on disk.

    DIR/demonstration.json     the task (id, hash of its content, instruction), the desktop's shape, who did it, how it ended, the reward
        steps.jsonl            one line per action: the canonical action (the form of training records), its events, the screens around it
        screens/<sha256>.png   full screens, by content; <sha256>-<step>.json beside one whose accessibility tree is known:
        `dart_envs.observations.annotated_screens`

Role: `DemoWriter`, `read_demonstration`. Rule: what was done is on disk as soon as it is done; only a demonstration that came to its end
has an `end`. Non-goals: recording (`person`, `oracle`), performing (`replay`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from dart_envs.actions import action_from_dict, action_to_dict
from dart_envs.errors import ActionError, DartEnvError
from dart_envs.json_lines import append_json_line, read_json_lines
from dart_envs.observations.annotated_screens import write_annotated_screen, write_file_atomically, write_screenshot
from dart_envs.types import Action, DecodedAction, RgbImage
from dart_server.wire import A11yElement, DesktopShape, InputEvent

FORMAT = "dart-demonstration/1"
DEMONSTRATION_FILE, STEPS_FILE, SCREENS_FOLDER = "demonstration.json", "steps.jsonl", "screens"
_EVENTS: TypeAdapter[tuple[InputEvent, ...]] = TypeAdapter(tuple[InputEvent, ...])


class DemonstrationError(DartEnvError):
    """A folder that is no demonstration, or cannot become one."""


@dataclass(frozen=True, slots=True)
class DemoStep:
    """One action.

    at_s: since the demonstration's begin; duration_s: of the action itself. action: None for what only events can say. before, after:
    sha256 of the screens around it.
    """

    index: int
    at_s: float
    duration_s: float
    action: Action | None
    events: tuple[InputEvent, ...]
    before: str
    after: str

    @property
    def replay_action(self) -> Action | DecodedAction:
        """What to perform to do it again."""
        return self.action if self.action is not None else DecodedAction(self.events)


@dataclass(frozen=True, slots=True)
class Demonstration:
    """Who did what. end: None for one that was broken off; reward: None where there is no verdict."""

    task_id: str
    content_hash: str
    instruction: str
    recorded_by: str
    shape: DesktopShape
    image_digest: str
    started_at: str
    max_steps: int
    duration_s: float = 0.0
    end: str | None = None
    reward: float | None = None
    cause: str | None = None
    outcome: Mapping[str, Any] = field(default_factory=dict)
    steps: tuple[DemoStep, ...] = ()


class DemoWriter:
    """Writes one demonstration into a new or empty folder. Raises `DemonstrationError` where something is there already."""

    def __init__(self, folder: Path, head: Demonstration) -> None:
        check_folder_empty(folder)
        self.folder = folder
        self.head = head
        self._screens = folder / SCREENS_FOLDER
        self._screens.mkdir(parents=True, exist_ok=True)
        self._count = 0
        self._write_head({})

    def add(
        self,
        action: Action | None,
        events: Sequence[InputEvent],
        *,
        before: RgbImage,
        after: RgbImage,
        at_s: float,
        duration_s: float,
        elements: Sequence[A11yElement] | None = None,
    ) -> DemoStep:
        """Keep one action. before, after: screens, uint8 [H, W, 3]; elements: the accessibility tree of `before`, if it is known."""
        if elements is None:
            known = write_screenshot(self._screens, before)
        else:
            known = write_annotated_screen(
                self._screens,
                before,
                task_id=self.head.task_id,
                instruction=self.head.instruction,
                step=self._count,
                elements=elements,
                action=action,
            )
        step = DemoStep(
            self._count,
            round(at_s, 3),
            round(duration_s, 3),
            action,
            tuple(events),
            known,
            write_screenshot(self._screens, after),
        )
        line = {
            **asdict(step),
            "action": None if action is None else action_to_dict(action),
            "events": _EVENTS.dump_python(step.events, mode="json"),
        }
        append_json_line(self.folder / STEPS_FILE, line)
        self._count += 1
        return step

    @property
    def count(self) -> int:
        """Steps so far."""
        return self._count

    def finish(
        self, end: str, reward: float | None, *, duration_s: float, cause: str | None, outcome: Mapping[str, Any]
    ) -> None:
        """The verdict."""
        verdict = {"end": end, "reward": reward, "cause": cause, "outcome": dict(outcome)}
        self._write_head({"duration_s": round(duration_s, 3), **verdict})

    def _write_head(self, verdict: Mapping[str, Any]) -> None:
        head = {name: value for name, value in _to_json(self.head).items() if name != "steps"} | dict(verdict)
        text = json.dumps({"format": FORMAT, **head}, indent=1, default=str)
        write_file_atomically(self.folder / DEMONSTRATION_FILE, (text + "\n").encode())


def _to_json(head: Demonstration) -> dict[str, Any]:
    return {**asdict(head), "shape": head.shape.model_dump(mode="json"), "outcome": dict(head.outcome)}


def check_folder_empty(folder: Path) -> None:
    """Raise `DemonstrationError` unless a demonstration can be written there."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DemonstrationError(f"{folder} is there already and not an empty folder; choose another folder.")


def read_demonstration(folder: Path) -> Demonstration:
    """The demonstration of a folder, with its steps. Raises `DemonstrationError`."""
    path = folder / DEMONSTRATION_FILE
    try:
        head = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DemonstrationError(f"{folder} holds no demonstration: there is no {DEMONSTRATION_FILE} in it.") from None
    except (OSError, ValueError) as error:
        raise DemonstrationError(f"{path} cannot be read: {error}.") from error
    if not isinstance(head, dict) or head.pop("format", None) != FORMAT:
        raise DemonstrationError(f"{path} is not of the format {FORMAT}.")
    try:
        shape = DesktopShape.model_validate(head.pop("shape"))
        return Demonstration(**head, shape=shape, steps=tuple(_read_steps(folder / STEPS_FILE)))
    except (TypeError, KeyError, ValidationError) as error:
        raise DemonstrationError(f"{path} is not a demonstration: {error}.") from error


def _read_steps(path: Path) -> list[DemoStep]:
    if not path.exists():
        return []
    steps = []
    for number, line in enumerate(read_json_lines(path), start=1):
        try:
            record = json.loads(line)
            action = record.pop("action")
            events = _EVENTS.validate_python(record.pop("events"))
            steps.append(DemoStep(**record, action=None if action is None else action_from_dict(action), events=events))
        except (ValueError, TypeError, KeyError, ActionError) as error:
            raise DemonstrationError(f"{path}: line {number} is not a step: {error}.") from error
    return steps


def load_screen(folder: Path, sha256: str) -> RgbImage:
    """A screen of a demonstration, uint8 [H, W, 3]. Raises `DemonstrationError`."""
    import numpy as np
    from PIL import Image

    path = folder / SCREENS_FOLDER / f"{sha256}.png"
    try:
        with Image.open(path) as image:
            return np.asarray(image.convert("RGB"), dtype=np.uint8)
    except OSError as error:
        raise DemonstrationError(f"The screen {path} cannot be read: {error}.") from error
