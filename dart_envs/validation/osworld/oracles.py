"""Every solution by task id, and why a task is out of reach.

Role: `ORACLES`, `exclusion_reason`. Rule: a task with neither counts as not proved, and so does one with a reason, whatever it scored.
"""

from __future__ import annotations

from collections.abc import Mapping

from dart_envs.validation.osworld import chrome, gimp, multi_apps, office, system, vlc
from dart_envs.validation.osworld.actions import Oracle

ORACLES: Mapping[str, Oracle] = {
    **chrome.ORACLES,
    **multi_apps.ORACLES,
    **gimp.ORACLES,
    **office.ORACLES,
    **system.ORACLES,
    **vlc.ORACLES,
}

EXCLUDED_DOMAINS: Mapping[str, str] = {
    "vs_code": "The image has no VS Code: Debian has no package of it, and the free build in reach (npm's code-server) is a server for"
    " browsers, without the windows and dialogs that the tasks are about."
}
EXCLUSION_REASONS: Mapping[str, str] = {
    "937087b6-f668-4ba6-9110-60682ee33441": "VLC is the image's only video player, so it is the default before anything is done.",
    "99146c54-4f37-4ab8-9327-5f3291665e1e": "Some ten seconds after its start Chromium 156 writes a value of its own under the setting that"
    " OSWorld's getter looks for, so that nothing done scores 1 once it is there.",
    "b6781586-6346-41cd-935a-a6b1487918fc": "The image's time zone is UTC, so nothing has to be done.",
}


def exclusion_reason(domain: str, task_id: str) -> str | None:
    """Why a task is not proved on our image, where that was looked into. domain: the folder of its file."""
    return EXCLUSION_REASONS.get(task_id) or EXCLUDED_DOMAINS.get(domain)
