"""What decides the states of a training, noted beside them.

Role: `changed_settings` writes the note where a training begins, and compares it where a training goes on. Non-goals: which settings
decide, and what a difference leads to.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dart_train.trainer.checkpoint import replace_synced

_SETTINGS = "settings.json"
log = logging.getLogger(__name__)


def changed_settings(
    checkpoints: Path, decides: Mapping[str, Any], *, resumes: bool, unwritten: Mapping[str, Any] | None = None
) -> list[str]:
    """Note what decides the states of a training, or compare it with what decided those that are there.

    Args:
        checkpoints: The folder of the states.
        decides: Settings by name, as JSON has them.
        resumes: Whether there is a state to go on from. States without a note, or with one that cannot be read, agree with everything.
        unwritten: Values of settings that a note may lack.

    Returns:
        The names of the settings that differ, sorted; none where the training may go on.
    """
    file = checkpoints / _SETTINGS
    if resumes and file.exists():
        try:
            before = {**(unwritten or {}), **json.loads(file.read_text(encoding="utf-8"))}
        except ValueError as error:
            log.warning("%s cannot be read (%s): the settings of the states beside it are not known", file, error)
        else:
            return sorted(key for key in {*before, *decides} if before.get(key) != decides.get(key))
    checkpoints.mkdir(parents=True, exist_ok=True)
    replace_synced(file, json.dumps(decides, indent=2) + "\n")
    return []
