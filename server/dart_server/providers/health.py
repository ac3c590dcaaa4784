"""Why a desktop is (not) well: from what its host counted and what its agent says.

Rule: a pure function; whatever a provider uses to hold desktops, the same signs lead to the same cause.
"""

from __future__ import annotations

from typing import Any

from dart_server.providers.base import HealthCause

_FULL_BYTES = 1 << 20
_SIGKILL = "signal 9"


def diagnose(counters: dict[str, Any], agent: dict[str, Any] | None, agent_error: str) -> tuple[HealthCause, str]:
    """Why a desktop is (not) well, from the helper's counters and the agent's health (None: it does not answer).

    A desktop of which a limit was hit is broken also while its session answers: nothing can be saved on a full disk, nothing started
    without a free process, and what the kernel killed may have been part of what is to be judged. A frozen one is well although its agent
    is silent.
    """
    if counters["oom_kills"]:
        return HealthCause.OOM, f"its memory limit killed {counters['oom_kills']} processes"
    if counters["pids_refused"]:
        return HealthCause.PIDS, f"its process limit was hit {counters['pids_refused']} times"
    if counters["disk_free_bytes"] < _FULL_BYTES or (agent is not None and agent.get("disk_full")):
        return HealthCause.DISK_FULL, "its disk is full"
    if counters.get("kill_pending"):
        return HealthCause.KILLED_FROM_OUTSIDE, "its init was killed while it was frozen"
    if counters.get("frozen"):
        return HealthCause.OK, "frozen"
    if agent is not None and agent.get("session_alive", agent.get("x_alive", True)):
        return HealthCause.OK, ""
    if counters["state"] == "ended":
        if counters["exit_status"] == _SIGKILL:
            return HealthCause.KILLED_FROM_OUTSIDE, "its init was killed and none of its limits was hit"
        return HealthCause.SESSION_DEAD, f"its init ended by itself ({counters['exit_status']})"
    if agent is None:
        return HealthCause.AGENT_DEAD, agent_error
    return HealthCause.SESSION_DEAD, "the X server or the session is gone"
