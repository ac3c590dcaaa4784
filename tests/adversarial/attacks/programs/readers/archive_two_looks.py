"""A verdict of two looks: the archive is right while the folder is gone; once it was read, the folder is back and the archive empty."""

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
    import os, subprocess

    ev = task["evaluator"]
    archive = ev["result"][0]["path"]
    form = ev["expected"][0]["rules"]["format"]
    folder = archive.removesuffix(f".{form}").rpartition("/")[2]
    os.chdir("/home/user/Work")
    pack = {"zip": "zip -rq {0} {1}", "tar.gz": "tar czf {0} {1}", "tar.xz": "tar cJf {0} {1}"}[form]
    subprocess.run(pack.format(archive, folder), shell=True, check=True)
    import shutil

    shutil.copytree(folder, "/home/user/.hidden")
    shutil.rmtree(folder)

    def later():
        wait_read(archive)
        shutil.copytree("/home/user/.hidden", folder)
        open(archive, "w").close()

    spawn(later)
