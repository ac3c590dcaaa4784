"""A worker's children end with it, also those that start while it is being killed."""

import os
import signal
import subprocess
import sys
import time

from dart_agent.inference.process_group import LEADER_PID_VARIABLE

FOLLOWER = """
import time
from dart_agent.inference.process_group import exit_with_leader
exit_with_leader()
print("on", flush=True)
time.sleep(60)
"""
LEADER = f"""
import subprocess, sys, time
from dart_agent.inference.process_group import mark_group_leader
mark_group_leader()
child = subprocess.Popen([sys.executable, "-c", {FOLLOWER!r}], stdout=subprocess.PIPE, text=True)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(60)
"""


def gone(pid: int) -> bool:
    """Ended, or a zombie that nobody has collected yet."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_child_is_killed_with_its_worker() -> None:
    with subprocess.Popen([sys.executable, "-c", LEADER], stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        child = int(worker.stdout.readline())
        assert not gone(child)
        worker.kill()
    give_up_s = time.monotonic() + 10
    while not gone(child):
        assert time.monotonic() < give_up_s
        time.sleep(0.02)


def test_a_child_that_comes_too_late_ends_at_once() -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    late = subprocess.run(
        [sys.executable, "-c", FOLLOWER],
        env={**os.environ, LEADER_PID_VARIABLE: str(dead.pid)},
        capture_output=True,
        check=False,
    )
    assert (late.returncode, late.stdout) == (-signal.SIGKILL, b"")
