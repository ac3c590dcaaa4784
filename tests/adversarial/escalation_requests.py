"""Of the escalation book: what the user says to the starter and to the helper.

Each function with the mark `@attempt` is one; see `escalation_attempts`.
"""

import json
import os
import socket
from contextlib import suppress
from pathlib import Path

from escalation_tools import DESKTOP, Attacker, attempt

# The request.


@attempt
def request_with_other_fields(attacker: Attacker) -> None:
    """Name tools, a state directory, an owner and a program in the request."""
    tools = attacker.home / "tools"
    attacker.evil(tools / "tools" / "criu-4" / "bin" / "criu")
    good = {
        "runtime_dir": str(attacker.home / "r"),
        "images_dir": str(attacker.images),
        "store_dir": "/dev/shm",
        "idle_timeout_s": 1.0,
    }
    for more in (
        {"tools_dir": str(tools)},
        {"state_dir": "/etc"},
        {"owner_uid": 0},
        {"runc": str(tools)},
        {"store_mib": 1},
    ):
        attacker.farm(request=json.dumps({**good, **more}).encode() + b"\n")


@attempt
def request_that_is_no_request(attacker: Attacker) -> None:
    """Deep, large and broken JSON, and a standard input that is no socket."""
    for line in (
        b"[" * 500_000 + b"\n",
        b'{"a":' * 100_000 + b"\n",
        b"\xff\xfe\n",
        b"1" * 2_000_000 + b"\n",
        b'{"runtime_dir": 1}\n',
    ):
        attacker.farm(request=line)
    for stdin in ("/etc/passwd", "/dev/zero", "/dev/null", "/proc/self/mem"):
        with open(stdin, "rb") as file:
            print(attacker.sudo(*attacker.starter, stdin=file))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        print(attacker.sudo(*attacker.starter, stdin=theirs))


@attempt
def request_for_directories_of_roots(attacker: Attacker) -> None:
    """Name directories of root's for everything."""
    for place in (
        attacker.canary,
        Path("/etc"),
        Path("/root"),
        attacker.victim.parent,
        Path("/etc/../etc"),
        Path("/proc/1/root/etc"),
    ):
        message = {"runtime_dir": str(place), "images_dir": str(place), "store_dir": str(place), "idle_timeout_s": 0.1}
        farm = attacker.farm(request=json.dumps(message).encode() + b"\n")
        if farm.reply.get("socket"):
            farm.desktop()


@attempt
def request_from_somebody_elses_socket(attacker: Attacker) -> None:
    """Hand in a connection to a socket of root's, so that root talks to root."""
    for path in (
        "/run/dbus/system_bus_socket",
        "/run/docker.sock",
        "/run/systemd/private",
        "/run/systemd/journal/stdout",
    ):
        with suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
            connection.connect(path)
            print(attacker.sudo(*attacker.starter, stdin=connection))


# Verbs.


@attempt
def verbs_with_paths(attacker: Attacker) -> None:
    """Paths, links and options in the place of ids and image names."""
    farm = attacker.farm()
    farm.desktop()
    for wrong in (
        "../../../etc",
        "/etc",
        "..",
        ".",
        "--help",
        "d1/../../x",
        "d1\0x",
        "a" * 500,
        "",
        None,
        7,
        ["d1"],
        {"a": 1},
    ):
        farm.ask("create", **{**DESKTOP, "desktop_id": "d9", "image": wrong})
        farm.ask("create", **{**DESKTOP, "desktop_id": wrong})
        farm.ask("checkpoint", desktop_id="d1", snapshot_id=wrong)
        farm.ask("restore", desktop_id=wrong, snapshot_id=wrong)
        farm.ask("quarantine", snapshot_id=wrong)
        farm.ask("dial", desktop_id="d1", port=wrong)


@attempt
def verbs_that_are_none(attacker: Attacker) -> None:
    """Names of the helper's own methods and fields as verbs, with fields that no verb has."""
    farm = attacker.farm()
    for name in (
        "close",
        "_kill",
        "_save",
        "__init__",
        "__class__",
        "storage",
        "layout",
        "runc",
        "_perform",
        "eval",
        "exec",
    ):
        farm.ask(name)
        farm.ask(name, desktop_id="d1")
    for field in ("tools_dir", "rootfs", "env", "argv", "hooks", "capabilities", "mounts"):
        farm.ask("create", desktop_id="d1", **{**DESKTOP, field: "/bin/sh"})
    for line in (b"[" * 200_000 + b"\n", b'{"verb": "ping", "verb": "stop"}\n', b"\0\n"):
        with suppress(OSError, ValueError):
            farm.send(line)


@attempt
def verbs_with_wild_numbers(attacker: Attacker) -> None:
    """Limits and ports beyond any sense, which end up in runc's configuration."""
    farm = attacker.farm()
    for field in ("memory_mib", "pids", "cpus", "disk_mib", "font_size", "proxy_port"):
        for value in (-1, 0, 1 << 70, 1e308, "1; id", True, [1], "../x"):
            farm.ask("create", **{**DESKTOP, "desktop_id": "d1", field: value})
            farm.ask("destroy", desktop_id="d1")


@attempt
def helper_of_another_user(attacker: Attacker) -> None:
    """Speak to every helper and to every socket of root's in the directory of the helpers."""
    for path in Path("/run/dart-hostd").glob("*/hostd.sock"):
        if path.stat().st_uid != os.getuid():
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(path))
                print("reached", path)
