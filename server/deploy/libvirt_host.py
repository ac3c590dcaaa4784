#!/usr/bin/env python3
"""Run a command against a real libvirt: the one that answers here, else one that is started for it and ends with it.

Role: the daemon behind `make test-libvirt`. Rule: a daemon of its own has its own socket, state and log, in a mount namespace where the
places of the system's daemon are empty directories of its own; no machine and no process of it is left when the command has ended.
Programs and the headers that the Python bindings are compiled with come from the distribution. Standard library only.
Non-goals: setting up a daemon that stays (that is the distribution's `libvirtd.service`).
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

from host_packages import SetupFailed, as_root, check_sudo, install_packages, run, say
from setup_host import VENV, can_import
from supervised_command import NEW_PROCESS_GROUP, run_supervised

SYSTEM_SOCKET = Path("/run/libvirt/libvirt-sock")
PACKAGES = {
    "libvirtd": ("libvirt-daemon", "libvirt-daemon-driver-qemu"),
    "qemu-system-x86_64": ("qemu-system-x86",),
    "qemu-img": ("qemu-utils",),
    "pkg-config": ("pkg-config",),
    "gcc": ("gcc",),
    "mke2fs": ("e2fsprogs",),
    "sfdisk": ("fdisk",),
    "mformat": ("mtools",),
    "grub-mkimage": ("grub-common",),
}
FILES = {
    "/usr/include/libvirt/libvirt.h": "libvirt-dev",
    "/usr/lib/grub/i386-pc/boot.img": "grub-pc-bin",
    "/usr/lib/grub/x86_64-efi/moddep.lst": "grub-efi-amd64-bin",
    "/usr/share/ovmf/OVMF.fd": "ovmf",
}
"""What is no program; GRUB and UEFI are for the disks that start themselves."""
SEARCH = os.pathsep.join(("/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/bin", "/bin", "/usr/local/bin"))
ISOLATED_DIRECTORIES = ("/var/lib/libvirt", "/var/cache/libvirt", "/var/log/libvirt", "/run/libvirt", "/etc/libvirt")
QEMU = {"user": '"root"', "group": '"root"', "stdio_handler": '"file"', "security_driver": '"none"'}
"""What its machines run as: the tests' own user, whose files they need."""
ACCOUNTS = {
    "/etc/passwd": "libvirt-qemu:x:64055:64055:for libvirtd only:/nonexistent:/usr/sbin/nologin\n",
    "/etc/group": "libvirt-qemu:x:64055:\nkvm:x:64056:\n",
}
"""Without the distribution's service there is no account for machines, and libvirtd does not start before it has found one."""
START_TIMEOUT_S, STOP_TIMEOUT_S, POLL_S = 60.0, 20.0, 0.1


def is_listening(path: Path) -> bool:
    """Whether something listens on a Unix socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def install_programs() -> None:
    """Install from the distribution what is missing, and the bindings into the project's environment."""
    missing = [name for tool, names in PACKAGES.items() if shutil.which(tool, path=SEARCH) is None for name in names]
    missing += [name for path, name in FILES.items() if not Path(path).exists()]
    if missing:
        if shutil.which("apt-get") is None:
            raise SetupFailed(
                "There is no libvirtd and no apt-get: install libvirt and QEMU, and set DART_LIBVIRT_URI."
            )
        install_packages([*missing, "python3-dev"] if "gcc" in missing else missing)
    python = VENV / "bin" / "python"
    if python.exists() and not can_import(str(python), "import libvirt"):
        say("compiling libvirt-python")
        run([str(python), "-m", "pip", "install", "-q", "libvirt-python>=9.0"])


def isolated_command(place: Path) -> list[str]:
    """The start of a command line that runs the rest of it where the system's own places are private ones."""
    steps = []
    for number, path in enumerate(ISOLATED_DIRECTORIES):
        own = place / f"own-{number}"
        own.mkdir()
        if path == "/etc/libvirt":
            (own / "qemu.conf").write_text("".join(f"{name} = {value}\n" for name, value in QEMU.items()))
        steps.append(f"mkdir -p {path} && mount --bind {own} {path}")
    for listing, lines in ACCOUNTS.items():
        known = Path(listing).read_text(encoding="utf-8")
        names = {line.partition(":")[0] for line in known.splitlines()}
        more = [line for line in lines.splitlines(keepends=True) if line.partition(":")[0] not in names]
        own = place / Path(listing).name
        own.write_text(known + "".join(more), encoding="utf-8")
        steps.append(f"mount --bind {own} {listing}")
    script = " && ".join(steps) + ' && exec "$@"'
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh"]


@contextlib.contextmanager
def private_daemon() -> Iterator[str]:
    """The address of a daemon in a private directory, which is removed with it."""
    place = Path(tempfile.mkdtemp(prefix="dart-libvirt-"))
    listening = place / "libvirt-sock"
    settings = place / "libvirtd.conf"
    lines = {"unix_sock_dir": f'"{place}"', "unix_sock_group": '"root"', "unix_sock_rw_perms": '"0700"'}
    lines |= {"auth_unix_rw": '"none"', "auth_unix_ro": '"none"'}
    settings.write_text("".join(f"{name} = {value}\n" for name, value in lines.items()), encoding="utf-8")
    program = shutil.which("libvirtd", path=SEARCH)
    if program is None:
        raise SetupFailed("The package libvirt-daemon was installed, but there is no libvirtd.")
    argv = [*isolated_command(place), program, "--config", str(settings), "--pid-file", str(place / "pid")]
    say(f"starting libvirtd in {place}")
    with (place / "log").open("w") as log:
        daemon = subprocess.Popen(
            as_root(argv), stdout=log, stderr=log, stdin=subprocess.DEVNULL, process_group=NEW_PROCESS_GROUP
        )
    try:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not is_listening(listening):
            if daemon.poll() is not None or time.monotonic() > deadline_s:
                raise SetupFailed(f"libvirtd did not start:\n{(place / 'log').read_text()[-1500:]}")
            time.sleep(POLL_S)
        yield f"qemu+unix:///system?socket={listening}"
    finally:
        stop_daemon(daemon, place)


def stop_daemon(daemon: subprocess.Popen[bytes], place: Path) -> None:
    """Stop the daemon, then every machine whose files lie in its places, and remove them."""
    pid = (place / "pid").read_text().strip() if (place / "pid").exists() else str(daemon.pid)
    inside = Path(f"/proc/{pid}/ns/mnt")
    namespace = os.readlink(inside) if inside.exists() else ""
    for word in ("-TERM", "-KILL"):
        if daemon.poll() is None:
            subprocess.run(as_root(["kill", word, pid]), check=False)
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(STOP_TIMEOUT_S)
    for machine in leftover_processes(place, namespace):
        subprocess.run(as_root(["kill", "-KILL", machine]), check=False)
    subprocess.run(as_root(["rm", "-rf", "--one-file-system", str(place)]), check=False)
    say("libvirtd has ended")


def leftover_processes(place: Path, namespace: str) -> list[str]:
    """Process ids of what the daemon has left: whatever lives in its mount namespace, or in one that still covers with `place`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                same = bool(namespace) and os.readlink(entry / "ns" / "mnt") == namespace
                mounts = (entry / "mountinfo").read_text()
                if same or f"{place}/own-" in mounts:
                    found.append(entry.name)
    return found


def main() -> int:
    """The command's exit code; 2 with one sentence when libvirt cannot be had."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- COMMAND [ARGUMENT ...]")
    args = parser.parse_args()
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        parser.error("no command was given")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        check_sudo()
        install_programs()
        given = os.environ.get("DART_LIBVIRT_URI")
        if given or (os.geteuid() == 0 and is_listening(SYSTEM_SOCKET)):
            uri = given or "qemu:///system"
            say(f"using the libvirt at {uri}")
            return run_supervised(command, {**os.environ, "DART_LIBVIRT_URI": uri})
        with private_daemon() as own:
            return run_supervised(command, {**os.environ, "DART_LIBVIRT_URI": own})
    except SetupFailed as error:
        print(f"[setup] {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
