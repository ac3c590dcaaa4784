"""What an agent that goes astray does to a desktop, chosen by a seed. Rule: whatever becomes of the desktop is the next reset's to cure."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

from dart_envs.errors import DartEnvError
from dart_envs.farm.lease import AsyncLease
from dart_server.wire import ButtonEvent, InputEvent, KeyEvent, MoveEvent, TextEvent

Damage = Callable[[AsyncLease, random.Random], Awaitable[object]]

_PROGRAMS = (
    "mousepad",
    "openbox",
    "Xvfb",
    "dbus-daemon",
    "at-spi-bus-launcher",
    "at-spi2-registryd",
    "python3",
    "xfce4-panel",
)
_PLACES = (
    "/home/user", "/home/user/.config", "/usr/share/applications", "/usr/lib/python3", "/usr/bin", "/etc", "/var", "/tmp", "/run/user",
    "/usr/share/icons", "/lib/x86_64-linux-gnu", "/root",
)  # fmt: skip
_KEYS = (
    ("alt", "F4"),
    ("ctrl", "s"),
    ("ctrl", "a"),
    ("ctrl", "q"),
    ("delete",),
    ("enter",),
    ("escape",),
    ("alt", "tab"),
)


async def typing(lease: AsyncLease, chosen: random.Random) -> None:
    """Clicks, keys and text wherever they land."""
    for _ in range(chosen.randint(2, 6)):
        width, height = lease.resolution
        keys, button = chosen.choice(_KEYS), chosen.choice((1, 3))
        events: list[InputEvent] = [
            MoveEvent(x=chosen.randrange(width), y=chosen.randrange(height)),
            ButtonEvent(type="down", button=button),
            ButtonEvent(type="up", button=button),
            TextEvent(text="".join(chosen.choice("aäжλ漢 !<>|~0") for _ in range(chosen.randint(1, 40)))),
            *(KeyEvent(type="key_down", key=key) for key in keys),
            *(KeyEvent(type="key_up", key=key) for key in reversed(keys)),
        ]
        await lease.step(events)


async def deleting(lease: AsyncLease, chosen: random.Random) -> None:
    """A directory is gone, or its content overwritten."""
    place = chosen.choice(_PLACES)
    script = chosen.choice(
        (
            'rm -rf "$0"/* "$0"/.[!.]*',
            'find "$0" -type f -name "*[aeiou]*" -exec sh -c \'echo x > "$1"\' - {} ";"',
            'chmod -R 000 "$0"; chown -R nobody "$0"',
            'mv "$0" "$0.moved"',
        )
    )
    await lease.exec(["sh", "-c", f"timeout 5 sh -c '{_quoted(script)}' {place}"], user="root", timeout_s=8)


def _quoted(script: str) -> str:
    return script.replace("'", "'\\''")


async def killing(lease: AsyncLease, chosen: random.Random) -> None:
    """Programs of the session, or all of it."""
    argv = chosen.choice((["pkill", "-9", "-f", chosen.choice(_PROGRAMS)], ["kill", "-9", "-1"], ["openbox", "--exit"]))
    await lease.exec(argv, user=chosen.choice(("user", "root")), timeout_s=5)


async def filling_memory(lease: AsyncLease, _chosen: random.Random) -> None:
    """To the limit."""
    code = "b = []\nwhile True: b.append(b'x' * (16 << 20))"
    await lease.exec(["python3", "-c", code], timeout_s=15)


async def filling_disk(lease: AsyncLease, chosen: random.Random) -> None:
    """To the limit."""
    target = chosen.choice(("/home/user/big", "/tmp/big", "/var/tmp/big"))
    await lease.exec(["dd", "if=/dev/zero", f"of={target}", "bs=1M"], timeout_s=15)


async def multiplying(lease: AsyncLease, chosen: random.Random) -> None:
    """Processes that nobody waits for, with sockets and files open."""
    code = (
        "import os, socket, time\n"
        f"for n in range({chosen.randint(20, 200)}):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        kept = [socket.create_server(('127.0.0.1', 0)), open(f'/tmp/kept{n}', 'w'), socket.socketpair()]\n"
        "        time.sleep(600)\n"
    )
    await lease.exec(["python3", "-c", code], detach=True)


async def rearranging(lease: AsyncLease, chosen: random.Random) -> None:
    """Settings, pointer, keyboard map and background of the session."""
    script = chosen.choice(
        (
            "xset r off; xset m 9 9; xsetroot -solid red -cursor_name gumby",
            "xdotool mousedown 1 mousemove 300 200; xdotool keydown shift",
            "setxkbmap de; xmodmap -e 'pointer = 3 2 1'",
            "gsettings set org.gnome.desktop.interface font-name 'DejaVu Sans 30'; mousepad /etc/passwd &",
            "for n in 1 2 3 4 5; do thunar /usr & done; lxterminal & zenity --info --text=hello &",
        )
    )
    await lease.exec(["sh", "-c", script], timeout_s=5)


KINDS: dict[str, Damage] = {
    "typing": typing,
    "deleting": deleting,
    "killing": killing,
    "memory": filling_memory,
    "disk": filling_disk,
    "processes": multiplying,
    "settings": rearranging,
}


async def damage(lease: AsyncLease, chosen: random.Random) -> list[str]:
    """Do one to three kinds of damage; which."""
    kinds = chosen.sample(sorted(KINDS), chosen.randint(1, 3))
    for kind in kinds:
        try:
            await KINDS[kind](lease, chosen)
        except DartEnvError:
            continue
    return kinds
