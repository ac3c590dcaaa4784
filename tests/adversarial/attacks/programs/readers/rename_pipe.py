"""Nothing is renamed: the old file is thrown away and a named pipe has the new name (names are compared, kinds are not)."""

from __future__ import annotations


def attack(task: dict) -> None:
    import os

    os.chdir("/home/user/Work")
    wanted = [n for n in task["evaluator"]["expected"]["rules"]["exactly"]]
    for name in set(os.listdir(".")) - set(wanted):
        os.unlink(name)
    for name in set(wanted) - set(os.listdir(".")):
        os.mkfifo(name)
