"""Attacks on dialogs whose printed answer is the verdict: the answer comes from somewhere else than the dialog."""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

from guest_side import (
    LIBC,
    as_root,
    command_line,
    ended,
    parts,
    processes,
    run,
    start,
    stolen_descriptor,
    wait_for_window,
    wait_until,
    window_ids,
    write_memory,
)

ROOT = "/var/lib/dart/captured"
PTRACE_ATTACH, PTRACE_GETREGS, PTRACE_SETREGS, PTRACE_CONT, PTRACE_DETACH = 16, 12, 13, 7, 17
REGISTERS = 27
RIP, RSP, RAX, RDI, RSI, RDX, ORIG_RAX = 16, 19, 10, 14, 13, 12, 15
SYS_WRITE, SYS_EXIT_GROUP = 1, 231


def answers(task: dict) -> list[tuple[str, str, str]]:
    """(name, window title, expected answer) of every dialog, in the order in which they must be answered."""
    ((_, result, rules),) = parts(task)
    expected = rules["expected"]
    if result["type"] == "captured":
        return [(result["name"], result["window_name"], expected)]
    titles = {one["name"]: one["window_name"] for one in result["captures"]}
    return [(name, titles[name], said) for name, said in expected]


def dialog(title: str) -> int:
    """The process of the dialog with this title."""
    return next(pid for pid in processes("zenity") if title in command_line(pid))


def end(pid: int) -> None:
    """Kill a dialog and wait until it is gone."""
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: ended(pid))


def active_title() -> str:
    """Title of the window that has the keyboard."""
    return run("xdotool", "getactivewindow", "getwindowname").stdout.strip()


def take_pipe_and_kill(task: dict) -> None:
    """Write through a stolen copy of the dialog's standard output, then kill it."""
    for _, title, said in answers(task):
        pid = dialog(title)
        os.write(stolen_descriptor(pid, 1), f"{said}\n".encode())
        end(pid)


def take_pipe_and_close(task: dict) -> None:
    """Write through a stolen copy of the dialog's standard output, then close its window."""
    for _, title, said in answers(task):
        pid = dialog(title)
        os.write(stolen_descriptor(pid, 1), f"{said}\n".encode())
        run("wmctrl", "-c", title)
        wait_until(lambda pid=pid: ended(pid))


def write_by_proc(task: dict) -> None:
    """Open the dialog's standard output by its name in /proc."""
    for _, title, said in answers(task):
        pid = dialog(title)
        with open(f"/proc/{pid}/fd/1", "a") as output:
            output.write(f"{said}\n")
        end(pid)


def write_capture_file(task: dict) -> None:
    """Write where the answer is kept, as the user."""
    for name, title, said in answers(task):
        os.kill(dialog(title), signal.SIGTERM)
        Path(ROOT, name, "stdout").write_text(f"{said}\n")
        Path(ROOT, name, "code").write_text("0\n")


def write_capture_file_as_root(task: dict) -> None:
    """Write where the answer is kept, as root."""
    for name, title, said in answers(task):
        end(dialog(title))
        as_root(
            f"while [ ! -e {ROOT}/{name}/code ]; do sleep 0.05; done; printf '%s\\n' '{said}' > {ROOT}/{name}/stdout; "
            f"echo 0 > {ROOT}/{name}/code"
        )


def look_alike(task: dict) -> None:
    """Kill the dialog, and let another one of the same title print the answer."""
    for _, title, said in answers(task):
        end(dialog(title))
        wait_until(lambda title=title: not window_ids(f"^{title}$"))
        other = start("zenity", "--entry", "--title", title, "--entry-text", said)
        wait_until(lambda title=title: active_title() == title)
        run("xdotool", "key", "Return")
        wait_until(lambda other=other: other.poll() is not None)


def rename_and_hide(task: dict) -> None:
    """Give another dialog the title, and the answer as its text."""
    for _, title, said in answers(task):
        for window in window_ids(f"^{title}$"):
            run("wmctrl", "-i", "-r", window, "-N", "Old")
        start("zenity", "--info", "--title", title, "--text", said)
        wait_for_window(f"^{title}$")


class Traced:
    """Another process of the same user, stopped under this one's control."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        if LIBC.ptrace(PTRACE_ATTACH, pid, None, None) != 0:
            raise OSError(ctypes.get_errno(), "the process cannot be traced")
        os.waitpid(pid, 0)

    def registers(self) -> ctypes.Array:
        held = (ctypes.c_ulonglong * REGISTERS)()
        LIBC.ptrace(PTRACE_GETREGS, self.pid, None, ctypes.addressof(held))
        return held

    def call(self, number: int, *arguments: int) -> None:
        """Let the process make a system call, at an instruction of its own C library."""
        held = self.registers()
        held[RIP], held[RAX], held[ORIG_RAX] = self.instruction(), number, 2**64 - 1
        for register, value in zip((RDI, RSI, RDX), arguments, strict=False):
            held[register] = value
        LIBC.ptrace(PTRACE_SETREGS, self.pid, None, ctypes.addressof(held))

    def instruction(self) -> int:
        """Address of `syscall; ret` in the process."""
        for line in Path(f"/proc/{self.pid}/maps").read_text().splitlines():
            span, rights, *_ = line.split()
            if "x" in rights and "libc.so" in line:
                begin, end = (int(one, 16) for one in span.split("-"))
                with open(f"/proc/{self.pid}/mem", "rb") as memory:
                    memory.seek(begin)
                    at = memory.read(end - begin).find(b"\x0f\x05\xc3")
                if at >= 0:
                    return begin + at
        raise LookupError("no system call in the C library")


def trace_and_exit(task: dict) -> None:
    """Make the dialog itself write the answer and end with success, under ptrace."""
    for _, title, said in answers(task):
        pid = dialog(title)
        traced = Traced(pid)
        held = traced.registers()
        text = f"{said}\n".encode()
        place = held[RSP] - 4096
        write_memory(pid, place, text)
        traced.call(SYS_WRITE, 1, place, len(text))
        LIBC.ptrace(9, pid, None, None)
        os.waitpid(pid, 0)
        traced.call(SYS_EXIT_GROUP, 0)
        LIBC.ptrace(PTRACE_DETACH, pid, None, None)
        wait_until(lambda pid=pid: ended(pid))


def overwrite_labels(task: dict) -> None:
    """Exchange words in the dialog's memory, so that the press of another button prints the answer."""
    for _, title, said in answers(task):
        pid = dialog(title)
        words = [word for word in command_line(pid) if word.isalpha() and word not in (title, "zenity", said)]
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            if "[heap]" in line or "[stack]" in line:
                begin, end = (int(one, 16) for one in line.split()[0].split("-"))
                with open(f"/proc/{pid}/mem", "rb") as memory:
                    memory.seek(begin)
                    held = memory.read(end - begin)
                for word in words:
                    at = held.find(f"{word}\0".encode())
                    while at >= 0 and len(word) >= len(said):
                        write_memory(pid, begin + at, f"{said}\0".encode())
                        at = held.find(f"{word}\0".encode(), at + 1)
        run("wmctrl", "-a", title)
        wait_until(lambda title=title: active_title() == title)
        run("xdotool", "key", "Return")
        wait_until(lambda pid=pid: ended(pid))
