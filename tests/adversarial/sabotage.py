"""The sabotage book: ways to break a desktop from inside, so that nobody can judge it.

Role: `SABOTAGES`, each a shell line that a policy can type into a terminal, as the desktop's user or by sudo. Rule: none of them solves
a task; what they aim at is an episode without a verdict. Each names its effect, so that one that does nothing is seen. Non-goals: fake
success.
"""

from __future__ import annotations

import resource
import stat
from dataclasses import dataclass

from sabotage_effects import (
    USER_ID,
    Effect,
    Probe,
    all_of,
    any_of,
    depth_below,
    descriptors_of,
    disk_full,
    ended,
    file_is,
    holds,
    inodes_used_up,
    killed_for_memory,
    limited,
    link_to,
    missing,
    mode_is,
    names_in,
    none_below,
    refused_a_process,
    running,
    stopped,
    user_processes,
)

from dart_envs.types import DecodedAction
from dart_server.wire import KeyEvent


@dataclass(frozen=True, slots=True)
class Sabotage:
    """One way.

    Attributes:
        name: Its name.
        line: What a shell runs.
        effect: What it has done afterwards.
        sudo: Whether it needs root.
        quick: Whether it belongs to the short selection.
        then: What the policy does next; None is a move of the pointer.
        observed: Parts of the observation beside the screenshot.
    """

    name: str
    line: str
    effect: Effect | Probe
    sudo: bool = False
    quick: bool = False
    then: DecodedAction | None = None
    observed: tuple[str, ...] = ()


def _python(code: str) -> str:
    return f"python3 -c {_quoted(code)}"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _detached(line: str) -> str:
    return f"setsid sh -c {_quoted(line)} >/dev/null 2>&1 </dev/null &"


def _signals() -> tuple[Sabotage, ...]:
    user = ("at-spi", "at-spi-bus-launcher", "dbus-daemon", "openbox", "zenity", "thunar")
    ways = (("stop", "STOP", stopped), ("kill", "KILL", ended))
    users = [
        Sabotage(
            f"{verb}_{name}",
            f"pkill -{sent} -u user -f '[{name[0]}]{name[1:]}'",
            effect(name, USER_ID),
            quick=name == "at-spi",
        )
        for verb, sent, effect in ways
        for name in user
    ]
    root = [
        Sabotage(
            "stop_all_of_the_user",
            "pkill -STOP -u user",
            user_processes(lambda now: now is None or now.state == "T"),
            sudo=True,
        ),
        Sabotage("kill_all_of_the_user", "pkill -KILL -u user", user_processes(lambda now: now is None), sudo=True),
        Sabotage("stop_x_server", "pkill -STOP -x Xvfb", stopped("^Xvfb"), sudo=True),
        Sabotage("kill_x_server", "pkill -KILL -x Xvfb", ended("^Xvfb"), sudo=True),
        Sabotage("stop_agent", "pkill -STOP -f dart_guest", stopped("dart_guest"), sudo=True),
        Sabotage("kill_agent", "pkill -KILL -f dart_guest", ended("dart_guest"), sudo=True),
        Sabotage("stop_everything", "kill -STOP -1", stopped("dart_guest|^Xvfb"), sudo=True),
        Sabotage("kill_everything", "kill -KILL -1", ended("dart_guest|^Xvfb"), sudo=True),
        Sabotage("terminate_init", "kill -TERM 1; kill -INT 1; kill -HUP 1; kill -QUIT 1", ended("^Xvfb"), sudo=True),
        Sabotage("abort_agent", "pkill -SEGV -f dart_guest", ended("dart_guest"), sudo=True),
    ]
    return (*users, *root)


def _limits() -> tuple[Sabotage, ...]:
    spin_orphans = "for i in $(seq 3000); do (setsid true &) ; done"
    return (
        Sabotage(
            "limit_cpu_of_init",
            f"prlimit --pid 1 --cpu=1:1; {spin_orphans}",
            limited("dart-init", resource.RLIMIT_CPU, 1),
            sudo=True,
        ),
        Sabotage(
            "limit_files_of_init",
            "prlimit --pid 1 --nofile=3:3",
            limited("dart-init", resource.RLIMIT_NOFILE, 3),
            sudo=True,
        ),
        Sabotage(
            "limit_files_of_agent",
            "for p in $(pgrep -f dart_guest); do prlimit --pid $p --nofile=4:4; done",
            limited("dart_guest", resource.RLIMIT_NOFILE, 4),
            sudo=True,
            quick=True,
        ),
        Sabotage(
            "limit_memory_of_agent",
            "for p in $(pgrep -f dart_guest); do prlimit --pid $p --as=1:1 --data=1:1; done",
            all_of(limited("dart_guest", resource.RLIMIT_AS, 1), limited("dart_guest", resource.RLIMIT_DATA, 1)),
            sudo=True,
        ),
        Sabotage(
            "limit_cpu_of_agent",
            "for p in $(pgrep -f dart_guest); do prlimit --pid $p --cpu=1:1; done",
            limited("dart_guest", resource.RLIMIT_CPU, 1),
            sudo=True,
        ),
        Sabotage(
            "limit_file_size_of_agent",
            "for p in $(pgrep -f dart_guest); do prlimit --pid $p --fsize=0:0; done",
            limited("dart_guest", resource.RLIMIT_FSIZE, 0),
            sudo=True,
        ),
        Sabotage(
            "limit_processes_of_the_user",
            "for p in $(pgrep -u user); do prlimit --pid $p --nproc=1:1; done",
            limited("openbox|^Xvfb", resource.RLIMIT_NPROC, 1),
        ),
        Sabotage(
            "slowest_of_all",
            "renice -n 19 -u user; for p in $(pgrep -u user); do ionice -c 3 -p $p; done",
            user_processes(lambda now: now is None or now.nice == 19),
        ),
        Sabotage("memory", _python("b = []\nwhile True: b.append(b'x' * (16 << 20))"), killed_for_memory),
        Sabotage(
            "memory_by_shared_files",
            "dd if=/dev/zero of=/dev/shm/big bs=1M",
            any_of(killed_for_memory, file_is("/dev/shm/big", lambda found: found.st_size >= 16 << 20)),
        ),
        Sabotage(
            "processes",
            "i=0; while [ $i -lt 400 ]; do sleep 600 >/dev/null 2>&1 & i=$((i+1)); done",
            refused_a_process,
            quick=True,
        ),
        Sabotage("disk", "dd if=/dev/zero of=/home/user/big bs=1M count=400", disk_full),
        Sabotage(
            "inodes",
            _python("import os\nos.mkdir('/home/user/n')\nfor i in range(60000): open(f'/home/user/n/{i}', 'w')"),
            inodes_used_up,
        ),
        Sabotage(
            "descriptors",
            _detached(_python("import os, time\nwhile True:\n    try: os.dup(0)\n    except OSError: time.sleep(600)")),
            descriptors_of("os.dup", 1000),
        ),
        Sabotage(
            "spin",
            "for i in 1 2 3 4 5 6 7 8; do " + _detached("while :; do :; done") + " done",
            running("while :; do :; done", 8),
        ),
    )


def _files() -> tuple[Sabotage, ...]:
    return (
        Sabotage("delete_note", "rm -f /home/user/note.txt", missing("/home/user/note.txt")),
        Sabotage(
            "note_is_a_folder",
            "rm -f /home/user/note.txt; mkdir /home/user/note.txt",
            file_is("/home/user/note.txt", lambda found: stat.S_ISDIR(found.st_mode)),
        ),
        Sabotage(
            "note_is_a_pipe",
            "rm -f /home/user/note.txt; mkfifo /home/user/note.txt",
            file_is("/home/user/note.txt", lambda found: stat.S_ISFIFO(found.st_mode)),
        ),
        Sabotage(
            "note_is_a_loop",
            "rm -f /home/user/note.txt; ln -s note.txt /home/user/note.txt",
            link_to("/home/user/note.txt", "note.txt"),
        ),
        Sabotage(
            "note_is_a_terminal", "ln -sf /dev/tty /home/user/note.txt", link_to("/home/user/note.txt", "/dev/tty")
        ),
        Sabotage(
            "note_is_endless", "ln -sf /dev/zero /home/user/note.txt", link_to("/home/user/note.txt", "/dev/zero")
        ),
        Sabotage(
            "note_is_the_agents_memory",
            "ln -sf /proc/self/mem /home/user/note.txt",
            link_to("/home/user/note.txt", "/proc/self/mem"),
        ),
        Sabotage(
            "note_is_huge",
            "truncate -s 3T /home/user/note.txt || truncate -s 300M /home/user/note.txt",
            file_is("/home/user/note.txt", lambda found: found.st_size >= 300 << 20),
        ),
        Sabotage(
            "note_is_no_text",
            "head -c 100000 /dev/urandom > /home/user/note.txt",
            file_is("/home/user/note.txt", lambda found: found.st_size == 100_000),
        ),
        Sabotage(
            "note_cannot_be_read",
            "chmod 000 /home/user/note.txt /home/user",
            all_of(mode_is("/home/user/note.txt", 0), mode_is("/home/user", 0)),
        ),
        Sabotage("home_is_gone", "mv /home/user /home/elsewhere", missing("/home/user"), sudo=True),
        Sabotage(
            "odd_names",
            _python(
                r"import os"
                "\n"
                r"for i in range(300): open(b'/home/user/box/\xff\n\x01' + bytes([i % 255 + 1]).replace(b'/', b'x') + str(i).encode(), 'w')"
            ),
            names_in("/home/user/box", 250),
        ),
        Sabotage(
            "deep_folders",
            _python("import os\nos.chdir('/home/user/box')\nfor i in range(1500): os.mkdir('d'); os.chdir('d')"),
            depth_below("/home/user/box", "d", 1500),
        ),
        Sabotage(
            "many_names",
            _python("for i in range(20000): open(f'/home/user/box/{i}' + 'n' * 200, 'w')"),
            names_in("/home/user/box", 5_000),
            quick=True,
        ),
        Sabotage(
            "no_programs",
            "chmod 000 /usr/bin/cat /usr/bin/stat /usr/bin/find /usr/bin/wmctrl",
            all_of(*(mode_is(f"/usr/bin/{name}", 0) for name in ("cat", "stat", "find", "wmctrl"))),
            sudo=True,
        ),
        Sabotage(
            "no_shell",
            "mv /bin/sh /bin/sh.away; mv /bin/dash /bin/dash.away",
            all_of(missing("/usr/bin/sh"), missing("/usr/bin/dash")),
            sudo=True,
            quick=True,
        ),
        Sabotage(
            "no_libraries",
            "mv /lib/x86_64-linux-gnu/libc.so.6 /tmp/",
            missing("/usr/lib/x86_64-linux-gnu/libc.so.6"),
            sudo=True,
            quick=True,
        ),
        Sabotage(
            "no_python",
            "rm -rf /usr/lib/python3.*",
            none_below("/usr/lib", "python3.*"),
            sudo=True,
        ),
        Sabotage(
            "programs_that_hang",
            "for n in cat stat find wmctrl xprop env; do printf '#!/bin/sh\\nsleep 900\\n' > /usr/local/bin/$n; chmod +x "
            "/usr/local/bin/$n; cp /usr/local/bin/$n /usr/bin/$n; done",
            all_of(*(holds(f"/usr/bin/{name}", "sleep 900") for name in ("cat", "stat", "find", "env"))),
            sudo=True,
        ),
        Sabotage(
            "programs_that_never_end_to_print",
            "printf '#!/bin/sh\\nexec yes\\n' > /usr/bin/wmctrl",
            holds("/usr/bin/wmctrl", "exec yes"),
            sudo=True,
        ),
        Sabotage(
            "no_temporary_files",
            "chmod 000 /tmp; mount -o remount,ro / 2>/dev/null; rm -rf /tmp/.X11-unix",
            all_of(mode_is("/tmp", 0), missing("/tmp/.X11-unix")),
            sudo=True,
        ),
        Sabotage(
            "no_devices",
            "rm -f /dev/fd /dev/std* /dev/ptmx",
            all_of(missing("/dev/fd"), missing("/dev/stdin"), missing("/dev/ptmx")),
            sudo=True,
        ),
        Sabotage(
            "captured_answers_are_gone",
            "rm -rf /var/lib/dart* /run/dart*",
            all_of(none_below("/var/lib", "dart*"), none_below("/run", "dart*")),
            sudo=True,
        ),
        Sabotage(
            "loader_complains_in_every_program",
            "echo /nowhere/lib.so > /etc/ld.so.preload",
            holds("/etc/ld.so.preload", "/nowhere/lib.so"),
            sudo=True,
        ),
    )


def _session() -> tuple[Sabotage, ...]:
    return (
        Sabotage("log_out", "openbox --exit", ended("openbox")),
        Sabotage(
            "restart_window_manager_in_a_loop",
            _detached("while :; do openbox --replace; done"),
            all_of(ended("openbox"), running("openbox --replace")),
        ),
        Sabotage(
            "many_windows",
            _detached("for i in $(seq 60); do zenity --info --text $i & done; wait"),
            running("zenity --info", 30),
        ),
        Sabotage(
            "endless_title",
            _detached("xprop -root -f _NET_CLIENT_LIST 32a -set _NET_CLIENT_LIST " + ",".join(["1"] * 400)),
            Probe("xprop -root _NET_CLIENT_LIST | tr -cd , | wc -c | grep -qE '[0-9]{3}'"),
            quick=True,
        ),
        Sabotage(
            "grab_the_server",
            _detached(_python(_GRAB)),
            Probe("timeout 2 xdotool getmouselocation; [ $? = 124 ]"),
        ),
        Sabotage(
            "close_all_windows", "wmctrl -l | cut -d' ' -f1 | while read w; do wmctrl -i -c $w; done", ended("zenity")
        ),
        Sabotage(
            "turn_accessibility_off",
            "gsettings set org.gnome.desktop.interface toolkit-accessibility false",
            Probe("gsettings get org.gnome.desktop.interface toolkit-accessibility | grep -q false"),
        ),
        Sabotage(
            "screen_is_black",
            _detached(
                _python(
                    "import time\nfrom Xlib import display\nd = display.Display(':0')\ns = d.screen()\n"
                    "s.root.create_window(0, 0, 4000, 4000, 0, s.root_depth, override_redirect=1, background_pixel=0).map()\n"
                    "d.sync()\ntime.sleep(900)"
                )
            ),
            Probe(
                _python(
                    "from Xlib import X, display\nroot = display.Display(':0').screen().root\n"
                    "assert not any(root.get_image(0, 0, 300, 300, X.ZPixmap, 0xFFFFFF).data)"
                )
            ),
        ),
        Sabotage(
            "no_time_zones", "rm -rf /usr/share/zoneinfo /etc/localtime", missing("/usr/share/zoneinfo"), sudo=True
        ),
        Sabotage(
            "flood_the_bus",
            _detached("while :; do dbus-send --session --dest=org.a11y.Bus / a.b.C; done"),
            running("dbus-send --session|a11y.Bus / a.b.C"),
        ),
        Sabotage(
            "flood_the_root_window",
            _detached("while :; do xprop -root -f DART 8s -set DART x; done"),
            Probe("xprop -root DART | grep -q x"),
        ),
    )


WATCHES, DESCRIPTORS, HOLDERS = 20_000, 4_000, 10
_MANY_WATCHES = f"""
import ctypes, os, resource, time
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
libc = ctypes.CDLL(None)
inotify, watches = libc.inotify_init(), 0
for folder, _, names in os.walk("/usr"):
    for name in names:
        watches += libc.inotify_add_watch(inotify, os.path.join(folder, name).encode(), 0xFFF) > 0
    if watches > {WATCHES}:
        break
for _ in range({DESCRIPTORS}):
    os.dup(inotify)
for _ in range({HOLDERS - 1}):
    if os.fork() == 0:
        break
time.sleep(900)
"""
_SLOW_TREE = """
import time
from gi.repository import Gio, GLib
ROOT, WORD = "/org/a11y/atspi/accessible/root", "org.a11y.atspi."
ANSWERS = {
    "GetState": ("(au)", ([0xFFFFFFFF] * 2,)),
    "GetInterfaces": ("(as)", ([WORD + "Accessible"],)),
    "GetRole": ("(u)", (75,)),
    "GetAttributes": ("(a{ss})", ({},)),
    "GetChildren": ("(a(so))", ([],)),
    "GetChildAtIndex": ("((so))", (("", "/org/a11y/atspi/null"),)),
}
methods = "".join(
    f'<method name="{name}"><arg type="{kind[1:-1]}" direction="out"/></method>' for name, (kind, _) in ANSWERS.items()
).replace('"GetChildAtIndex">', '"GetChildAtIndex"><arg type="i" direction="in"/>')
fields = '<property name="ChildCount" type="i" access="read"/><property name="Name" type="s" access="read"/>'
info = Gio.DBusNodeInfo.new_for_xml(f'<node><interface name="{WORD}Accessible">{methods}{fields}</interface></node>')

def answer(bus, sender, path, interface, method, arguments, call):
    time.sleep(0.4)
    call.return_value(GLib.Variant(*ANSWERS[method]))

def tell(bus, sender, path, interface, name):
    time.sleep(0.4)
    return GLib.Variant("i", 1000) if name == "ChildCount" else GLib.Variant("s", "slow")

session = Gio.bus_get_sync(Gio.BusType.SESSION)
address = session.call_sync("org.a11y.Bus", "/org/a11y/bus", "org.a11y.Bus", "GetAddress", None, None, 0, -1).unpack()[0]
flags = Gio.DBusConnectionFlags.AUTHENTICATION_CLIENT | Gio.DBusConnectionFlags.MESSAGE_BUS_CONNECTION
bus = Gio.DBusConnection.new_for_address_sync(address, flags, None, None)
bus.register_object(ROOT, info.interfaces[0], answer, tell, None)
plug = GLib.Variant("((so))", ((bus.get_unique_name(), ROOT),))
bus.call_sync(WORD + "Registry", ROOT, WORD + "Socket", "Embed", plug, None, 0, -1)
open("/home/user/embedded", "w").close()
GLib.MainLoop().run()
"""
_GRAB = "import time\nfrom Xlib import display\nd = display.Display(':0')\nd.grab_server()\nd.sync()\ntime.sleep(900)"
_MANY_KEYS = DecodedAction(events=(KeyEvent(type="key_down", key="a"), KeyEvent(type="key_up", key="a")) * 100)


def _delays() -> tuple[Sabotage, ...]:
    """Each is slow in a way that nobody outside waits long enough for."""
    return (
        Sabotage(
            "many_descriptors_of_many_watches",
            _detached(_python(_MANY_WATCHES)),
            all_of(running("inotify_add_watch", HOLDERS), descriptors_of("inotify_add_watch", DESCRIPTORS)),
            quick=True,
        ),
        Sabotage(
            "slow_accessibility_tree",
            _detached(_python(_SLOW_TREE)),
            all_of(running("GetChildAtIndex"), file_is("/home/user/embedded", lambda _: True)),
            observed=("a11y_xml",),
        ),
        Sabotage(
            "grab_the_server_and_press_many_keys",
            _detached(_python(_GRAB)),
            Probe("timeout 2 xdotool getmouselocation; [ $? = 124 ]"),
            then=_MANY_KEYS,
        ),
    )


SABOTAGES = (*_signals(), *_limits(), *_files(), *_session(), *_delays())
