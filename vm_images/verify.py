"""Proves an image on a live desktop: `python vm_images/verify.py basic` (needs a running farm: `dart-farm serve --embedded`).

Role: lease a small desktop of the image, start each application, and check that a person could see and use it.
Rule: speaks the farm's REST only (`--farm`, else DART_FARM_URL: `http://` or `unix://`; `--key`, else DART_FARM_KEY, else the farm.key
beside the socket); standard library; releases what it leased.
Exit code 0: all checks passed, 1: some failed, 2: there is no farm to ask.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import secrets
import socket
import sys
import time
import urllib.parse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WIDTH, HEIGHT, FONT_SIZE = 640, 400, 14
START_LIMIT_S = 3.0
CALL_LIMIT_S = 120.0
TYPED = "verify ü 好"


@dataclass(frozen=True, slots=True)
class Application:
    """A program, and (role, name) of an element that shows that it is up and accessible."""

    argv: tuple[str, ...]
    role: str
    name: str


APPLICATIONS = (
    Application(("zenity", "--question", "--text=Sure?"), "push button", "Yes"),
    Application(("zenity", "--entry", "--text=Your name:"), "push button", "OK"),
    Application(("mousepad",), "menu", "File"),
    Application(("thunar", "/home/user"), "push button", "Home"),
    Application(("galculator",), "toggle button", "7"),
    Application(("lxterminal",), "terminal", "Terminal"),
)


class FarmFailure(Exception):
    """The farm cannot be asked, or refused; one sentence."""


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("farm", timeout=CALL_LIMIT_S)
        self.path = path

    def connect(self) -> None:
        """Dial the socket."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(CALL_LIMIT_S)
        self.sock.connect(self.path)


def read_key(path: Path) -> str:
    """The key that an embedded farm leaves beside its socket, or none."""
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""


class Farm:
    """The few calls that a check needs."""

    def __init__(self, url: str, key: str) -> None:
        parts = urllib.parse.urlsplit(url)
        self.connection: http.client.HTTPConnection
        if parts.scheme == "unix" and parts.path:
            self.connection = UnixConnection(parts.path)
            key = key or read_key(Path(parts.path).with_name("farm.key"))
        elif parts.scheme == "http" and parts.hostname:
            self.connection = http.client.HTTPConnection(parts.hostname, parts.port or 80, timeout=CALL_LIMIT_S)
        else:
            raise FarmFailure(f"--farm must be like unix:///run/farm.sock or http://127.0.0.1:8700, not {url!r}")
        self.headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.path = ""

    def call(self, method: str, path: str, body: object = None) -> Any:
        """JSON in, JSON (or bytes) out; raises FarmFailure."""
        headers = dict(self.headers)
        content = None
        if body is not None:
            content = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        try:
            self.connection.request(method, path, content, headers)
            response = self.connection.getresponse()
            answer = response.read()
        except OSError as error:
            raise FarmFailure(f"no farm answers ({error}): start one with 'dart-farm serve'") from error
        if response.status >= 400:
            raise FarmFailure(f"{method} {path}: {response.status} {answer.decode(errors='replace')[:300]}")
        if response.headers.get_content_type() == "application/json":
            return json.loads(answer)
        return answer

    def lease(self, image: str) -> None:
        """Claim a desktop; all later guest calls go to it."""
        shape = {"image": image, "resolution": [WIDTH, HEIGHT], "font_size": FONT_SIZE}
        request = {"client_request_id": secrets.token_hex(16), "shape": shape, "ttl_s": 300, "wait_s": 60}
        lease = self.call("POST", "/v1/leases", request)
        self.path = f"/v1/leases/{lease['lease_id']}"
        self.headers |= {"X-Dart-Lease-Token": lease["token"], "X-Dart-Fence": str(lease["fence"])}

    def execute(self, *argv: str, detach: bool = False) -> dict[str, Any]:
        """Run a program in the desktop."""
        reply: dict[str, Any] = self.call("POST", f"{self.path}/execute", {"argv": list(argv), "detach": detach})
        return reply

    def elements(self) -> list[dict[str, Any]]:
        """What is showing."""
        tree: list[dict[str, Any]] = self.call("GET", f"{self.path}/a11y")
        return tree

    def frame(self, *events: dict[str, Any]) -> bytes:
        """Perform events, settle, and return the raw RGB pixels."""
        settle = {"quiet_ms": 100, "cap_ms": 3000}
        body = {"seq": 1, "events": list(events), "settle": settle, "frame": {"encoding": "raw"}}
        answer: bytes = self.call("POST", f"{self.path}/step", body)
        return answer[4 + int.from_bytes(answer[:4], "big") :]

    def release(self) -> None:
        """Give the desktop back."""
        if self.path:
            self.call("DELETE", self.path)


def check_application(farm: Farm, application: Application, bare: bytes, start_limit_s: float) -> str:
    """Empty when it is well, else what is wrong."""
    start_s = time.monotonic()
    farm.execute(*application.argv, detach=True)
    found: dict[str, Any] | None = None
    while found is None and time.monotonic() - start_s < 3 * start_limit_s:
        matches = [e for e in farm.elements() if (e["role"], e["name"]) == (application.role, application.name)]
        found = matches[0] if matches else None
    took_s = time.monotonic() - start_s
    changed = farm.frame() != bare
    farm.execute("pkill", "-x", application.argv[0])
    if found is None:
        return f"no {application.role} {application.name!r} after {took_s:.1f} s"
    if took_s > start_limit_s:
        return f"took {took_s:.1f} s, more than {start_limit_s:g}"
    if found["x"] < 0 or found["y"] < 0 or found["x"] + found["w"] > WIDTH or found["y"] + found["h"] > HEIGHT:
        return f"{application.name!r} lies outside the {WIDTH}x{HEIGHT} screen"
    return "" if changed else "nothing changed on the screen"


def check_typing(farm: Farm) -> str:
    """Type into a dialog and read what it prints."""
    script = "zenity --entry --text=Type > /tmp/dart-verify 2>/dev/null"
    farm.execute("sh", "-c", script, detach=True)
    deadline_s = time.monotonic() + 3 * START_LIMIT_S
    while not any(element["role"] == "text" for element in farm.elements()):
        if time.monotonic() > deadline_s:
            return "the entry did not appear"
    farm.frame({"type": "text", "text": TYPED + "\n"})
    read = farm.execute("cat", "/tmp/dart-verify")["stdout"].strip()
    return "" if read == TYPED else f"typed {TYPED!r}, the dialog got {read!r}"


def verify(farm: Farm, image: str, start_limit_s: float) -> int:
    """Run all checks; the number that failed."""
    failed = 0
    farm.lease(image)
    try:
        bare = farm.frame()
        checks = [(" ".join(one.argv), check_application(farm, one, bare, start_limit_s)) for one in APPLICATIONS]
        checks.append(("typing", check_typing(farm)))
        for name, problem in checks:
            print(f"{'FAILED' if problem else 'ok    '} {name}{': ' + problem if problem else ''}")
            failed += bool(problem)
    finally:
        farm.release()
    return failed


def main() -> int:
    """Parse, check, report."""
    parser = argparse.ArgumentParser(prog="verify.py", description="Proves an image on a live desktop.")
    parser.add_argument("image")
    parser.add_argument("--farm", default=os.environ.get("DART_FARM_URL", ""), help="address of a running farm")
    parser.add_argument("--key", default=os.environ.get("DART_FARM_KEY", ""), help="a key of that farm")
    parser.add_argument(
        "--start-limit-s", type=float, default=START_LIMIT_S, help="seconds an application may take to show"
    )
    options = parser.parse_args()
    try:
        if not options.farm:
            raise FarmFailure(
                "no farm to ask: start one with 'dart-farm serve --embedded' and give its socket with --farm unix:///PATH"
            )
        return 1 if verify(Farm(options.farm, options.key), options.image, options.start_limit_s) else 0
    except FarmFailure as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
