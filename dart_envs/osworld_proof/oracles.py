"""Every solution by task id, and why a task is out of reach.

Role: `ORACLES`, `reason_of`. Rule: a task with neither counts as not proved.
"""

from __future__ import annotations

from collections.abc import Mapping

from dart_envs.osworld_proof import chrome, combined, gimp, office, system, vlc
from dart_envs.osworld_proof.moves import Oracle

ORACLES: Mapping[str, Oracle] = {
    **chrome.ORACLES,
    **combined.ORACLES,
    **gimp.ORACLES,
    **office.ORACLES,
    **system.ORACLES,
    **vlc.ORACLES,
}

REASONS_BY_DOMAIN: Mapping[str, str] = {"vs_code": "Debian has no package of VS Code, so the image has none."}
REASONS: Mapping[str, str] = {
    "937087b6-f668-4ba6-9110-60682ee33441": "VLC is the image's only video player, so it is the default before anything is done.",
    "b6781586-6346-41cd-935a-a6b1487918fc": "The image's time zone is UTC, so nothing has to be done.",
}


def reason_of(domain: str, task_id: str) -> str | None:
    """Why a task is not proved on our image, where that was looked into. domain: the folder of its file."""
    return REASONS.get(task_id) or REASONS_BY_DOMAIN.get(domain)
