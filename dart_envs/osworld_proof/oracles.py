"""Every solution by task id, and why a task has none.

Role: `solution_of`. Rule: a task of neither kind is an error of ours, not a pass.
"""

from __future__ import annotations

from collections.abc import Mapping

from dart_envs.osworld_proof import chrome, combined, gimp, office, system, vlc
from dart_envs.osworld_proof.moves import Oracle, OutOfReach

NO_VS_CODE = OutOfReach("Debian has no package of VS Code, so that its window never appears.")
OUT_OF_REACH_DOMAINS: Mapping[str, OutOfReach] = {"vs_code": NO_VS_CODE}

ORACLES: Mapping[str, Oracle] = {
    **chrome.ORACLES,
    **combined.ORACLES,
    **gimp.ORACLES,
    **office.ORACLES,
    **system.ORACLES,
    **vlc.ORACLES,
}


def solution_of(domain: str, task_id: str) -> Oracle | OutOfReach:
    """The solution of a task, or why there is none. domain: the folder of its file."""
    if domain in OUT_OF_REACH_DOMAINS:
        return OUT_OF_REACH_DOMAINS[domain]
    return ORACLES.get(task_id) or OutOfReach("We have written no solution.")
