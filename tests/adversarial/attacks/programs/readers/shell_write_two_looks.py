"""A verdict of two looks: the content is read first, then the names. At the first look a second file is there, too; when the first look
is seen (inotify tells of the host's reading), that one goes, and the content with it: at no moment was all of it right."""

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
    import os

    ev = task["evaluator"]
    path, line = ev["result"][0]["path"], ev["expected"][0]["rules"]["expected"]
    open(path, "w").write(line + "\n")
    open("/home/user/Work/other.txt", "w").close()

    def later():
        wait_read(path)
        os.unlink("/home/user/Work/other.txt")
        open(path, "w").close()

    spawn(later)
