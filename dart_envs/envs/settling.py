"""How long the screen must be quiet: at a reset, after an action, and before the verdict.

Role: the one owner of these times. Rule: a desktop is judged only when its screen was quiet for `VERDICT_QUIET_MS` after the last action;
time that has passed since then counts. Non-goals: waiting (the guest agent's).
"""

from __future__ import annotations

from dart_server.wire import SettleSpec

RESET_SETTLE = SettleSpec(quiet_ms=200, cap_ms=3_000)
VERDICT_QUIET_MS = 400
"""GTK draws the button that Enter presses, and acts on it 250 ms later."""
VERDICT_CAP_MS = 2_000


def step_settle(usual: SettleSpec, rested_s: float, *, acts: bool, ends: bool) -> SettleSpec | None:
    """Choose how long the screen must be quiet in a step.

    Args:
        usual: How long it must be quiet after an action that does not end the episode.
        rested_s: Seconds since it had settled the last time; infinite where nothing has been done to the desktop.
        acts: Whether the step does something to the desktop.
        ends: Whether the desktop is judged after it.

    Returns:
        The quiet time and its cap; None where the desktop need not be asked: nothing is done, and it has rested already.
    """
    if not ends:
        return usual
    quiet_ms = max(usual.quiet_ms, VERDICT_QUIET_MS)
    if not acts:
        if rested_s * 1000 >= quiet_ms:
            return None
        quiet_ms -= int(rested_s * 1000)
    return SettleSpec(quiet_ms=quiet_ms, cap_ms=max(usual.cap_ms, VERDICT_CAP_MS))
