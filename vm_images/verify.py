"""Proves an image on a live desktop: `python vm_images/verify.py basic` (needs a running farm: `dart-farm serve --embedded`).

Role: lease a desktop of the image, start each application that it has of those known here, and those that its recipe names (`--manifest`).
Check that a person could see and use each, and, where the farm takes live snapshots, that one with it comes back with the same picture.
Rule: speaks the farm's REST only (`--farm`, else DART_FARM_URL: `http://` or `unix://`; `--key`, else DART_API_KEY, else the farm.key
in its state directory); standard library; releases what it leased.
Exit code 0: all checks passed, 1: some failed, 2: there is no farm to ask.
"""

from __future__ import annotations

import argparse
import functools
import http.client
import json
import os
import secrets
import socket
import sys
import time
import urllib.parse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SMALL, FULL = ((640, 400), 14), ((1920, 1080), 10)
"""Resolution in pixels and font size in points: programs of the image `basic` must fit the small one."""

START_LIMIT_S, LOOK_FACTOR = 3.0, 3
"""A program is looked for LOOK_FACTOR times as long as it may take, so that one that is slow is told from one that shows nothing."""
CALL_LIMIT_S = 120.0
LEASE_S = 600
STILL_MS, STILL_TRIES = 800, 8
REST_S = 8.0
"""Sessions keep what their programs set for some seconds before they write it; every copy would write it at a moment of its own."""
FILES = ("find", "/home", "/etc", "-type", "d", "-printf", "%p\\n", "-o", "-printf", "%p %y %T@ %s %l\\n")
TYPED = "verify ü 好"
SHOWN_ELEMENTS, NAME_CHARS = 40, 40
"""How much of a desktop's elements a failure tells."""


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
    Application(("libreoffice", "--calc"), "menu", "Sheet"),
    Application(("libreoffice", "--writer"), "menu", "Table"),
    Application(("libreoffice", "--impress"), "menu", "Slide Show"),
    Application(("google-chrome",), "push button", "Reload"),
    Application(("gimp",), "menu", "Filters"),
    Application(("vlc",), "menu item", "Playback"),
    Application(("thunderbird",), "push button", "New Message"),
    Application(("gedit",), "push button", "Open"),
    Application(("gnome-terminal",), "terminal", "Terminal"),
    Application(("evince",), "push button", "Open…"),
    Application(("eog",), "toggle button", "Properties"),
)


def recipe_applications(manifest: Path) -> list[Application]:
    """The programs that the recipe of an image names; raises FarmFailure where its manifest cannot be read."""
    try:
        told = json.loads(manifest.read_text(encoding="utf-8")).get("applications", [])
        return [Application(tuple(one["command"]), one["role"], one["name"]) for one in told]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FarmFailure(f"{manifest} is not a readable manifest: {error}") from error


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


def read_key(socket: Path) -> str:
    """The key of the farm of a socket, from its state directory, or none."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    named = [Path(os.environ["DART_STATE_DIR"])] if "DART_STATE_DIR" in os.environ else []
    for place in (*named, socket.parent, Path(state) / "dart"):
        try:
            return (place / "farm.key").read_text(encoding="ascii").strip()
        except OSError:
            continue
    return ""


class Farm:
    """The few calls that a check needs."""

    def __init__(self, url: str, key: str) -> None:
        parts = urllib.parse.urlsplit(url)
        self.connection: http.client.HTTPConnection
        if parts.scheme == "unix" and parts.path:
            self.connection = UnixConnection(parts.path)
            key = key or read_key(Path(parts.path))
        elif parts.scheme == "http" and parts.hostname:
            self.connection = http.client.HTTPConnection(parts.hostname, parts.port or 80, timeout=CALL_LIMIT_S)
        else:
            raise FarmFailure(f"--farm must be like unix:///run/farm.sock or http://127.0.0.1:8700, not {url!r}")
        self.headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.path = ""
        self.size = (0, 0)

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

    def lease(self, image: str, size: tuple[int, int], font_size: int) -> None:
        """Claim a desktop; all later guest calls go to it."""
        self.size = size
        shape = {"image": image, "resolution": list(size), "font_size": font_size}
        request = {"client_request_id": secrets.token_hex(16), "shape": shape, "ttl_s": LEASE_S, "wait_s": 60}
        lease = self.call("POST", "/v1/leases", request)
        self.path = f"/v1/leases/{lease['lease_id']}"
        self.headers |= {"X-Dart-Lease-Token": lease["token"], "X-Dart-Fencing-Token": str(lease["fencing_token"])}

    def execute(self, *argv: str, detach: bool = False) -> dict[str, Any]:
        """Run a program in the desktop."""
        reply: dict[str, Any] = self.call("POST", f"{self.path}/execute", {"argv": list(argv), "detach": detach})
        return reply

    def elements(self) -> list[dict[str, Any]]:
        """What is showing."""
        tree: list[dict[str, Any]] = self.call("GET", f"{self.path}/a11y")
        return tree

    def frame(self, *events: dict[str, Any], quiet_ms: int = 100) -> bytes:
        """Perform events, settle, and return the raw RGB pixels."""
        settle = {"quiet_ms": quiet_ms, "cap_ms": 3000}
        body = {"seq": 1, "events": list(events), "settle": settle, "frame": {"encoding": "raw"}}
        answer: bytes = self.call("POST", f"{self.path}/step", body)
        return answer[4 + int.from_bytes(answer[:4], "big") :]

    def still(self) -> bytes:
        """The pixels once two pictures in a row are the same, or the last of `STILL_TRIES`."""
        last = self.frame(quiet_ms=STILL_MS)
        for _ in range(STILL_TRIES):
            now = self.frame(quiet_ms=STILL_MS)
            if now == last:
                break
            last = now
        return last

    def beat(self) -> None:
        """Keep the lease."""
        self.call("POST", f"{self.path}/heartbeat", {})

    def takes_snapshots(self) -> bool:
        """Whether the farm saves desktops with their memory."""
        told: bool = self.call("GET", "/v1/farm")["capabilities"]["memory_snapshot"]
        return told

    def fork(self) -> None:
        """Take a live snapshot and go on in a fresh copy of it."""
        snapshot = self.call("POST", f"{self.path}/snapshot", {})["snapshot_id"]
        self.reset(snapshot)
        self.call("DELETE", f"/v1/snapshots/{snapshot}")

    def reset(self, snapshot: str | None = None) -> None:
        """Replace the desktop by a copy of a snapshot, or of the booted base."""
        reply = self.call("POST", f"{self.path}/reset", {"snapshot_id": snapshot})
        self.headers["X-Dart-Fencing-Token"] = str(reply["fencing_token"])

    def release(self) -> None:
        """Give the desktop back."""
        if self.path:
            # A request that was interrupted leaves the connection unusable; the next one dials anew.
            self.connection.close()
            self.call("DELETE", self.path)


def describe(elements: Sequence[dict[str, Any]], role: str) -> str:
    """What a desktop shows in place of an element of a role: roles and names, each once, those of the role first."""
    named = [element for element in elements if element["name"].strip()]
    if not named:
        return "the desktop shows no element with a name: the program has no window, or no accessibility"
    named.sort(key=lambda element: element["role"] != role)
    told = list(dict.fromkeys(f"{element['role']} {element['name'][:NAME_CHARS]!r}" for element in named))
    rest = len(told) - SHOWN_ELEMENTS
    return f"the desktop shows {', '.join(told[:SHOWN_ELEMENTS])}" + (f", and {rest} more" if rest > 0 else "")


def check_application(farm: Farm, application: Application, bare: bytes, start_limit_s: float) -> str:
    """Empty when it is well, else what is wrong; leaves a fresh desktop."""
    farm.beat()
    if farm.execute("which", application.argv[0])["returncode"]:
        return "it is not in the image"
    start_s = time.monotonic()
    farm.execute(*application.argv, detach=True)
    found: dict[str, Any] | None = None
    elements: list[dict[str, Any]] = []
    while found is None and time.monotonic() - start_s < LOOK_FACTOR * start_limit_s:
        elements = farm.elements()
        matches = [e for e in elements if (e["role"], e["name"]) == (application.role, application.name)]
        found = matches[0] if matches else None
    took_s = time.monotonic() - start_s
    before = farm.still()
    changed = before != bare
    same = True
    if farm.takes_snapshots():
        farm.fork()
        same = farm.still() == before
    farm.reset()
    if found is None:
        looked = f"within {LOOK_FACTOR * start_limit_s:g} s, {LOOK_FACTOR} times the limit of {start_limit_s:g} s"
        return f"no {application.role} {application.name!r} {looked}; {describe(elements, application.role)}"
    if took_s > start_limit_s:
        return f"took {took_s:.1f} s, more than the limit of {start_limit_s:g} s (--start-limit-s)"
    width, height = farm.size
    if found["x"] < 0 or found["y"] < 0 or found["x"] + found["w"] > width or found["y"] + found["h"] > height:
        return f"{application.name!r} lies outside the {width}x{height} screen"
    if not same:
        return "its picture is another one after a snapshot and a restore"
    return "" if changed else "nothing changed on the screen"


def check_rest(farm: Farm) -> str:
    """Whether a desktop that is ready has written all that its session writes by itself."""
    farm.reset()
    earlier = farm.execute(*FILES)["stdout"].splitlines()
    time.sleep(REST_S)
    later = farm.execute(*FILES)["stdout"].splitlines()
    changed = sorted(set(earlier) ^ set(later))
    return f"the session still writes {', '.join(changed[:3])}" if changed else ""


def check_typing(farm: Farm) -> str:
    """Type into a dialog and read what it prints when it ends."""
    script = "zenity --entry --text=Type > /tmp/dart-typed 2>/dev/null; mv /tmp/dart-typed /tmp/dart-verify"
    farm.execute("sh", "-c", script, detach=True)
    if not _in_time(lambda: any((one["role"], one["name"]) == ("push button", "OK") for one in farm.elements())):
        return "the entry did not appear"
    farm.frame({"type": "text", "text": TYPED + "\n"})
    if not _in_time(lambda: farm.execute("test", "-e", "/tmp/dart-verify")["returncode"] == 0):
        return f"typed {TYPED!r} and Enter, the dialog did not end"
    read = farm.execute("cat", "/tmp/dart-verify")["stdout"].strip()
    return "" if read == TYPED else f"typed {TYPED!r}, the dialog got {read!r}"


def _in_time(happened: Callable[[], bool]) -> bool:
    """Whether something that is asked for again and again comes true as long as a program is looked for."""
    deadline_s = time.monotonic() + LOOK_FACTOR * START_LIMIT_S
    while not happened():
        if time.monotonic() > deadline_s:
            return False
    return True


def verify(farm: Farm, image: str, start_limit_s: float, of_recipe: Sequence[Application] = ()) -> int:
    """Run all checks; the number that failed. of_recipe: programs that must be in the image."""
    failed = 0
    size, font_size = SMALL if image == "basic" else FULL
    farm.lease(image, size, font_size)
    try:
        bare = farm.frame()
        installed = [one for one in APPLICATIONS if farm.execute("which", one.argv[0])["returncode"] == 0]
        installed = list(dict.fromkeys((*installed, *of_recipe)))
        checks: list[tuple[str, Callable[[], str]]] = [
            (" ".join(one.argv), functools.partial(check_application, farm, one, bare, start_limit_s))
            for one in installed
        ]
        checks.insert(0, ("rest", functools.partial(check_rest, farm)))
        checks.append(("typing", functools.partial(check_typing, farm)))
        for name, check in checks:
            problem = check()
            print(f"{'FAILED' if problem else 'ok    '} {name}{': ' + problem if problem else ''}", flush=True)
            failed += bool(problem)
    finally:
        farm.release()
    return failed


def main() -> int:
    """Parse, check, report."""
    parser = argparse.ArgumentParser(prog="verify.py", description="Proves an image on a live desktop.")
    parser.add_argument("image")
    parser.add_argument("--farm", default=os.environ.get("DART_FARM_URL", ""), help="address of a running farm")
    parser.add_argument("--key", default=os.environ.get("DART_API_KEY", ""), help="a key of that farm")
    parser.add_argument(
        "--start-limit-s", type=float, default=START_LIMIT_S, help="seconds an application may take to show"
    )
    parser.add_argument("--manifest", type=Path, help="the image's manifest.json, which names its recipe's programs")
    options = parser.parse_args()
    try:
        if not options.farm:
            raise FarmFailure(
                "no farm to ask: start one with 'dart-farm serve --embedded' and give its socket with --farm unix:///PATH"
            )
        own = [] if options.manifest is None else recipe_applications(options.manifest)
        return 1 if verify(Farm(options.farm, options.key), options.image, options.start_limit_s, own) else 0
    except FarmFailure as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
