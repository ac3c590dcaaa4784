"""Runs inside a desktop, as its user and as root: tries every door out of it, and prints what each answered as JSON.

Role: the program that `test_escapes` uploads; standard library only. A probe returns when it got through and raises when it was refused.
Doors of the kernel are tried only where it is the host's: root of a machine may do with the machine's own what it likes.
Arguments: JSON with what the host planted: `{"port": TCP port of a listener of the host, "addresses": [...], "abstract": name,
"path": path of a file of the host, "neighbour_port": TCP port of a service in the neighbour, "own_kernel": bool}`.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import platform
import resource
import socket
import stat
import struct
import sys
from collections.abc import Callable
from pathlib import Path

TIMEOUT_S = 1.0
libc = ctypes.CDLL(None, use_errno=True)
PLANTED = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
CALLS = {
    "x86_64": {
        "init_module": 175, "kexec_load": 246, "bpf": 321, "perf_event_open": 298, "keyctl": 250, "add_key": 248,
        "io_uring_setup": 425, "open_by_handle_at": 304, "userfaultfd": 323, "swapon": 167, "reboot": 169, "acct": 163,
        "pivot_root": 155, "setns": 308, "fsopen": 430, "open_tree": 428, "move_mount": 429, "clone3": 435, "settimeofday": 164,
        "iopl": 172, "ioperm": 173, "quotactl": 179, "fanotify_init": 300, "memfd_secret": 447, "modify_ldt": 154, "move_pages": 279,
        "mbind": 237, "pidfd_getfd": 438, "process_madvise": 440, "io_setup": 206, "mq_open": 240, "statmount": 457, "listmount": 458,
        "landlock_create_ruleset": 444, "kcmp": 312, "a call of the future": 600,
    },
    "aarch64": {
        "init_module": 105, "kexec_load": 104, "bpf": 280, "perf_event_open": 241, "keyctl": 219, "add_key": 217,
        "io_uring_setup": 425, "open_by_handle_at": 265, "userfaultfd": 282, "swapon": 224, "reboot": 142, "acct": 89,
        "pivot_root": 41, "setns": 268, "fsopen": 430, "open_tree": 428, "move_mount": 429, "clone3": 435, "settimeofday": 170,
        "quotactl": 60, "fanotify_init": 262, "memfd_secret": 447, "move_pages": 239, "mbind": 235, "pidfd_getfd": 438,
        "process_madvise": 440, "io_setup": 0, "mq_open": 180, "statmount": 457, "listmount": 458, "landlock_create_ruleset": 444,
        "kcmp": 272, "a call of the future": 600,
    },
}  # fmt: skip
"""System calls by machine that are refused whatever their arguments are."""
REFUSED = {errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EROFS}


def check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def tcp(address: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.settimeout(TIMEOUT_S)
        probe.connect((address, port))


def udp(address: str, port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.settimeout(TIMEOUT_S)
        probe.sendto(
            b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07example\x03com\x00\x00\x01\x00\x01", (address, port)
        )
        probe.recv(512)


def icmp(kind: int) -> None:
    with socket.socket(socket.AF_INET, kind, socket.IPPROTO_ICMP) as probe:
        probe.settimeout(TIMEOUT_S)
        probe.sendto(struct.pack("!BBHHH", 8, 0, 0xF7FF, 0, 0), ("1.1.1.1", 0))


def unix(name: str) -> None:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(TIMEOUT_S)
        probe.connect(name)
        if name.startswith("\0dart-"):
            probe.sendall(b"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n")
            if not probe.recv(100):
                raise ConnectionResetError("hung up")


def vsock() -> None:
    """A virtual machine's way to its host: its address there. Without one, what goes to the host comes back to the machine itself."""
    loopback = 1
    socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM).close()
    with open("/dev/vsock", "rb") as device:
        told = fcntl.ioctl(device, socket.IOCTL_VM_SOCKETS_GET_LOCAL_CID, bytes(4))
    if struct.unpack("I", told)[0] in (loopback, socket.VMADDR_CID_ANY):
        raise OSError(errno.ENODEV, "the machine has no address")


def write(path: str, text: str) -> None:
    Path(path).write_text(text)


def node(kind: int, major: int, minor: int) -> None:
    path = f"/tmp/node-{os.getpid()}-{major}"
    os.mknod(path, kind | 0o600, os.makedev(major, minor))
    os.close(os.open(path, os.O_RDWR))


def mount(source: str, kind: str) -> None:
    os.makedirs("/tmp/mnt", exist_ok=True)
    check(libc.mount(source.encode(), b"/tmp/mnt", kind.encode(), 0, None), "mount")


def bind() -> None:
    check(libc.mount(b"/", b"/mnt", None, 4096, None), "mount")


def call(number: int) -> None:
    """Called with nothing but zeros it could only fail; what counts is that the kernel never looked at them."""
    check(libc.syscall(number, 0, 0, 0, 0, 0, 0), "syscall")


def trace(pid: int) -> None:
    ctypes.set_errno(0)
    attach = 16
    check(libc.ptrace(attach, pid, 0, 0), "ptrace")


def memory_of(pid: int) -> None:
    os.close(os.open(f"/proc/{pid}/mem", os.O_RDWR))


def agent_pid() -> int:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and b"dart_guest" in (entry / "cmdline").read_bytes():
            return int(entry.name)
    raise LookupError("no agent")


def agents_own() -> None:
    """Control of the agent through its memory."""
    memory_of(agent_pid())


def new_user_namespace() -> None:
    new_user = 0x10000000
    check(libc.unshare(new_user), "unshare")


def cloned_user_namespace() -> None:
    new_user, child_signal = 0x10000000, 17
    number = {"x86_64": 56, "aarch64": 220}[platform.machine()]
    pid = libc.syscall(number, new_user | child_signal, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    check(pid, "clone")
    os.waitpid(pid, 0)


def out_of_a_chroot() -> None:
    """The known way out of a chroot ends at the desktop's own root."""
    os.makedirs("/tmp/jail", exist_ok=True)
    os.chroot("/tmp/jail")
    for _ in range(64):
        os.chdir("..")
    os.chroot(".")
    host = Path(PLANTED["path"])
    if not host.exists():
        raise FileNotFoundError(host)


def host_paths_in_mounts() -> None:
    """Directories of the host in the list of mounts."""
    for name in ("mountinfo", "mounts", "mountstats"):
        text = Path(f"/proc/self/{name}").read_text()
        found = [word for word in PLANTED["directories"] if word in text]
        if found:
            return
    raise PermissionError("none shown")


def read_host_file() -> None:
    for prefix in ("", "/..", "/proc/1/root", "/proc/1/root/..", "/proc/self/root/../..", "/proc/1/cwd/../.."):
        if Path(prefix + PLANTED["path"]).exists():
            return
    raise FileNotFoundError(PLANTED["path"])


def release_agent() -> None:
    """Control groups of the host, and the program that the kernel runs when one empties."""
    for top in (Path("/sys/fs/cgroup"), Path("/cgroup")):
        for path in [*top.rglob("release_agent"), *top.rglob("cgroup.procs"), *top.rglob("memory.max")]:
            path.write_text("/tmp/x")
            return
    mount("none", "cgroup")


def proc_mode() -> None:
    os.chmod("/proc/uptime", 0o400)
    os.chmod("/proc/uptime", 0o444)


def masked_mode() -> None:
    """The file that covers one of /proc may be the host's own /dev/null."""
    os.chmod("/proc/keys", 0o600)


def real_time() -> None:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))


def netlink() -> None:
    """Protocols of netlink beside those of routes and of devices."""
    for protocol in (2, 4, 6, 7, 9, 10, 12, 16, 20):
        try:
            socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol).close()
        except OSError:
            continue
        return
    raise PermissionError("none")


def locked_shared_memory() -> None:
    private, lock = 0, 11
    segment = libc.shmget(private, 4096, 0o600)
    check(segment, "shmget")
    check(libc.shmctl(segment, lock, None), "shmctl")


def raise_limits() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (1 << 20, 1 << 20))


def kernel_log() -> None:
    read_all = 3
    buffer = ctypes.create_string_buffer(4096)
    check(libc.klogctl(read_all, buffer, 4096), "klogctl")


def physical_memory() -> None:
    for path in (
        "/dev/mem",
        "/dev/kmem",
        "/proc/kcore",
        "/dev/port",
        "/dev/kvm",
        "/dev/fuse",
        "/dev/loop-control",
        "/dev/vda",
    ):
        if os.path.exists(path) and stat.S_ISREG(os.stat(path).st_mode | 0) | stat.S_ISBLK(os.stat(path).st_mode):
            return
        if os.path.exists(path) and os.stat(path).st_rdev not in (0, os.makedev(1, 3)):
            return
    raise FileNotFoundError("no such device")


def ways_out() -> dict[str, Callable[[], None]]:
    """To the internet, the host, the neighbour and the agent."""
    found: dict[str, Callable[[], None]] = {
        "tcp to the internet": lambda: tcp("1.1.1.1", 443),
        "tcp to the internet, IPv6": lambda: tcp("2606:4700:4700::1111", 443),
        "udp to the internet": lambda: udp("8.8.8.8", 53),
        "a name of the internet": lambda: socket.getaddrinfo("example.com", 80) and None,
        "icmp": lambda: icmp(socket.SOCK_DGRAM),
        "raw icmp": lambda: icmp(socket.SOCK_RAW),
        "a virtual machine's host": vsock,
        "metadata": lambda: tcp("169.254.169.254", 80),
        "metadata, IPv6": lambda: tcp("fd00:ec2::254", 80),
        "the host's loopback": lambda: tcp("127.0.0.1", PLANTED["port"]),
        "the neighbour's loopback": lambda: tcp("127.0.0.1", PLANTED["neighbour_port"]),
        "an abstract socket of the host": lambda: unix("\0" + PLANTED["abstract"]),
        "the agent's control socket": lambda: unix("\0dart-guest"),
        "the agent's other door": lambda: unix("\0dart-osworld"),
        "trace of the agent": lambda: trace(agent_pid()),
        "memory of the agent": agents_own,
        "a file of the host": read_host_file,
        "paths of the host": host_paths_in_mounts,
        "a way out of a chroot": out_of_a_chroot,
    }
    for address in PLANTED["addresses"]:
        found[f"the host at {address}"] = lambda address=address: tcp(address, PLANTED["port"])
    return found


def doors_of_the_kernel() -> dict[str, Callable[[], None]]:
    """What would change or show the kernel, or what belongs to nobody's desktop."""
    found: dict[str, Callable[[], None]] = {
        "packets": lambda: socket.socket(17, socket.SOCK_RAW, 0x0300).close(),
        "sockets to a virtual machine's host": lambda: socket.socket(40, socket.SOCK_STREAM).close(),
        "kernel cryptography": lambda: socket.socket(38, socket.SOCK_SEQPACKET).close(),
        "several paths of TCP": lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262).close(),
        "streams of SCTP": lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM, 132).close(),
        "netlink": netlink,
        "locked shared memory": locked_shared_memory,
        "core_pattern": lambda: write("/proc/sys/kernel/core_pattern", "|/tmp/x"),
        "modprobe": lambda: write("/proc/sys/kernel/modprobe", "/tmp/x"),
        "sysrq": lambda: write("/proc/sys/kernel/sysrq", "1"),
        "sysrq-trigger": lambda: write("/proc/sysrq-trigger", "b"),
        "panic": lambda: write("/proc/sys/vm/panic_on_oom", "1"),
        "release_agent": release_agent,
        "sysfs": lambda: write("/sys/power/state", "mem"),
        "uevent_helper": lambda: write("/sys/kernel/uevent_helper", "/tmp/x"),
        "mode of a file in /proc": proc_mode,
        "mode of a masked file": masked_mode,
        "a disk as a device node": lambda: node(stat.S_IFBLK, 254, 0),
        "memory as a device node": lambda: node(stat.S_IFCHR, 1, 1),
        "a device of memory or disk": physical_memory,
        "mount of proc": lambda: mount("proc", "proc"),
        "mount of a disk": lambda: mount("/dev/vda", "ext4"),
        "mount of memory": lambda: mount("none", "tmpfs"),
        "mount of an overlay": lambda: mount("none", "overlay"),
        "bind mount": bind,
        "umount of a cover": lambda: check(libc.umount2(b"/proc/keys", 2), "umount"),
        "unshare of users": new_user_namespace,
        "clone of users": cloned_user_namespace,
        "unshare of mounts": lambda: check(libc.unshare(0x00020000), "unshare"),
        "unshare of the network": lambda: check(libc.unshare(0x40000000), "unshare"),
        "trace of init": lambda: trace(1),
        "memory of init": lambda: memory_of(1),
        "real-time priority": real_time,
        "higher priority": lambda: os.setpriority(os.PRIO_PROCESS, 0, -5),
        "higher limits": raise_limits,
        "escape from the memory killer": lambda: write("/proc/self/oom_score_adj", "-900"),
        "kernel log": kernel_log,
        "host name": lambda: socket.sethostname("owned"),
    }
    for name, number in CALLS[platform.machine()].items():
        found[f"call {name}"] = lambda number=number: call(number)
    return found


def probes() -> dict[str, Callable[[], None]]:
    return ways_out() | ({} if PLANTED["own_kernel"] else doors_of_the_kernel())


def answer(name: str, probe: Callable[[], None]) -> str:
    """`refused: …`, or what a probe that got through left to say."""
    try:
        probe()
    except (OSError, ValueError) as error:
        if name.startswith("call ") and getattr(error, "errno", None) not in REFUSED:
            return f"reached the kernel: {error}"
        return f"refused: {error}"
    return "got through"


def main() -> None:
    """One process per probe, so that what one changes about itself cannot help or hinder the next."""
    answers = {}
    for name, probe in probes().items():
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(writer, answer(name, probe).encode()[:500])
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as stream:
            answers[name] = stream.read() or "died"
        os.waitpid(pid, 0)
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
