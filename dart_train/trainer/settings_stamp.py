"""What decides the states of a training, noted beside them.

Role: `changed_settings` writes the note where a training begins, and compares it where a training goes on. Non-goals: which settings
decide, and what a difference leads to.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_SETTINGS = "settings.json"


def changed_settings(
    checkpoints: Path, decides: Mapping[str, Any], *, resumes: bool, unwritten: Mapping[str, Any] | None = None
) -> list[str]:
    """Note what decides the states of a training, or compare it with what decided those that are there.

    Args:
        checkpoints: The folder of the states.
        decides: Settings by name, as JSON has them.
        resumes: Whether there is a state to go on from. States without a note agree with everything.
        unwritten: Values of settings that a note may lack.

    Returns:
        The names of the settings that differ, sorted; none where the training may go on.
    """
    file = checkpoints / _SETTINGS
    if resumes and file.exists():
        before = {**(unwritten or {}), **json.loads(file.read_text(encoding="utf-8"))}
        return sorted(key for key in {*before, *decides} if before.get(key) != decides.get(key))
    checkpoints.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps(decides, indent=2) + "\n", encoding="utf-8")
    partial.replace(file)
    return []
