#!/usr/bin/env python3
"""Run a command against a real container engine: the one that answers here, else one that is started for it and ends with it.

Role: the engine behind `make test-docker`. Rule: an engine of its own has its own socket, data and control group, and nothing of it is left
when the command has ended; where neither is possible the command runs anyway and says itself what it lacks. Standard library only.
Non-goals: setting up an engine that stays (that is the distribution's `docker.service`).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from host_packages import SetupFailed, as_root, check_sudo, install_packages, say
from supervised_command import NEW_PROCESS_GROUP, run_supervised

SOCKETS = (Path("/var/run/docker.sock"), Path("/run/podman/podman.sock"))
START_TIMEOUT_S, STOP_TIMEOUT_S, POLL_S = 60.0, 30.0, 0.1
CGROUPS = Path("/sys/fs/cgroup")
EXTERNAL_FILES = (Path("/etc/docker/key.json"), Path("/opt/containerd"))
"""What an engine makes outside its own directory, whatever it is told."""


def find_running_engine() -> str | None:
    """The address of an engine that answers, None when there is none."""
    given = os.environ.get("DOCKER_HOST")
    if given is not None:
        return given
    return next((f"unix://{path}" for path in SOCKETS if is_listening(path)), None)


def is_listening(path: Path) -> bool:
    """Whether something listens on a Unix socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def find_dockerd() -> str:
    """The engine's program, installed from the distribution when it is missing."""
    search = os.pathsep.join(("/usr/sbin", "/usr/local/sbin", "/usr/bin", "/usr/local/bin"))
    if shutil.which("dockerd", path=search) is None:
        if shutil.which("apt-get") is None:
            raise SetupFailed("There is no dockerd and no apt-get: start an engine and set DOCKER_HOST.")
        install_packages(["docker.io"])
    found = shutil.which("dockerd", path=search)
    if found is None:
        raise SetupFailed("The package docker.io was installed, but there is no dockerd.")
    return found


@contextlib.contextmanager
def private_engine(cgroup_parent: str) -> Iterator[str]:
    """The address of an engine in a private directory, which is removed with it."""
    program = find_dockerd()
    strays = [path for path in EXTERNAL_FILES if not path.exists()]
    place = Path(tempfile.mkdtemp(prefix="dart-engine-"))
    listening = place / "docker.sock"
    places = ["--data-root", str(place / "data"), "--exec-root", str(place / "run"), "--pidfile", str(place / "pid")]
    apart = ["--host", f"unix://{listening}", "--group", str(os.getgid()), "--bridge", "none", "--iptables=false"]
    groups = ["--exec-opt", "native.cgroupdriver=cgroupfs", "--cgroup-parent", cgroup_parent]
    say(f"starting an engine in {place}")
    with (place / "log").open("w") as log:
        argv = as_root([program, *places, *apart, *groups])
        engine = subprocess.Popen(
            argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL, process_group=NEW_PROCESS_GROUP
        )
    try:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not is_listening(listening):
            if engine.poll() is not None or time.monotonic() > deadline_s:
                raise SetupFailed(f"dockerd did not start:\n{(place / 'log').read_text()[-1500:]}")
            time.sleep(POLL_S)
        yield f"unix://{listening}"
    finally:
        stop_engine(engine, [place, *strays], cgroup_parent)


def stop_engine(engine: subprocess.Popen[bytes], places: list[Path], cgroup_parent: str) -> None:
    """Stop the engine with all its containers; remove its mounts, directories (its own first) and control groups."""
    place = places[0]
    if engine.poll() is None:
        pid = (place / "pid").read_text().strip() if (place / "pid").exists() else str(engine.pid)
        subprocess.run(as_root(["kill", "-TERM", pid]), check=False)
        try:
            engine.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            subprocess.run(as_root(["kill", "-KILL", pid]), check=False)
            engine.wait(STOP_TIMEOUT_S)
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for mount in sorted((mount for mount in mounts if mount.startswith(f"{place}/")), reverse=True):
        subprocess.run(as_root(["umount", "--lazy", mount]), check=False)
    subprocess.run(as_root(["rm", "-rf", "--one-file-system", *map(str, places)]), check=False)
    for group in (CGROUPS / cgroup_parent.lstrip("/"), *CGROUPS.glob(f"*{cgroup_parent}")):
        if group.is_dir():
            subprocess.run(as_root(["rmdir", str(group)]), capture_output=True, check=False)
    say("the engine has ended")


def main() -> int:
    """The command's exit code; 2 with one sentence when the engine cannot be had."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--cgroup-parent", default=f"/dart-engine-{os.getpid()}", help="control group of its containers"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- COMMAND [ARGUMENT ...]")
    args = parser.parse_args()
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        parser.error("no command was given")
    address = find_running_engine()
    if address is not None:
        say(f"using the engine at {address}")
        return run_supervised(command, {**os.environ, "DOCKER_HOST": address})
    # Asked to end, it still takes its engine with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        check_sudo()
        with private_engine(args.cgroup_parent) as own:
            return run_supervised(command, {**os.environ, "DOCKER_HOST": own})
    except SetupFailed as error:
        print(f"[setup] {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
