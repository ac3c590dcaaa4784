"""Python of an agent that runs inside the desktop.

Role: `run_agent_code`. Rule: it runs as the desktop's user, and how it ended is data, not an error. Non-goals: which actions have code.
"""

from __future__ import annotations

from typing import Any

from dart_envs.types import Desktop

CODE_TIMEOUT_S = 60.0
CODE_PREAMBLE = "import pyautogui; import time; pyautogui.FAILSAFE = False\n"
"""What comes before an agent's own Python, as OSWorld's agents expect."""


async def run_agent_code(desktop: Desktop, code: str) -> dict[str, Any]:
    """Run Python inside the desktop as its user.

    Args:
        desktop: The desktop.
        code: The program.

    Returns:
        How it ended, also after a failure: `returncode`, `timed_out` and the end of `stderr`.
    """
    reply = await desktop.exec(["python", "-c", CODE_PREAMBLE + code], timeout_s=CODE_TIMEOUT_S)
    return {"returncode": reply.returncode, "timed_out": reply.timed_out, "stderr": reply.stderr[-2_000:]}
