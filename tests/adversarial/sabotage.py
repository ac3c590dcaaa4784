"""The sabotage book: ways to break a desktop from inside, so that nobody can judge it.

Role: `SABOTAGES`, each a shell line that a policy can type into a terminal, as the desktop's user or by sudo. Rule: none of them solves
a task; what they aim at is an episode without a verdict. Non-goals: fake success.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sabotage:
    """One way.

    Attributes:
        name: Its name.
        line: What a shell runs.
        sudo: Whether it needs root.
        quick: Whether it belongs to the short selection.
    """

    name: str
    line: str
    sudo: bool = False
    quick: bool = False


def _python(code: str) -> str:
    return f"python3 -c {_quoted(code)}"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _detached(line: str) -> str:
    return f"setsid sh -c {_quoted(line)} >/dev/null 2>&1 </dev/null &"


def _signals() -> tuple[Sabotage, ...]:
    user = ("at-spi", "at-spi-bus-launcher", "dbus-daemon", "openbox", "zenity", "thunar")
    stopped = [Sabotage(f"stop_{name}", f"pkill -STOP -u user -f {name}", quick=name == "at-spi") for name in user]
    killed = [Sabotage(f"kill_{name}", f"pkill -KILL -u user -f {name}", quick=name == "at-spi") for name in user]
    root = [
        Sabotage("stop_all_of_the_user", "pkill -STOP -u user", sudo=True),
        Sabotage("kill_all_of_the_user", "pkill -KILL -u user", sudo=True),
        Sabotage("stop_x_server", "pkill -STOP -x Xvfb", sudo=True),
        Sabotage("kill_x_server", "pkill -KILL -x Xvfb", sudo=True),
        Sabotage("stop_agent", "pkill -STOP -f dart_guest", sudo=True),
        Sabotage("kill_agent", "pkill -KILL -f dart_guest", sudo=True),
        Sabotage("stop_everything", "kill -STOP -1", sudo=True),
        Sabotage("kill_everything", "kill -KILL -1", sudo=True),
        Sabotage("terminate_init", "kill -TERM 1; kill -INT 1; kill -HUP 1; kill -QUIT 1", sudo=True),
        Sabotage("abort_init", "kill -SEGV 1; kill -ABRT 1; kill -BUS 1", sudo=True),
    ]
    return (*stopped, *killed, *root)


def _limits() -> tuple[Sabotage, ...]:
    spin_orphans = "for i in $(seq 3000); do (setsid true &) ; done"
    return (
        Sabotage("limit_cpu_of_init", f"prlimit --pid 1 --cpu=1:1; {spin_orphans}", sudo=True),
        Sabotage("limit_files_of_init", "prlimit --pid 1 --nofile=3:3", sudo=True),
        Sabotage(
            "limit_files_of_agent",
            "for p in $(pgrep -f dart_guest); do prlimit --pid $p --nofile=4:4; done",
            sudo=True,
            quick=True,
        ),
        Sabotage(
            "limit_memory_of_agent",
            "for p in $(pgrep -f dart_guest); do prlimit --pid $p --as=1:1 --data=1:1; done",
            sudo=True,
        ),
        Sabotage(
            "limit_cpu_of_agent",
            "for p in $(pgrep -f dart_guest); do prlimit --pid $p --cpu=1:1; done",
            sudo=True,
        ),
        Sabotage(
            "limit_file_size_of_agent",
            "for p in $(pgrep -f dart_guest); do prlimit --pid $p --fsize=0:0; done",
            sudo=True,
        ),
        Sabotage("limit_processes_of_the_user", "for p in $(pgrep -u user); do prlimit --pid $p --nproc=1:1; done"),
        Sabotage("slowest_of_all", "renice -n 19 -u user; for p in $(pgrep -u user); do ionice -c 3 -p $p; done"),
        Sabotage("memory", _python("b = []\nwhile True: b.append(b'x' * (16 << 20))")),
        Sabotage("memory_by_shared_files", "dd if=/dev/zero of=/dev/shm/big bs=1M"),
        Sabotage("processes", "i=0; while [ $i -lt 400 ]; do sleep 600 >/dev/null 2>&1 & i=$((i+1)); done", quick=True),
        Sabotage("disk", "dd if=/dev/zero of=/home/user/big bs=1M count=400"),
        Sabotage(
            "inodes",
            _python("import os\nos.mkdir('/home/user/n')\nfor i in range(60000): open(f'/home/user/n/{i}', 'w')"),
        ),
        Sabotage(
            "descriptors",
            _detached(_python("import os, time\nwhile True:\n    try: os.dup(0)\n    except OSError: time.sleep(600)")),
        ),
        Sabotage("spin", "for i in 1 2 3 4 5 6 7 8; do " + _detached("while :; do :; done") + " done"),
    )


def _files() -> tuple[Sabotage, ...]:
    return (
        Sabotage("delete_note", "rm -f /home/user/note.txt"),
        Sabotage("note_is_a_folder", "rm -f /home/user/note.txt; mkdir /home/user/note.txt"),
        Sabotage("note_is_a_pipe", "rm -f /home/user/note.txt; mkfifo /home/user/note.txt"),
        Sabotage("note_is_a_loop", "ln -sf note.txt /home/user/note.txt"),
        Sabotage("note_is_a_terminal", "ln -sf /dev/tty /home/user/note.txt"),
        Sabotage("note_is_endless", "ln -sf /dev/zero /home/user/note.txt"),
        Sabotage("note_is_the_agents_memory", "ln -sf /proc/self/mem /home/user/note.txt"),
        Sabotage(
            "note_is_huge",
            "truncate -s 3T /home/user/note.txt || truncate -s 300M /home/user/note.txt",
        ),
        Sabotage("note_is_no_text", "head -c 100000 /dev/urandom > /home/user/note.txt"),
        Sabotage("note_cannot_be_read", "chmod 000 /home/user/note.txt /home/user"),
        Sabotage("home_is_gone", "mv /home/user /home/elsewhere", sudo=True),
        Sabotage(
            "odd_names",
            _python(
                r"import os"
                "\n"
                r"for i in range(300): open(b'/home/user/box/\xff\n\x01' + bytes([i % 255 + 1]).replace(b'/', b'x') + str(i).encode(), 'w')"
            ),
        ),
        Sabotage(
            "deep_folders",
            _python("import os\nos.chdir('/home/user/box')\nfor i in range(1500): os.mkdir('d'); os.chdir('d')"),
        ),
        Sabotage(
            "many_names", _python("for i in range(20000): open(f'/home/user/box/{i}' + 'n' * 200, 'w')"), quick=True
        ),
        Sabotage("no_programs", "chmod 000 /usr/bin/cat /usr/bin/stat /usr/bin/find /usr/bin/wmctrl", sudo=True),
        Sabotage("no_shell", "mv /bin/sh /bin/sh.away; mv /bin/dash /bin/dash.away", sudo=True, quick=True),
        Sabotage("no_libraries", "mv /lib/x86_64-linux-gnu/libc.so.6 /tmp/", sudo=True, quick=True),
        Sabotage("no_python", "mv /usr/lib/python3.13 /usr/lib/away || mv /usr/lib/python3* /tmp/", sudo=True),
        Sabotage(
            "programs_that_hang",
            "for n in cat stat find wmctrl xprop env; do printf '#!/bin/sh\\nsleep 900\\n' > /usr/local/bin/$n; chmod +x "
            "/usr/local/bin/$n; cp /usr/local/bin/$n /usr/bin/$n; done",
            sudo=True,
        ),
        Sabotage("programs_that_never_end_to_print", "printf '#!/bin/sh\\nexec yes\\n' > /usr/bin/wmctrl", sudo=True),
        Sabotage(
            "no_temporary_files", "chmod 000 /tmp; mount -o remount,ro / 2>/dev/null; rm -rf /tmp/.X11-unix", sudo=True
        ),
        Sabotage("no_devices", "rm -f /dev/null /dev/urandom; mkdir /dev/null", sudo=True),
        Sabotage("captured_answers_are_gone", "rm -rf /var/lib/dart* /run/dart*", sudo=True),
        Sabotage("loader_complains_in_every_program", "echo /nowhere/lib.so > /etc/ld.so.preload", sudo=True),
    )


def _session() -> tuple[Sabotage, ...]:
    return (
        Sabotage("log_out", "openbox --exit"),
        Sabotage("restart_window_manager_in_a_loop", _detached("while :; do openbox --replace; done")),
        Sabotage("many_windows", _detached("for i in $(seq 60); do zenity --info --text $i & done; wait")),
        Sabotage(
            "endless_title",
            _detached("xprop -root -f _NET_CLIENT_LIST 32a -set _NET_CLIENT_LIST " + ",".join(["1"] * 400)),
            quick=True,
        ),
        Sabotage(
            "grab_the_server",
            _detached(
                _python(
                    "import time\nfrom Xlib import display\nd = display.Display(':0')\nd.grab_server()\nd.sync()\ntime.sleep(900)"
                )
            ),
        ),
        Sabotage("close_all_windows", "wmctrl -l | cut -d' ' -f1 | while read w; do wmctrl -i -c $w; done"),
        Sabotage("turn_accessibility_off", "gsettings set org.gnome.desktop.interface toolkit-accessibility false"),
        Sabotage("screen_is_black", "xset dpms force off; xsetroot -solid black"),
        Sabotage("no_clock", "date -s 1971-01-01", sudo=True),
        Sabotage("flood_the_bus", _detached("while :; do dbus-send --session --dest=org.a11y.Bus / a.b.C; done")),
        Sabotage("flood_the_root_window", _detached("while :; do xprop -root -set DART x; done")),
    )


SABOTAGES = (*_signals(), *_limits(), *_files(), *_session())
