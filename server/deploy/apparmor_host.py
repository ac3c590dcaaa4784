#!/usr/bin/env python3
"""Run a command on a kernel with AppArmor: in a virtual machine that sees this host's files and runs Debian's kernel.

Role: the host behind `make test-apparmor`, for hosts whose own kernel has no AppArmor. Rule: the machine reads this host's files and writes
none of them: what it writes lies in its memory and ends with it. Only the exit code comes back, beside what the command prints. The images
of desktops lie on a disk of their own, as copies, because desktops need a file system that can translate owners. Kernel, parser and
busybox are packages of Debian that are unpacked into a cache and installed nowhere. Without KVM the machine is emulated, 10 to 20 times
slower than the host. Standard library only.
Non-goals: a machine that stays; other settings of the kernel.
"""

from __future__ import annotations

import argparse
import lzma
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from host_packages import SetupFailed, default_home, install_packages, run, say
from supervised_command import run_supervised

from dart_server.hostd.runtime.criu_installation import KEYRING, debian_mirror
from dart_server.providers.libvirt.kvm import kvm_fault

QEMU = "qemu-system-x86_64"
KERNEL_SUITE, KERNEL_PACKAGE = "trixie", "linux-image-amd64"
IMAGE = "basic"
MODULES = (
    "virtio_pci", "virtio_blk", "9pnet_virtio", "9p", "overlay", "crc32c_generic", "ext4", "veth", "tun", "nf_tables",
    "nf_conntrack_netlink", "tcp_diag", "udp_diag", "raw_diag", "unix_diag", "netlink_diag", "af_packet_diag", "algif_hash",
)  # fmt: skip
"""What the machine starts with, what CRIU asks for (nothing inside loads modules), and a kind of socket to be refused."""
MEMORY_MIB = 6144
DISK = "12G"
"""Size of the disk with the images; it is sparse."""
VISIBLE = "/run/machine"
"""Where the machine finds what was made for it."""
INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
for module in $(cat /modules/order); do insmod /modules/$module; done
mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=512000 host /lower || poweroff -f
mount -t tmpfs -o size=50% written /written
mkdir /written/upper /written/work
mount -t overlay -o lowerdir=/lower,upperdir=/written/upper,workdir=/written/work root /new
for place in proc sys dev; do mount -o move /$place /new/$place; done
cd /new
mount -t securityfs securityfs sys/kernel/security
mount -t cgroup2 cgroup2 sys/fs/cgroup
mkdir -p dev/pts dev/shm dev/mqueue
mount -t devpts -o ptmxmode=0666 devpts dev/pts
mount -t tmpfs shm dev/shm
mount -t mqueue mqueue dev/mqueue
for place in run tmp; do mount -t tmpfs $place $place; done
mkdir -p .{visible}
mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000 machine .{visible}
cp -a .{visible}/parser/. .
mkdir -p ".$(cat .{visible}/home)"
mount -t ext4 dev/vda ".$(cat .{visible}/home)"
ifconfig lo 127.0.0.1 up
exec switch_root /new /bin/sh {visible}/start
"""
START = """exec </dev/null
cd {directory}
setsid env -i {environment} {command}
echo $? >{visible}/exit-code
sync
echo o >/proc/sysrq-trigger
while :; do :; done
"""
TRAILER = "TRAILER!!!"


def download(packages: list[str], place: Path, suite: str | None = None) -> list[Path]:
    """Fetch Debian packages into a directory: of the host's own sources, or of a suite with a configuration of its own."""
    options: list[str] = []
    if suite is not None:
        for part in ("state/lists/partial", "cache/archives/partial"):
            (place / part).mkdir(parents=True, exist_ok=True)
        (place / "state/status").touch()
        signed = f" [signed-by={KEYRING}]" if KEYRING.exists() else ""
        (place / "sources.list").write_text(f"deb{signed} {debian_mirror()} {suite} main\n", encoding="utf-8")
        settings = {
            "Dir::Etc::sourcelist": place / "sources.list",
            "Dir::Etc::sourceparts": "/nonexistent",
            "Dir::State": place / "state",
            "Dir::State::status": place / "state/status",
            "Dir::Cache": place / "cache",
            "APT::Sandbox::User": "root",
            "Acquire::Languages": "none",
        }
        options = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]
        run(["apt-get", "-qq", *options, "update"])
    before = set(place.glob("*.deb"))
    script = 'cd "$0" && exec apt-get -qq "$@"'
    run(["sh", "-c", script, str(place), *options, "download", *packages])
    return sorted(set(place.glob("*.deb")) - before)


def unpacked(cache: Path) -> Path:
    """The directory with the unpacked packages: `kernel`, `tools` (busybox) and `parser`; made once."""
    made = cache / "unpacked"
    if made.is_dir():
        return made
    say("fetching kernel, busybox and apparmor")
    shutil.rmtree(cache, ignore_errors=True)
    debs, fresh = cache / "debs", cache / "fresh"
    debs.mkdir(parents=True)
    fresh.mkdir()
    (meta,) = download([KERNEL_PACKAGE], debs, KERNEL_SUITE)
    fields = subprocess.run(["dpkg-deb", "-f", str(meta), "Depends"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"linux-image-[\w.+-]+-amd64", fields)
    if found is None:
        raise SetupFailed(f"{KERNEL_PACKAGE} depends on no kernel: {fields}")
    for name, packages, suite in (
        ("kernel", [found[0]], KERNEL_SUITE),
        ("tools", ["busybox-static"], None),
        ("parser", ["apparmor"], None),
    ):
        for package in download(packages, debs, suite):
            run(["dpkg-deb", "-x", str(package), str(fresh / name)])
    merge_usr(fresh / "parser")
    shutil.rmtree(debs)
    fresh.rename(made)
    return made


def merge_usr(tree: Path) -> None:
    """Move what an older package has in /sbin to where a host with one /usr has it: a link must not be covered by a directory."""
    for name in ("bin", "sbin", "lib"):
        if (tree / name).is_dir():
            shutil.copytree(tree / name, tree / "usr" / name, dirs_exist_ok=True, symlinks=True)
            shutil.rmtree(tree / name)


def module_files(kernel: Path) -> Iterator[tuple[str, bytes]]:
    """Name and content of the needed modules, each after those that it depends on."""
    known = {}
    for path in kernel.rglob("*.ko*"):
        known[path.name.partition(".")[0].replace("-", "_")] = path
    seen: set[str] = set()

    def visit(name: str) -> Iterator[tuple[str, bytes]]:
        if name in seen or name not in known:
            return  # twice, or part of the kernel itself
        seen.add(name)
        content = known[name].read_bytes()
        if known[name].suffix == ".xz":
            content = lzma.decompress(content)
        found = re.search(rb"\0depends=([^\0]*)\0", content)
        for other in found[1].decode().split(",") if found else []:
            yield from visit(other.replace("-", "_"))
        yield f"{name}.ko", content

    for name in MODULES:
        yield from visit(name)


def archive(files: dict[str, tuple[int, bytes]]) -> bytes:
    """A cpio archive (newc) of paths with their modes and contents."""
    written = bytearray()
    for number, (name, (mode, content)) in enumerate([*files.items(), (TRAILER, (0, b""))], 1):
        fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0)
        written += b"070701" + b"".join(b"%08x" % field for field in fields) + name.encode() + b"\0"
        written += bytes(-len(written) % 4) + content
        written += bytes(-len(written) % 4)
    return bytes(written)


def initrd(packages: Path) -> bytes:
    """What the kernel starts with: modules, busybox, and the script that mounts this host's files."""
    directories = ("bin", "dev", "lower", "modules", "new", "proc", "sys", "written")
    files: dict[str, tuple[int, bytes]] = {name: (0o040755, b"") for name in directories}
    busybox = next(path for path in packages.glob("tools/**/bin/busybox") if path.is_file())
    files["bin/busybox"] = (0o100755, busybox.read_bytes())
    modules = dict(module_files(packages / "kernel"))
    for name, content in modules.items():
        files[f"modules/{name}"] = (0o100644, content)
    files["modules/order"] = (0o100644, "\n".join(modules).encode())
    files["init"] = (0o100755, INIT.replace("{visible}", VISIBLE).encode())
    return archive(files)


def make_disk(place: Path, home: Path) -> Path:
    """An ext4 that has the image `basic` where `home` has it."""
    tree, disk = place / "tree", place / "disk"
    current = home / "images" / IMAGE / "current"
    if not current.exists():
        raise SetupFailed(f"There is no image {IMAGE} in {home}: run `make setup`.")
    version = current.resolve()
    target = tree / "images" / IMAGE / version.name
    target.mkdir(parents=True)
    (target.parent / "current").symlink_to(version.name)
    shutil.copyfile(version / "manifest.json", target / "manifest.json")
    run(["cp", "-al", str(version / "rootfs"), str(target / "rootfs")])
    run(["mke2fs", "-q", "-t", "ext4", "-m", "0", "-d", str(tree), str(disk), DISK])
    shutil.rmtree(tree)
    return disk


def in_machine(command: list[str], packages: Path, place: Path, home: Path, memory_mib: int) -> int:
    """Run a command in a machine and return its exit code; 1 when the machine ended before it."""
    machine = place / "machine"
    machine.mkdir()
    shutil.copytree(packages / "parser", machine / "parser", symlinks=True)
    kept = ("PATH", "HOME", "LANG", "PYTHONPATH", "VIRTUAL_ENV")
    environment = {name: os.environ[name] for name in kept if name in os.environ} | {"DART_HOME": str(home)}
    words = " ".join(shlex.quote(f"{name}={value}") for name, value in environment.items())
    (machine / "home").write_text(str(home), encoding="utf-8")
    (machine / "start").write_text(
        START.format(
            directory=shlex.quote(os.getcwd()), environment=words, command=shlex.join(command), visible=VISIBLE
        ),
        encoding="utf-8",
    )
    (place / "initrd").write_bytes(initrd(packages))
    kernel = max((packages / "kernel" / "boot").glob("vmlinuz-*"))
    devices = ["-drive", f"file={make_disk(place, home)},format=raw,if=virtio,snapshot=on"]
    devices += ["-virtfs", "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap"]
    devices += ["-virtfs", f"local,path={machine},mount_tag=machine,security_model=none"]
    settings = "console=ttyS0 quiet panic=-1 apparmor=1 security=apparmor"
    slow = kvm_fault(QEMU)
    if slow:
        say(f"the machine is emulated: {slow}")
        settings += " mitigations=off no_timer_check"
    processor = ["-accel", "tcg", "-cpu", "max"] if slow else ["-accel", "kvm", "-cpu", "host"]
    argv = [QEMU, "-machine", "pc", *processor, "-smp", "1", "-m", str(memory_mib)]
    argv += ["-nodefaults", "-nographic", "-serial", "stdio", "-no-reboot", *devices]
    argv += ["-kernel", str(kernel), "-initrd", str(place / "initrd"), "-append", settings]
    say(f"starting a machine with {kernel.name}")
    run_supervised(argv, dict(os.environ))
    told = machine / "exit-code"
    return int(told.read_text(encoding="ascii")) if told.exists() else 1


def main() -> int:
    """Command line entry; returns the command's exit code, 2 with one sentence when there is no machine."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--memory-mib", type=int, default=MEMORY_MIB, help="memory of the machine")
    parser.add_argument("--cache", type=Path, default=default_home() / "apparmor-host", help="where packages are kept")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- COMMAND ...")
    chosen = parser.parse_args()
    command = chosen.command[1:] if chosen.command[:1] == ["--"] else chosen.command
    if not command:
        parser.error("name a command")
    try:
        if os.geteuid() != 0:
            raise SetupFailed("The machine reads files of every owner: run this as root.")
        if shutil.which(QEMU) is None:
            install_packages(["qemu-system-x86"])
        home, packages = default_home(), unpacked(chosen.cache)
        # Beside the images, of which the disk gets hard links first.
        with tempfile.TemporaryDirectory(prefix=".apparmor-host-", dir=home) as place:
            return in_machine(command, packages, Path(place), home, chosen.memory_mib)
    except SetupFailed as error:
        print(f"apparmor_host: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
