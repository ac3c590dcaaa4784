"""Run a command beside what was started for it, so that an interruption ends the command first and the daemon after it.

Role: `attend` for `libvirt_host`, `docker_engine`, `postgres_server` and `browser_host`. Rule: command and daemon stand each in a process
group of their own (`APART`), so that Ctrl-C at a terminal reaches this process alone, which passes it on: the command has `GRACE_S` to
clean up while the daemon is there; then, or at a second Ctrl-C, its whole group is killed. It reads nothing from the terminal. Standard
library only. Non-goals: daemons and what they leave.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess

GRACE_S, END_S = 120.0, 10.0
APART = 0
"""`process_group` that makes a new one."""


def attend(command: list[str], environment: dict[str, str]) -> int:
    """The command's exit code; 128 + SIGINT when it was interrupted. Whatever else ends this process ends the command before."""
    # A shell starts what is to run in the background with this signal ignored; then nothing would heed it, here or in the command.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, process_group=APART)
    try:
        return process.wait()
    except KeyboardInterrupt:
        tell(process, signal.SIGINT)
        with contextlib.suppress(KeyboardInterrupt, subprocess.TimeoutExpired):
            process.wait(GRACE_S)
        return 128 + signal.SIGINT
    finally:
        if process.poll() is None:
            tell(process, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
        tell(process, signal.SIGKILL)
        process.wait()


def tell(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to what is left of a command's group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
