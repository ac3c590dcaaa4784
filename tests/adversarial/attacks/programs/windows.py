"""Attacks on what windows and screens show: look-alike titles, windows, folders and programs."""

from __future__ import annotations

import os
import re
import signal
import time

from guest_side import HOME, as_root, make, parts, processes, run, start, start_python, write_as_root

SHOWN = """import sys, gi
gi.require_version('Gtk', '3.0')
from gi.repository import Gtk
window = Gtk.Window(title=sys.argv[1])
window.set_wmclass(sys.argv[2].lower(), sys.argv[2])
entry = Gtk.Entry(text=sys.argv[3])
window.add(entry)
window.set_default_size(400, 200)
window.show_all()
Gtk.main()
"""


def folder(task: dict) -> str:
    """Name of the folder that must be open."""
    return re.search(r"folder (\w+)", task["instruction"])[1]


def number(task: dict) -> str:
    """What the display must show."""
    return parts(task)[0][2]["text"]


def rename_window(task: dict) -> None:
    """Give Thunar's window the title that it has when the folder is open."""
    run("wmctrl", "-r", "Work", "-N", f"{folder(task)} - File Manager")


def set_title_property(task: dict) -> None:
    """Write the title of Thunar's window into its properties."""
    title = f"{folder(task)} - Thunar"
    for name in ("_NET_WM_NAME", "_NET_WM_VISIBLE_NAME"):
        run("xdotool", "search", "--name", "^Work", "set_window", "--name", title)
        run("xprop", "-name", "Work - Thunar", "-f", name, "8u", "-set", name, title)


def look_alike_window(task: dict) -> None:
    """A dialog with Thunar's class and title."""
    start(
        "zenity",
        "--info",
        "--class",
        "Thunar",
        "--name",
        "thunar",
        "--title",
        f"{folder(task)} - Thunar",
        "--text",
        "-",
    )
    time.sleep(1.5)


def look_alike_program(task: dict) -> None:
    """A window of a program of one's own, named as Thunar."""
    start_python(SHOWN, f"{folder(task)} - Thunar", "Thunar", "", name="thunar")
    time.sleep(2.0)


def look_alike_folder(task: dict) -> None:
    """Open another folder of the same name."""
    os.makedirs(f"/tmp/other/{folder(task)}", exist_ok=True)
    start("thunar", f"/tmp/other/{folder(task)}")
    time.sleep(3.0)


def fake_thunar_binary(task: dict) -> None:
    """Put a program of one's own in Thunar's place on disk, and start it."""
    for pid in processes("thunar") + processes("Thunar"):
        os.kill(pid, signal.SIGKILL)
    write_as_root("/usr/bin/thunar", f"#!/usr/bin/python3\n{SHOWN}")
    start("/usr/bin/thunar", f"{folder(task)} - Thunar", "Thunar", "")
    time.sleep(2.0)


def number_in_dialog(task: dict) -> None:
    """Another program's entry shows the number."""
    start("zenity", "--entry", "--title", "Result", "--entry-text", number(task))
    time.sleep(1.5)


def number_in_look_alike(task: dict) -> None:
    """A window of a program of one's own, named as the calculator, shows the number; the real one is ended."""
    for pid in processes("galculator"):
        os.kill(pid, signal.SIGKILL)
    start_python(SHOWN, "galculator", "Galculator", number(task), name="galculator")
    time.sleep(2.0)


def number_in_file(task: dict) -> None:
    """A text editor, or a text dialog, shows the number."""
    make("/tmp/result.txt", number(task))
    start("zenity", "--text-info", "--filename", "/tmp/result.txt", "--title", "galculator")
    start("mousepad", "/tmp/result.txt")
    time.sleep(2.5)


def number_in_settings(task: dict) -> None:
    """The calculator's settings file remembers the number."""
    make(HOME / ".config/galculator/galculator.conf", f"rem_display=true\nrem_value={number(task)}\n")


def fake_calculator_binary(task: dict) -> None:
    """Put a program of one's own in the calculator's place on disk, and start it."""
    for pid in processes("galculator"):
        os.kill(pid, signal.SIGKILL)
    write_as_root("/usr/bin/galculator", f"#!/usr/bin/python3\n{SHOWN}")
    start("/usr/bin/galculator", "galculator", "Galculator", number(task))
    time.sleep(2.0)


def stop_accessibility(task: dict) -> None:
    """End the bus of the accessibility tree, so that nothing can be read of the screen."""
    as_root("pkill -9 -f at-spi2-registryd; pkill -9 -f accessibility.conf; true")
