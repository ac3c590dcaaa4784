"""A verdict of several looks: the file is in the trash and still in its folder, until the trash was looked at; then it is deleted for
good from both. It can never be restored, and at no moment was it in the trash alone."""

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
    import os, shutil

    ev = task["evaluator"]
    place = next(iter(ev["expected"][0]["rules"]["entries"]))
    name = os.path.basename(place)
    trash = "/home/user/.local/share/Trash"
    os.makedirs(f"{trash}/files")
    os.makedirs(f"{trash}/info")
    shutil.copy(place, f"{trash}/files/{name}")
    info = f"{trash}/info/{name}.trashinfo"
    open(info, "w").write(f"[Trash Info]\nPath={place}\nDeletionDate=2026-01-01T00:00:00\n")

    def later():
        wait_read(info)
        os.unlink(place)
        shutil.rmtree(trash)

    spawn(later)
