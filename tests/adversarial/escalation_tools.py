"""What an attempt of the escalation book works with: the farm server's own means, and a record of the attempts.

It runs as the attacker, an ordinary user with the uid of the farm server, on the host's own Python, with the standard library only.
The attacker may do whatever that user may: start the root helper by sudo's one line, send it any request, make desktops and be root in
them.
"""

from __future__ import annotations

import array
import json
import os
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ATTEMPTS: dict[str, Callable[[Attacker], None]] = {}
DESKTOP = {"image": "basic", "resolution": [640, 400], "font_size": None, "memory_mib": 768, "pids": 256, "cpus": 2.0}
DESKTOP |= {"disk_mib": 128, "proxy_port": None}
SUID_COPY = "cp /bin/bash /tmp/rootsh && chmod 4755 /tmp/rootsh && ls -l /tmp/rootsh"
"""Of root inside a desktop: a shell with root's setuid bit."""


def attempt(function: Callable[[Attacker], None]) -> Callable[[Attacker], None]:
    """Record an attempt under its function's name; its docstring says what it tries."""
    ATTEMPTS[function.__name__] = function
    return function


@dataclass
class Attacker:
    """Where the attacker is, and what he knows: the command that sudo allows him, and what only root could do."""

    name: str
    starter: list[str]
    home: Path
    images: Path
    canary: Path
    """A directory of root's that nobody else may enter: a file in it was made by root."""
    secret: Path
    """A file that only root may read."""
    victim: Path
    """A file of root's that everybody may read."""
    helper_script: Path
    planted: Path | None = None
    """A hole that the test itself has made, to prove that it is seen."""
    terminal: tuple[int, int] | None = None
    """Both ends of a terminal: some hosts give their users none."""
    farms: list[Farm] = field(default_factory=list)

    @property
    def proof(self) -> Path:
        """The file that an attempt with root's rights would make."""
        return self.canary / self.name

    def sudo(self, *arguments: str, **more: Any) -> str:
        """Run sudo with a command; what it said."""
        done = subprocess.run(
            ["sudo", "-n", *arguments],
            stdin=more.pop("stdin", subprocess.DEVNULL),
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
            start_new_session=True,
            **more,
        )
        return done.stdout + done.stderr

    def evil(self, path: Path) -> Path:
        """A program that leaves the proof when root runs it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\nid -u > {self.proof}\ncat {self.secret}\nexec sleep 1\n", encoding="ascii")
        path.chmod(0o755)
        return path

    def evil_python(self, path: Path) -> Path:
        """The same as a Python module."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"import os\nopen({str(self.proof)!r}, 'w').write(str(os.geteuid()))\n", encoding="ascii")
        return path

    def farm(self, **more: Any) -> Farm:
        """Start the root helper as a farm does."""
        made = Farm(self, **more)
        self.farms.append(made)
        return made


class Farm:
    """One root helper of the attacker's, and its verbs."""

    def __init__(
        self,
        attacker: Attacker,
        *,
        runtime: Path | None = None,
        images: Path | None = None,
        store: Path | None = None,
        request: bytes | None = None,
        **popen: Any,
    ) -> None:
        """Start it; `reply` is what the starter answered, {} when it said nothing."""
        self.runtime = runtime or attacker.home / f"run-{len(attacker.farms)}"
        self.runtime.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.store = store or Path("/dev/shm") / f"escalation-{os.getuid()}"
        message = {
            "runtime_dir": str(self.runtime),
            "images_dir": str(images or attacker.images),
            "store_dir": str(self.store),
            "idle_timeout_s": 1.0,
        }
        self.channel, theirs = socket.socketpair()
        self.log = attacker.home / "helper.log"
        with theirs, self.log.open("ab") as log:
            defaults: dict[str, Any] = {"stdin": theirs, "stdout": log, "stderr": log, "start_new_session": True}
            self.process = subprocess.Popen(["sudo", "-n", *attacker.starter], **{**defaults, **popen})
        self.channel.settimeout(20)
        self.reply: dict[str, Any] = {}
        with suppress(OSError, ValueError):
            self.channel.sendall(request or json.dumps(message).encode() + b"\n")
            self.reply = json.loads(self.channel.makefile("rb").readline() or b"{}")
        self.socket = Path(self.reply.get("socket", "/nonexistent"))
        print("starter:", self.reply)

    def ask(self, verb: str, **arguments: Any) -> tuple[dict[str, Any], socket.socket | None]:
        """One request; the answer and the socket beside it."""
        return self.send(json.dumps({"verb": verb, **arguments}).encode() + b"\n")

    def send(self, line: bytes) -> tuple[dict[str, Any], socket.socket | None]:
        """One line as it is."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(30)
            connection.connect(str(self.socket))
            connection.sendall(line)
            data, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, 1)
        passed = None
        if descriptors and stat.S_ISSOCK(os.fstat(descriptors[0]).st_mode):
            passed = socket.socket(fileno=descriptors[0])
        elif descriptors:
            print("passed:", os.pread(descriptors[0], 1 << 16, 0))
            os.close(descriptors[0])
        reply: dict[str, Any] = json.loads(data or b"{}")
        print(verb_of(line), reply)
        return reply, passed

    def helper_pid(self) -> int:
        """The root helper's process."""
        return int(self.ask("ping")[0]["ok"]["pid"])

    def desktop(self, name: str = "d1") -> dict[str, Any]:
        """Boot a desktop and wait for its agent; the helper's answer."""
        answer, _ = self.ask("create", desktop_id=name, **DESKTOP)
        if "ok" in answer:
            for _ in range(200):
                with suppress(OSError, ValueError, IndexError):
                    if self.call("GET", "/v1/health", None, name).get("ready"):
                        break
                time.sleep(0.05)
        return answer

    def call(self, method: str, path: str, body: Any, name: str = "d1") -> dict[str, Any]:
        """A request to the guest agent."""
        _, connection = self.ask("dial", desktop_id=name, port="control")
        if connection is None:
            return {}
        payload = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: guest\r\nConnection: close\r\nContent-Type: application/json\r\n"
        with connection:
            connection.settimeout(30)
            connection.sendall(f"{head}Content-Length: {len(payload)}\r\n\r\n".encode() + payload)
            received = b"".join(iter(lambda: connection.recv(1 << 16), b""))
        answer: dict[str, Any] = json.loads(received.partition(b"\r\n\r\n")[2])
        return answer

    def as_root_inside(self, *argv: str, detach: bool = False) -> dict[str, Any]:
        """Run a program as root of a desktop."""
        body = {"argv": list(argv), "user": "root", "timeout_s": 20, "detach": detach}
        answer = self.call("POST", "/v1/exec", body)
        print("inside:", answer)
        return answer

    def processes(self) -> list[int]:
        """Processes of this farm's desktops as the host sees them."""
        found = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError, ValueError):
                if entry.name.isdigit() and f"/{self.socket.parent.name}/" in (entry / "cgroup").read_text():
                    found.append(int(entry.name))
        return sorted(found)

    def end(self) -> None:
        """Stop the helper and wait for its end."""
        with suppress(OSError, ValueError):
            self.ask("stop")
        self.channel.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(40)


def verb_of(line: bytes) -> str:
    """The verb of a request, for the record."""
    return line[:60].decode("utf-8", "replace").strip()


def send_descriptor(connection: socket.socket, descriptor: int) -> None:
    """Pass an open file to who reads at the other end."""
    connection.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))])


@contextmanager
def mount_namespace(attacker: Attacker, script: str) -> Iterator[Path]:
    """A process of his own user and mount namespaces, in which a script has run; its root directory as others reach it."""
    pid_file = attacker.home / "ns.pid"
    line = f"{script}\necho $$ > {pid_file}; exec sleep 60"
    process = subprocess.Popen(["unshare", "-Urm", "sh", "-xc", line], stdin=subprocess.DEVNULL)
    try:
        for _ in range(100):
            if pid_file.exists() and pid_file.read_text().strip():
                break
            time.sleep(0.05)
        yield Path(f"/proc/{pid_file.read_text().strip()}/root")
    finally:
        process.kill()
        process.wait()


def main(name: str, context: str) -> None:
    """Run one attempt. What it raises is the host's refusal, which is what is wanted; the test looks for what root left."""
    given = json.loads(context)
    starter, (ours, theirs) = given.pop("starter"), given.pop("terminal")
    paths = {key: Path(value) for key, value in given.items() if value}
    attacker = Attacker(name, starter, **paths, terminal=(ours, theirs))
    try:
        ATTEMPTS[name](attacker)
    except Exception as error:  # noqa: BLE001 - an attempt may fail in any way
        print(f"{type(error).__name__}: {error}")
    finally:
        for farm in attacker.farms:
            farm.end()
    sys.stdout.flush()
