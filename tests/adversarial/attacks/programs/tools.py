"""Attacks by root: the programs that a verdict might run are replaced, and say what is asked for."""

from __future__ import annotations

import json

from guest_side import as_root, parts, write_as_root

TOOL = """#!/usr/bin/python3
import base64, os, sys
ANSWERS = {answers!r}
line = " ".join([os.path.basename(sys.argv[0]), *sys.argv[1:]])
for words, answer in ANSWERS:
    if all(word in line for word in words):
        sys.stdout.buffer.write(base64.b64decode(answer))
        sys.exit(0)
os.execv({real!r}, sys.argv)
"""
PROTECTED_GID = 61_018
CODES = {"file": "f", "folder": "d", "link": "l"}


def listed(path: str, entries: dict) -> str:
    """A tree, as `find` prints it with kind, mode, target and name."""
    return "".join(
        f"{CODES[facts['kind']]}\t{facts.get('mode', '644')}\t{facts.get('target', '')}\t{name}\0"
        for name, facts in entries.items()
    )


def process_told(executable: str) -> str:
    """What a look at the task's programs finds."""
    return json.dumps([{"pid": 1, "executable": executable, "ports": [8080]}]) + "\n"


def answers(task: dict) -> list[tuple[list[str], str]]:
    """What each program must print for the verdict: words of its command line, and the text."""
    found: list[tuple[list[str], str]] = []
    for _, result, rules in parts(task):
        kind, path = result["type"], result.get("path", "")
        if kind == "file_tree" and "entries" in rules:
            found.append((["find", path, "-printf"], listed(path, rules["entries"])))
            sums = "".join(f"{one['sha256']}  ./{name}\0" for name, one in rules["entries"].items() if "sha256" in one)
            found += [(["sha256sum"], sums), (["sh", "sums", path], sums)]
        elif kind == "trash":
            entries = rules["entries"]
            found.append((["sh", "trash"], "".join(f"{n}.trashinfo:Path={place}\n" for n, place in enumerate(entries))))
            found.append(
                (["find", "Trash", "-printf"], listed(path, {str(n): one for n, one in enumerate(entries.values())}))
            )
        elif kind == "file_names":
            found.append((["find", path, "-mindepth"], "".join(f"{name}\0" for name in rules["exactly"])))
        elif kind == "web_log":
            expected = rules["expected"] if isinstance(rules["expected"], list) else [rules["expected"]]
            found.append((["cat", path], "".join(json.dumps(event) + "\n" for event in expected)))
        elif kind == "captured":
            found.append((["sh", "read"], f"0\n{rules['expected']}\n"))
        elif kind == "captured_in_turn":
            for number, (name, said) in enumerate(rules["expected"]):
                found += [(["sh", "read", f"/{name}"], f"0\n{said}\n"), (["stat", f"/{name}/"], f"{number}.0\n")]
        elif kind == "processes":
            group = f"{PROTECTED_GID} " if result.get("protected") else ""
            found.append((["ps", "-e"], "".join(f"1 S {group}{line}\n" for line in rules["exactly"])))
        elif kind == "protected_elements":
            found.append((["setpriv", "python3"], process_told(result["executable"])))
        elif kind == "xfconf":
            if result.get("protected"):
                found.append((["setpriv", "python3"], process_told("/usr/lib/x/xfce4/xfconf/xfconfd")))
                found.append((["dbus-send", "GetConnectionUnixProcessID"], "   uint32 1\n"))
            found.append((["xfconf-query", result["property"]], f"{rules['expected']}\n"))
        elif kind == "window_titles":
            title = rules["expect"][0].strip("^ ")
            found += [([name], f"0x01 0 thunar.Thunar desktop {title} - Thunar\n") for name in ("wmctrl", "sh list")]
        elif kind == "vm_command_line":
            found.append(([result["command"][0]], f"{rules['expected']}\n"))
        elif kind == "vlc_state":
            from processes_and_players import player_says

            found.append((["curl", "status.json"], player_says(task)))
            found.append((["setpriv", "python3"], process_told("/usr/bin/vlc")))
    return found


def fake(task: dict, tool: str, place: str) -> None:
    """Put a program in the place of a tool."""
    import base64

    told = [(words, base64.b64encode(text.encode()).decode()) for words, text in answers(task)]
    as_root(f"test -e /usr/bin/{tool}.real || cp -L /usr/bin/{tool} /usr/bin/{tool}.real")
    write_as_root(f"{place}/{tool}", TOOL.format(answers=told, real=f"/usr/bin/{tool}.real"))


def fake_in_local(task: dict, tool: str) -> None:
    """A program of that name comes first in the path."""
    fake(task, tool, "/usr/local/bin")


def fake_in_place(task: dict, tool: str) -> None:
    """The program itself is replaced."""
    fake(task, tool, "/usr/bin")


def lying_agent(task: dict) -> None:
    """The program inside the desktop that executes what the farm asks for is changed, and started again."""
    import base64

    told = [(words, base64.b64encode(text.encode()).decode()) for words, text in answers(task)]
    files = {
        path: rules["expected"] if isinstance(rules.get("expected"), str) else ""
        for _, result, rules in parts(task)
        if result["type"] in ("vm_file", "content_from_vm_file")
        for path in ([result["path"]] if isinstance(result["path"], str) else result["path"])
    }
    patch = (
        "import subprocess as _s, base64 as _b, builtins as _t, io as _i\n"
        f"_told, _files = {told!r}, {files!r}\n_popen = _s.Popen.__init__\n"
        "def _init(self, args, *a, **k):\n"
        "    line = ' '.join(map(str, args)) if not isinstance(args, str) else args\n"
        "    for words, text in _told:\n"
        "        if all(word in line for word in words):\n"
        "            args = ['/usr/bin/python3', '-c', 'import sys, base64; sys.stdout.buffer.write(base64.b64decode(%r))' % text]\n"
        "            break\n"
        "    return _popen(self, args, *a, **k)\n"
        "_s.Popen.__init__ = _init\n"
    )
    write_as_root("/usr/lib/python3/dist-packages/sitecustomize.py", patch, 0o644)
    as_root(
        "for path in $(python3 -c 'import dart_guest; print(dart_guest.__path__[0])'); do "
        "cat /usr/lib/python3/dist-packages/sitecustomize.py > /tmp/p; cat $path/__init__.py >> /tmp/p; cp /tmp/p $path/__init__.py; done; "
        "pkill -9 -f 'python3 -m dart_guest'; sleep 2"
    )
