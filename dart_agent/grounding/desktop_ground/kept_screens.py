"""Screens of finished applications on disk, so that a benchmark whose desktops failed goes on where it was.

Role: `KeptScreens` writes and reads them, below the benchmark's folder until that is complete. Rule: an application is kept completely or
not at all: its file is written after its pictures. What was kept with other settings is never mixed in. Non-goals: the benchmark's own
files (`dart_agent.grounding.desktop_ground.generate`).

    OUT/unfinished/plan.json       what decides the screens
    OUT/unfinished/NAME.json       screens of an application, and the digest of the image that they come from
    OUT/unfinished/NAME-000.png    their pictures
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dart_agent.errors import ConfigError
from dart_agent.grounding.desktop_ground.screen import CapturedScreen, ScreenElement, ScreenWindow
from dart_agent.grounding.samples import Box, read_image
from dart_envs.observations.annotated_screens import write_file_atomically
from dart_envs.observations.transforms import encode_png

UNFINISHED, PLAN = "unfinished", "plan.json"


class KeptScreens:
    """What is kept below the folder of a benchmark.

    Args:
        out: The folder of the benchmark.
    """

    def __init__(self, out: Path) -> None:
        self._folder = out / UNFINISHED

    def differs_from(self, plan: Mapping[str, Any]) -> list[str] | None:
        """Compare with what was kept before.

        Args:
            plan: What decides the screens, as JSON values.

        Returns:
            Names of values that differ, none as long as no application is kept; None where no call has begun.
        """
        file = self._folder / PLAN
        if not file.is_file():
            return None
        if all(path.name == PLAN for path in self._folder.glob("*.json")):
            return []
        before = json.loads(file.read_text(encoding="utf-8"))
        wanted = json.loads(json.dumps(plan))
        return sorted(name for name in {*before, *wanted} if before.get(name) != wanted.get(name))

    def begin(self, plan: Mapping[str, Any]) -> None:
        """Note what decides the screens."""
        self._folder.mkdir(parents=True, exist_ok=True)
        write_file_atomically(self._folder / PLAN, json.dumps(plan).encode())

    def add(self, name: str, digest: str, screens: Sequence[CapturedScreen]) -> None:
        """Keep an application.

        Args:
            name: Its name.
            digest: Digest of the desktop image.
            screens: Its screens.
        """
        for number, screen in enumerate(screens):
            write_file_atomically(self._picture(name, number), encode_png(screen.pixels))
        record = {"image_digest": digest, "screens": [_to_record(screen) for screen in screens]}
        write_file_atomically(self._folder / f"{name}.json", json.dumps(record).encode())

    def read(self, name: str) -> tuple[str, list[CapturedScreen]] | None:
        """Read an application.

        Args:
            name: Its name.

        Returns:
            Digest of the image, and the screens; None where it was not kept.

        Raises:
            ConfigError: A file cannot be read.
        """
        file = self._folder / f"{name}.json"
        if not file.is_file():
            return None
        try:
            record = json.loads(file.read_text(encoding="utf-8"))
            found = record["screens"]
            screens = [_from_record(one, read_image(self._picture(name, number))) for number, one in enumerate(found)]
            return str(record["image_digest"]), screens
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{file} cannot be read ({error}): delete it, and {name} is walked again") from error

    def discard(self) -> None:
        """Delete everything that was kept."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _picture(self, name: str, number: int) -> Path:
        return self._folder / f"{name}-{number:03d}.png"


def _to_record(screen: CapturedScreen) -> dict[str, Any]:
    return {
        "application": screen.application,
        "state": screen.state,
        "elements": [asdict(one) | {"states": sorted(one.states)} for one in screen.elements],
        "windows": [asdict(one) for one in screen.windows],
        "own": sorted(screen.own),
    }


def _from_record(record: Mapping[str, Any], pixels: Any) -> CapturedScreen:
    elements = [
        ScreenElement(**one | {"states": frozenset(one["states"]), "box": _box(one["box"])})
        for one in record["elements"]
    ]
    windows = [ScreenWindow(**one | {"box": _box(one["box"])}) for one in record["windows"]]
    return CapturedScreen(
        record["application"], record["state"], pixels, tuple(elements), tuple(windows), frozenset(record["own"])
    )


def _box(numbers: Sequence[float] | None) -> Box | None:
    return None if numbers is None else (numbers[0], numbers[1], numbers[2], numbers[3])
