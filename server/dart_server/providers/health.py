"""The health check of a desktop: what its host counts and what its guest agent reports.

Role: `check_health`, shared by the providers of real desktops, and `diagnose`, a pure function from the signs to the cause. Rule: the same
signs lead to the same cause, whatever a provider uses to run desktops. Non-goals: reading the counters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from dart_server.providers import guest_control
from dart_server.providers.base import DesktopGone, DesktopHealth, HealthCause, ProviderError

RECHECKS, RECHECK_DELAY_S = 5, 0.1
"""A desktop whose init was killed stops answering a moment before its host reports that it has ended."""

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
    if counters.get("host_oom_kills"):
        killed = counters["host_oom_kills"]
        return HealthCause.HOST_OOM, f"the host ran out of memory and killed {killed} of its processes"
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


async def check_health(
    read_counters: Callable[[], Awaitable[dict[str, Any]]],
    dial: guest_control.Dial,
    *,
    agent_timeout_s: float,
    agent_counters: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None,
) -> DesktopHealth:
    """Check one desktop.

    Args:
        read_counters: Reads the host's counters: state, exit_status, frozen, kill_pending, memory_bytes, memory_limit_bytes, pids,
            disk_bytes, disk_free_bytes, oom_kills, host_oom_kills, pids_refused. It raises DesktopGone when there is no such desktop.
        dial: Opens a connection to the guest agent. It is called only while the desktop runs.
        agent_timeout_s: How long the guest agent may take to answer, in seconds.
        agent_counters: Takes counters that the host cannot read from the agent's report (empty: the agent is silent).

    Returns:
        The health. The cause is `UNKNOWN` when the counters cannot be read.
    """
    agent, agent_error = None, ""
    try:
        counters = await read_counters()
        if _is_responsive(counters):
            try:
                agent = await guest_control.health(dial, agent_timeout_s)
            except (guest_control.AgentTimeout, ProviderError) as error:
                agent_error = str(error)
        for _ in range(RECHECKS):
            if agent is not None or not _is_responsive(counters):
                break
            await asyncio.sleep(RECHECK_DELAY_S)
            counters = await read_counters()
    except DesktopGone:
        return DesktopHealth(False, HealthCause.UNKNOWN, "no desktop of this id")
    except ProviderError as error:
        return DesktopHealth(False, HealthCause.UNKNOWN, str(error))
    if agent_counters is not None:
        counters = counters | agent_counters(agent or {})
    cause, detail = diagnose(counters, agent, agent_error)
    return DesktopHealth(
        alive=cause is HealthCause.OK,
        cause=cause,
        detail=detail or str((agent or {}).get("limitations", "")),
        memory_bytes=counters["memory_bytes"],
        memory_limit_bytes=counters["memory_limit_bytes"],
        pids=counters["pids"],
        disk_bytes=counters["disk_bytes"],
        oom_kills=counters["oom_kills"],
    )


def _is_responsive(counters: Mapping[str, Any]) -> bool:
    """Whether the guest agent of a desktop with these counters is expected to answer."""
    return counters["state"] == "running" and not counters.get("frozen")
