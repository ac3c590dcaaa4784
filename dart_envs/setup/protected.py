"""How the setup starts programs that a verdict is about, so that no other program of the user can take their place or their words.

Role: the groups that such programs run in, the argument lists that start them, and the seal on what they may do. Rule: root starts them,
the kernel remembers it: a group that no other process has forbids tracing, writing to the program's memory and copying its files, and a
seal holds until the program ends. Non-goals: what a verdict reads of them (getters).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

Seal = Literal["programs", "code"]
"""`programs`: it starts no other program. `code`: and loads no library after its start."""

CAPTURE_ROOT = "/var/lib/dart/captured"
CAPTURE_GID = 61_017
"""No account and no file of an image has this group."""
PROTECTED_GID = 61_018
"""Primary group of programs that a verdict is about: no other program of the user has it, nor can take it (see `CAPTURE_SCRIPT`)."""
AS_PROTECTED = ("/usr/bin/setpriv", "--reuid=user", f"--regid={PROTECTED_GID}", "--init-groups")
"""What root puts before a command that is to run as the user in the protected group."""

START_SCRIPT = """import ctypes, mmap, os, pwd, shutil, struct, sys

EXECVE, EXECVEAT, MMAP = {"x86_64": (59, 322, 9), "aarch64": (221, 281, 222)}[os.uname().machine]
ALLOW, REFUSE = 0x7FFF0000, 0x00050001  # SECCOMP_RET_ALLOW; SECCOMP_RET_ERRNO with EPERM
NUMBER, ARGUMENTS = 0, 16  # places in struct seccomp_data; arguments have 64 bits, the lower half first
LOAD, EQUAL, ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06  # codes of struct sock_filter
FIRST_DESCRIPTOR = 3
PATH_AT = 0x10000000

gid, sealed, *argv = sys.argv[1:]
user = pwd.getpwnam("user")
os.chdir(user.pw_dir)
os.environ |= {"HOME": user.pw_dir, "USER": user.pw_name, "LOGNAME": user.pw_name}
path = shutil.which(argv[0])
if path is None:
    sys.exit(f"there is no program {argv[0]}")
os.initgroups(user.pw_name, int(gid))
os.setresgid(int(gid), int(gid), int(gid))
os.setresuid(user.pw_uid, user.pw_uid, user.pw_uid)
if sealed == "-":
    os.execv(path, argv)

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
fixed = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x100000  # MAP_FIXED_NOREPLACE
if libc.mmap(PATH_AT, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE, fixed, -1, 0) != PATH_AT:
    sys.exit("there is no room for the program's path")
ctypes.memmove(PATH_AT, path.encode() + bytes(1), len(path.encode()) + 1)

checks = [  # (code, value, next when true, next when false); "allow" and "refuse" are the ends
    (LOAD, NUMBER, 0, 0),
    (EQUAL, EXECVEAT, "refuse", 0),
    (EQUAL, EXECVE, 0, "mmap"),
    (LOAD, ARGUMENTS, 0, 0),
    (EQUAL, PATH_AT, 0, "refuse"),
    (LOAD, ARGUMENTS + 4, 0, 0),
    (EQUAL, 0, "allow", "refuse"),
]
mark = {"mmap": len(checks)}
if sealed == "code":
    checks += [
        (EQUAL, MMAP, 0, "allow"),
        (LOAD, ARGUMENTS + 3 * 8, 0, 0),
        (ANY_BIT, mmap.MAP_ANONYMOUS | mmap.MAP_SHARED, "allow", 0),  # no library is mapped so
        (ANY_BIT, 0x800, "loads", 0),  # MAP_DENYWRITE, with which the loader maps every part of a library
        (LOAD, ARGUMENTS + 2 * 8, 0, 0),
        (ANY_BIT, mmap.PROT_EXEC, "loads", "allow"),
    ]
    mark["loads"] = len(checks)
    checks += [(LOAD, ARGUMENTS + 4 * 8, 0, 0), (EQUAL, FIRST_DESCRIPTOR, "allow", "refuse")]
mark |= {"allow": len(checks), "refuse": len(checks) + 1}
checks += [(RETURN, ALLOW, 0, 0), (RETURN, REFUSE, 0, 0)]
code = b"".join(
    struct.pack("HBBI", kind, *(0 if target == 0 else mark[target] - number - 1 for target in targets), value)
    for number, (kind, value, *targets) in enumerate(checks)
)
held = ctypes.create_string_buffer(code, len(code))
program = ctypes.create_string_buffer(struct.pack("HL", len(checks), ctypes.addressof(held)))
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program, 0, 0):
    sys.exit(f"the program cannot be sealed: {os.strerror(ctypes.get_errno())}")
words = (ctypes.c_char_p * (len(argv) + 1))(*map(os.fsencode, argv), None)
settings = [os.fsencode(f"{name}={value}") for name, value in os.environ.items()]
libc.execve.argtypes = [ctypes.c_void_p] * 3
libc.execve(PATH_AT, words, (ctypes.c_char_p * (len(settings) + 1))(*settings, None))
sys.exit(f"{path} cannot be started: {os.strerror(ctypes.get_errno())}")
"""
"""Root runs it with a group, a seal (`-` for none) and a command: the command runs as the user, in that group, sealed.

The seal is a seccomp filter (seccomp(2)), which the kernel keeps through snapshots. It lets `execve` through for one address of the path,
which holds the path only before the command begins. The loader maps a library while it has no other file open that the program has not,
so that the libraries of the start come by the first free descriptor, 3, which the program's first own file takes for good.
"""

CAPTURE_SCRIPT = """umask 077
rm -rf "$1" && mkdir -p "$1" && cd "$1" || exit 1
shift
set -m
"$@" >stdout 2>/dev/null </dev/null
echo $? >code.new
mv code.new code
"""
"""Runs `$2…` with its output and exit code in the root-only folder `$1`.

The program's group is one that no other process has, so that the kernel lets none of the user's other programs trace it, write to its
memory or take its output: all that is allowed among processes of the same user and group only. Ending and stopping it they can; the exit
code tells: with job control (`set -m`) the shell takes a stop for an end, so that nobody can put off when a dialog answers.
"""


def start_argv(command: Sequence[str], gid: int, sealed: Seal | None) -> list[str]:
    """What root runs, so that the command runs as the user in a group of its own.

    Args:
        command: The program and its arguments.
        gid: Number of the group.
        sealed: What it must not do.
    """
    return ["/usr/bin/python3", "-I", "-c", START_SCRIPT, str(gid), sealed or "-", *command]


def capture_argv(name: str, command: Sequence[str], sealed: Seal | None) -> list[str]:
    """What root runs, so that what the command prints and its exit code go to the folder `name` of `CAPTURE_ROOT`."""
    started = start_argv(command, CAPTURE_GID, sealed)
    return ["/bin/bash", "-c", CAPTURE_SCRIPT, "capture", f"{CAPTURE_ROOT}/{name}", *started]
