"""Run a command beside what was started for it, so that an interruption ends the command first and the daemon after it.

Role: `run_supervised` for `libvirt_host`, `docker_engine`, `postgres_server` and `browser_host`. Rule: command and daemon stand each in a
process group of their own (`NEW_PROCESS_GROUP`), so that Ctrl-C at a terminal reaches this process alone, which passes it on: the command
has `INTERRUPT_GRACE_S` to clean up while the daemon is there; then, or at a second Ctrl-C, its whole group is killed. It reads nothing
from the terminal. Standard library only. Non-goals: daemons and what they leave.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess

INTERRUPT_GRACE_S, TERMINATE_TIMEOUT_S = 120.0, 10.0
NEW_PROCESS_GROUP = 0
"""`process_group` that makes a new one."""


def run_supervised(command: list[str], environment: dict[str, str]) -> int:
    """The command's exit code; 128 + SIGINT when it was interrupted. Whatever else ends this process ends the command before."""
    # A shell starts what is to run in the background with this signal ignored; then nothing would heed it, here or in the command.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, process_group=NEW_PROCESS_GROUP)
    try:
        return process.wait()
    except KeyboardInterrupt:
        signal_group(process, signal.SIGINT)
        with contextlib.suppress(KeyboardInterrupt, subprocess.TimeoutExpired):
            process.wait(INTERRUPT_GRACE_S)
        return 128 + signal.SIGINT
    finally:
        if process.poll() is None:
            signal_group(process, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(TERMINATE_TIMEOUT_S)
        signal_group(process, signal.SIGKILL)
        process.wait()


def signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to what is left of a command's group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
