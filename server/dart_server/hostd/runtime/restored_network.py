"""The network of a desktop that is being restored, made ready before its processes are there.

CRIU gives processes with ids of their own a fresh network namespace, whose loopback is down, and sockets that listen there would not come
back. runc stops at its `prestart` hook just before: the hook is a shell that tells this helper the process id and waits for its answer, so
that no interpreter has to start for each restore.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dart_server.hostd.linux import netns

_UP = b"up\n"
_END = b"\0\n"
_SCRIPT = 'read -r state; printf "%s\\n" "$state" > "$1"; read -r answer < "$2"; test "$answer" = up'
"""Only what the shell does itself: a program would cost as much as the shell. runc writes the state in one line."""


def hooks(place: Path) -> dict[str, Any]:
    """The hooks of a container's configuration, for `ready_when_asked` with the same place."""
    argv = ["sh", "-c", _SCRIPT, "sh", str(place / "hook.ask"), str(place / "hook.answer")]
    return {"prestart": [{"path": "/bin/sh", "args": argv, "env": ["PATH=/usr/bin:/bin"], "timeout": 10}]}


@contextmanager
def ready_when_asked(place: Path) -> Iterator[None]:
    """While the block restores a container, its hook gets the loopback up."""
    for name in ("hook.ask", "hook.answer"):
        os.mkfifo(place / name, 0o600)
    asked = os.open(place / "hook.ask", os.O_RDWR | os.O_CLOEXEC)
    answered = os.open(place / "hook.answer", os.O_RDWR | os.O_CLOEXEC)
    server = threading.Thread(target=_serve, args=(asked, answered), name="network", daemon=True)
    server.start()
    try:
        yield
    finally:
        os.write(asked, _END)
        server.join()
        for descriptor in (asked, answered):
            os.close(descriptor)
        for name in ("hook.ask", "hook.answer"):
            with suppress(OSError):
                (place / name).unlink()


def _serve(asked: int, answered: int) -> None:
    """Answer every state that a hook sends, a line each, until the end is told."""
    told = b""
    while _END not in told:
        told += os.read(asked, 65536)
        *states, told = told.split(b"\n") if _END not in told else (told,)
        for state in filter(None, states):
            os.write(answered, _answer(state))


def _answer(state: bytes) -> bytes:
    try:
        netns.raise_loopback_of(int(json.loads(state)["pid"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{error}\n".encode()
    return _UP
