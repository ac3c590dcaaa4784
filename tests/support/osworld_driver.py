"""Runs calls of OSWorld's own client, in the interpreter that has it, and tells what came of them as JSON.

Role: `python osworld_driver.py SOCKET` prints `ready` once it listens on that Unix socket. A connection sends one JSON object
with `host`, `port`, `chromium_port`, `cache_dir` and `calls`, a list of `[controller, method, arguments, keywords]`, and ends
its half. It gets one line per call: `{"value": ...}` (bytes as `{"bytes": base64}`) or `{"raised": ...}`.
Rule: the client is imported once, as its users import it, and nothing of it is changed. Each connection is served by a process
of its own, so that no call sees what an earlier one left. Non-goals: judging the answers.
"""

import base64
import json
import logging
import os
import signal
import socket
import sys
from typing import Any

from desktop_env.controllers.python import PythonController
from desktop_env.controllers.setup import SetupController


def as_json(value: Any) -> Any:
    """A value as JSON can carry it."""
    return {"bytes": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def answer(asked: dict[str, Any]) -> list[str]:
    """Perform the calls in order; a call that raises does not keep the next ones from running."""
    host, port = asked["host"], asked["port"]
    controllers = {
        "python": PythonController(host, port),
        "setup": SetupController(
            host, port, asked["chromium_port"], cache_dir=asked["cache_dir"], client_password="password"
        ),
    }
    lines = []
    for controller, method, arguments, keywords in asked["calls"]:
        try:
            line = {"value": as_json(getattr(controllers[controller], method)(*arguments, **keywords))}
        except Exception as error:  # noqa: BLE001 - the test judges what was raised
            line = {"raised": f"{type(error).__name__}: {error}"}
        lines.append(json.dumps(line))
    return lines


def main() -> None:
    """Serve until terminated."""
    logging.disable(logging.CRITICAL)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(sys.argv[1])
    listener.listen()
    print("ready", flush=True)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        connection, _ = listener.accept()
        with connection:
            if os.fork():
                continue
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            with connection.makefile("rw", encoding="utf-8") as stream:
                stream.writelines(line + "\n" for line in answer(json.load(stream)))
        # The exit handlers of what the client imports wait for threads that only the parent has.
        os._exit(0)


if __name__ == "__main__":
    main()
