"""The buttons are pressed in the wrong order, while the second dialog is stopped: it learns of its click only after the first has ended."""

from __future__ import annotations

FIND = """
import gi, json
gi.require_version("Atspi", "2.0")
from gi.repository import Atspi
found = {}
def walk(node, title):
    try:
        if node.get_role_name() == "push button":
            box = node.get_extents(Atspi.CoordType.SCREEN)
            found.setdefault(title, {})[node.get_name()] = [box.x + box.width // 2, box.y + box.height // 2]
        for i in range(node.get_child_count()):
            child = node.get_child_at_index(i)
            walk(child, title or child.get_name())
    except Exception as error:
        pass
desktop = Atspi.get_desktop(0)
for i in range(desktop.get_child_count()):
    walk(desktop.get_child_at_index(i), "")
print(json.dumps(found))
"""


def attack(task: dict) -> None:
    import json, os, signal, subprocess, sys, time

    (_, first), (_, second) = task["evaluator"]["expected"]["rules"]["expected"]
    r = subprocess.run(["/usr/bin/python3", "-c", FIND], capture_output=True, text=True)
    found = json.loads(r.stdout)
    print(found, file=sys.stderr)
    pids = {}
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            words = open(f"/proc/{pid}/cmdline").read().split("\0")
        except OSError:
            continue
        if words[0].endswith("zenity") and "--title" in words:
            pids[words[words.index("--title") + 1]] = int(pid)
    print(pids, file=sys.stderr)

    def click(place):
        subprocess.run(["xdotool", "mousemove", *map(str, place), "click", "1"])

    os.kill(pids["Second"], signal.SIGSTOP)
    click(found["Second"][second])
    time.sleep(0.5)
    click(found["First"][first])
    time.sleep(1.5)
    os.kill(pids["Second"], signal.SIGCONT)
    time.sleep(1.5)
