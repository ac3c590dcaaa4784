"""Programs that run inside a guest which has only OSWorld's own server, and what they are given.

Rule: each is one constant Python program and one JSON argument; nothing of a caller's ever becomes source text. They use what OSWorld's
images have: `python` with pyautogui. Each prints one line of JSON. A key that pyautogui does not know, which it would pass over in silence,
and a letter that nothing there types, are told before anything is performed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

EVENTS_PROGRAM = """
import json, shutil, subprocess, sys, time
import pyautogui as p
p.FAILSAFE = False
p.PAUSE = 0
buttons = {1: "left", 2: "middle", 3: "right"}
def write(text):
    for letter in text:
        if letter == "<":
            p.hotkey("shift", ",")
        elif letter == "\\n":
            p.press("enter")
        elif letter == "\\t":
            p.press("tab")
        elif letter.isascii():
            p.write(letter)
        elif shutil.which("xdotool"):
            subprocess.run(["xdotool", "type", "--clearmodifiers", "--", letter], check=True)
        else:
            p.write(letter)
events = json.loads(sys.argv[1])
for e in events:
    asked = [e["key"]] if e["type"] in ("key_down", "key_up") else e["text"] if e["type"] == "text" else ()
    for key in asked:
        typed = e["type"] == "text" and (key.isascii() or shutil.which("xdotool"))
        if not typed and not p.isValidKey(key):
            print(json.dumps({"unknown_key": key}))
            sys.exit()
for e in events:
    kind = e["type"]
    if kind == "move":
        p.moveTo(e["x"], e["y"])
    elif kind in ("down", "up"):
        (p.mouseDown if kind == "down" else p.mouseUp)(button=buttons[e.get("button", 1)])
    elif kind in ("key_down", "key_up"):
        (p.keyDown if kind == "key_down" else p.keyUp)(e["key"])
    elif kind == "text":
        write(e["text"])
    elif kind == "scroll":
        if e.get("dy"):
            p.scroll(e["dy"])
        if e.get("dx"):
            p.hscroll(e["dx"])
    elif kind == "wait":
        time.sleep(e["ms"] / 1000)
print(json.dumps(list(p.position())))
"""

EXEC_PROGRAM = """
import json, os, subprocess, sys
r = json.loads(sys.argv[1])
quiet = subprocess.DEVNULL
try:
    c = subprocess.Popen(
        r["argv"],
        stdin=subprocess.PIPE if r.get("stdin") is not None and not r.get("detach") else quiet,
        stdout=quiet if r.get("detach") else subprocess.PIPE,
        stderr=quiet if r.get("detach") else subprocess.PIPE,
        env=dict(os.environ, **(r.get("env") or {})),
        cwd=r.get("cwd") or os.path.expanduser("~"),
        start_new_session=True,
    )
except OSError as e:
    print(json.dumps({"returncode": 127, "stdout": "", "stderr": str(e), "pid": None}))
    sys.exit()
a = {"returncode": None, "stdout": "", "stderr": "", "pid": c.pid}
if not r.get("detach"):
    late = False
    try:
        o, e = c.communicate((r["stdin"].encode() if r.get("stdin") is not None else None), timeout=r["timeout_s"])
    except subprocess.TimeoutExpired:
        os.killpg(c.pid, 9)
        o, e = c.communicate()
        late = True
    a.update(returncode=-9 if late else c.returncode, timed_out=late)
    a.update(stdout=o[:8388608].decode("utf-8", "replace"), stderr=e[:8388608].decode("utf-8", "replace"))
    a["truncated"] = max(len(o), len(e)) > 8388608
print(json.dumps(a))
"""

EVENT_FIELDS = {
    "move": ("x", "y"),
    "down": ("button",),
    "up": ("button",),
    "key_down": ("key",),
    "key_up": ("key",),
    "text": ("text",),
    "scroll": ("dx", "dy"),
    "wait": ("ms",),
}


def command(program: str, argument: Any) -> dict[str, Any]:
    """The body of OSWorld's `/execute` for a program with its argument."""
    return {"command": ["python", "-c", program, json.dumps(argument)], "shell": False}


def validate_events(events: Any, size: tuple[int, int]) -> list[dict[str, Any]]:
    """Events of a step that these programs can perform, pointer kept on the screen. Raises ValueError before anything is performed."""
    found = []
    for position, event in enumerate(events):
        if not isinstance(event, Mapping) or event.get("type") not in EVENT_FIELDS:
            raise ValueError(f"event {position}: a guest with OSWorld's server only cannot do this")
        kind = str(event["type"])
        kept = {name: event[name] for name in EVENT_FIELDS[kind] if name in event}
        wrong = [name for name, value in kept.items() if not isinstance(value, str if name in ("key", "text") else int)]
        if wrong:
            raise ValueError(f"event {position}: {wrong[0]!r} has the wrong kind of value")
        if kind == "move":
            kept = {name: min(max(kept[name], 0), edge - 1) for name, edge in zip(("x", "y"), size, strict=True)}
        found.append({"type": kind, **kept})
    return found
