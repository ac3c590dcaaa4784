"""Episodes as folders to look into, in the layout of OSWorld's runs, each with a page.

Role: `TrajectoryFolder` takes an episode's observations and actions and writes `traj.jsonl`, a screenshot per step, `recording.mp4`,
`result.txt` and `index.html`. Rule: what is there after a crash is whole, line by line; pictures are encoded in a thread, so that the other
episodes go on. An image without a recorder costs the recording only. Non-goals: the report (`page`).
"""

from __future__ import annotations

import asyncio
import html
import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dart_envs.actions import actions_to_dict
from dart_envs.errors import DartEnvError
from dart_envs.farm.base import LeaseLike
from dart_envs.json_lines import append_json_line
from dart_envs.observations.transforms import encode_png
from dart_envs.types import DecodedAction, Observation, StepResult

FOLDER = "trajectories"
STEPS_FILE, RESULT_FILE, RECORDING_FILE, PAGE_FILE = "traj.jsonl", "result.txt", "recording.mp4", "index.html"
STYLE = """
:root { color-scheme: light dark; } body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 0 auto; padding: 1rem; }
img { max-width: 100%; border: 1px solid #8888; } pre { white-space: pre-wrap; overflow-wrap: anywhere; background: #8881; padding: .5rem; }
li { margin: 1.25rem 0; } .soft { opacity: .7; }
"""


class TrajectoryFolder:
    """The folder of one episode; an earlier attempt's is emptied."""

    def __init__(self, root: Path, domain: str, task_id: str, instruction: str) -> None:
        """Nothing is written before `start`.

        root: Folder of the evaluation, beside whose report `trajectories/` lies.
        domain: What the report groups by.
        task_id: The task; slashes become hyphens in the folder's name.
        instruction: What the policy was asked to do.
        """
        self.relative = Path(FOLDER) / _file_name(domain) / _file_name(task_id)
        self._path = root / self.relative
        self._task_id, self._instruction = task_id, instruction
        self._steps: list[dict[str, Any]] = []
        self._recording = False

    async def start(self, lease: LeaseLike | None, observation: Observation) -> None:
        """Write the first screenshot and begin the recording."""
        shutil.rmtree(self._path, ignore_errors=True)
        self._path.mkdir(parents=True)
        await self._write_picture("step_0.png", observation)
        if lease is not None:
            try:
                self._recording = (await lease.guest("POST", "/start_recording")).status == 200
            except DartEnvError:
                self._recording = False  # the episode itself tells of a desktop that failed

    async def add(self, action: Any, result: StepResult, response: str | None = None) -> None:
        """Write a step: its line, and the screenshot after it. response: what the model said, where the action was read from it."""
        number, now = len(self._steps) + 1, datetime.now(UTC)
        name = f"step_{number}_{now:%Y%m%d@%H%M%S}.png"
        await self._write_picture(name, result.observation)
        step = {
            "step_num": number,
            "action_timestamp": f"{now:%Y%m%d@%H%M%S}",
            "action": _plain_action(action),
            **({} if response is None else {"response": response}),
            "reward": result.reward,
            "done": result.end is not None,
            "info": _plain(result.info),
            "screenshot_file": name,
        }
        self._steps.append(step)
        append_json_line(self._path / STEPS_FILE, step)

    async def finish(self, lease: LeaseLike | None, reward: float | None, end: str, cause: str | None) -> None:
        """Write the recording, the result and the page."""
        if self._recording and lease is not None and not lease.lost:
            try:
                film = await lease.guest("POST", "/end_recording")
            except DartEnvError:
                film = None  # the desktop is gone, and its recording with it
            if film is not None and film.status == 200:
                (self._path / RECORDING_FILE).write_bytes(film.content)
        if reward is not None:
            (self._path / RESULT_FILE).write_text(f"{reward}\n", encoding="ascii")
        (self._path / PAGE_FILE).write_text(self._page(reward, end, cause), encoding="utf-8", errors="replace")

    async def _write_picture(self, name: str, observation: Observation) -> None:
        encoded = await asyncio.to_thread(encode_png, observation.screenshot)
        (self._path / name).write_bytes(encoded)

    def _page(self, reward: float | None, end: str, cause: str | None) -> str:
        title = html.escape(self._task_id)
        verdict = "no verdict" if reward is None else f"reward {reward:g}"
        why = f": {html.escape(cause)}" if cause else ""
        film = f'<p><a href="{RECORDING_FILE}">recording</a></p>' if (self._path / RECORDING_FILE).exists() else ""
        steps = "".join(
            f"<li><pre>{html.escape(_text(step['action']))}</pre>"
            f'<img src="{html.escape(step["screenshot_file"])}" alt="after step {step["step_num"]}" loading="lazy"></li>'
            for step in self._steps
        )
        return (
            f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
            f"<title>{title}</title><style>{STYLE}</style><h1>{title}</h1><p>{html.escape(self._instruction)}</p>"
            f'<p class="soft">{verdict}, {html.escape(end)}{why}, {len(self._steps)} steps</p>{film}'
            f'<img src="step_0.png" alt="at the start"><ol>{steps}</ol></html>'
        )


def _file_name(text: str) -> str:
    return re.sub(r"[^\w.@-]", "-", text).lstrip(".") or "task"


def _text(action: Any) -> str:
    return action if isinstance(action, str) else json.dumps(action, ensure_ascii=False)


def _plain_action(action: Any) -> Any:
    """An action as JSON: a policy's text as it is, an `Action` by the fields that it sets, a batch by its input events."""
    if isinstance(action, DecodedAction):
        ended = {} if action.end is None else {"end": action.end.value}
        return {**actions_to_dict([action]), **ended}
    if is_dataclass(action) and not isinstance(action, type):
        given = {field.name: (getattr(action, field.name), field.default) for field in fields(action)}
        return {name: _plain(value) for name, (value, default) in given.items() if value != default}
    return _plain(action)


def _plain(value: Any) -> Any:
    """A value as JSON can carry it; what it cannot becomes its text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if value is None or isinstance(value, str | int | float):
        return value
    return value.item() if hasattr(value, "item") and getattr(value, "size", 0) == 1 else str(value)
