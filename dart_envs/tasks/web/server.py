"""The web of the suite `web`: one small server inside the desktop, run there by root with Debian's own Python.

Role: serve the pages of one task, and log what is done on them. Rule: this file and its log belong to root; only what comes from the
desktop's browser is logged: the program at the other end of the connection must be the Chromium that the task started, in a group that
no other program of the user has. With its first page, which it opens before anybody acts, it gets a cookie, once; its memory and profile
are closed to other programs, so that only what carries the cookie comes from it. A submission must also carry the token of the pages, and
the browser's word that a person's input caused it. Non-goals: knowing what is right.

    python3 server.py SITE.json LOG.jsonl PORT GID

SITE.json: {"pages": {path: HTML}, "files": {path: text}}. A line of the log is {"name", "data"}.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import secrets
import socket
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

USER = "user"
BROWSER = "/usr/lib/chromium/chromium"
AUTOMATION_FLAGS = re.compile(r"--headless|--remote-debugging|--load-extension=[^\0]")
"""Options of a browser that a program drives, not a person at the screen; Debian's browser always has an empty list of extensions."""
ESTABLISHED = "01"
COOKIE = "browser"
MAX_BODY_BYTES = 4_000_000


def end_in_table(address: tuple[str, int]) -> str:
    """An address and port as /proc/net/tcp has them."""
    return f"{int.from_bytes(socket.inet_aton(address[0]), sys.byteorder):08X}:{address[1]:04X}"


def peer_socket_inode(client: tuple[str, int], server: tuple[str, int]) -> str | None:
    """Inode of the other end of a connection on this machine."""
    ends = [end_in_table(client), end_in_table(server)]
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1:3] == ends and fields[3] == ESTABLISHED:
            return fields[9]
    return None


def has_open_socket(process: Path, link: str) -> bool:
    """Whether a process has this socket open."""
    try:
        return any(os.readlink(entry) == link for entry in (process / "fd").iterdir())
    except OSError:
        return False


def executable_path(process: Path) -> str:
    """The file that a process runs, "" where that is not to be known."""
    try:
        return os.readlink(process / "exe")
    except OSError:
        return ""


def in_group(process: Path, gid: int) -> bool:
    """Whether a process has this primary group, real, effective and saved."""
    try:
        status = (process / "status").read_text()
    except OSError:
        return False
    found = re.search(r"^Gid:\s+(.*)$", status, re.MULTILINE)
    return found is not None and set(found[1].split()) == {str(gid)}


def is_browser(process: Path, gid: int) -> bool:
    """Whether a process is of the browser that the task started in group `gid`, on a screen and driven by nobody else."""
    if executable_path(process) != BROWSER or not in_group(process, gid):
        return False
    while executable_path(process) == BROWSER:
        try:
            if AUTOMATION_FLAGS.search((process / "cmdline").read_text()):
                return False
            parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            return False
        process = process.parent / parent
    return True


def browser_has_socket(inode: str, gid: int) -> bool:
    """Whether the browser has the socket of this inode open."""
    link = f"socket:[{inode}]"
    processes = [entry for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    return any(is_browser(process, gid) for process in processes if has_open_socket(process, link))


def check_as_user(question: Callable[[str, int], bool], argument: str, gid: int) -> bool:
    """Answer a question in a process of the desktop's user and of the browser's group: root has no right to look into its processes."""
    child = os.fork()
    if child == 0:
        try:
            user = pwd.getpwnam(USER)
            os.setgroups([])
            os.setresgid(gid, gid, gid)
            os.setresuid(user.pw_uid, user.pw_uid, user.pw_uid)
            os._exit(0 if question(argument, gid) else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def from_browser(client: tuple[str, int], server: tuple[str, int], gid: int) -> bool:
    """Whether the other end of a connection is the desktop's browser."""
    inode = peer_socket_inode(client, server)
    return inode is not None and check_as_user(browser_has_socket, inode, gid)


class Site:
    """Pages, files, and the log."""

    def __init__(self, site: dict[str, dict[str, str]], log: Path) -> None:
        self.pages, self.files = site["pages"], site.get("files", {})
        self.token = secrets.token_hex(16)
        self._cookie = secrets.token_hex(16)
        self._given = False
        self._log = log
        self._lock = threading.Lock()

    def give_cookie(self) -> str | None:
        """The cookie that the browser is known by: at the first call only."""
        with self._lock:
            given, self._given = self._given, True
        return None if given else self._cookie

    def has_cookie(self, header: str) -> bool:
        """Whether a request carries the cookie."""
        words = (word.strip().encode() for word in header.split(";"))
        return any(secrets.compare_digest(word, f"{COOKIE}={self._cookie}".encode()) for word in words)

    def append_event(self, name: str, data: object) -> None:
        """Add a line to the log."""
        with self._lock, self._log.open("a", encoding="utf-8") as log:
            log.write(json.dumps({"name": name, "data": data}) + "\n")


class Handler(BaseHTTPRequestHandler):
    """One connection, one request."""

    site: Site
    gid: int

    def _from_browser(self) -> bool:
        return from_browser(self.client_address, self.connection.getsockname(), self.gid)

    def _with_cookie(self) -> bool:
        return self.site.has_cookie(self.headers.get("Cookie") or "")

    def do_GET(self) -> None:
        """A page with the token in it, or a file to be kept."""
        path = unquote(urlsplit(self.path).path)
        seen = self._from_browser()
        if path in self.site.pages:
            cookie = self.site.give_cookie() if seen else None
            seen = seen and (cookie is not None or self._with_cookie())
            if seen:
                self.site.append_event("visit", path)
            page = self.site.pages[path].replace("__TOKEN__", self.site.token if seen else "")
            self.answer(200, page, "text/html; charset=utf-8", cookie=cookie)
        elif path in self.site.files:
            if seen and self._with_cookie():
                self.site.append_event("download", path)
            name = path.rpartition("/")[2]
            self.answer(200, self.site.files[path], "application/octet-stream", f'attachment; filename="{name}"')
        else:
            self.answer(404, "There is no such page.", "text/plain")

    def do_POST(self) -> None:
        """Something done on a page."""
        size = int(self.headers.get("Content-Length") or 0)
        if not 0 < size <= MAX_BODY_BYTES:
            return self.answer(413, "Too much.", "text/plain")
        try:
            said = json.loads(self.rfile.read(size))
            name, data, token, trusted = said["name"], said["data"], said["token"], said["trusted"]
        except (ValueError, KeyError, TypeError):
            return self.answer(400, "Not understood.", "text/plain")
        seen = self._from_browser() and self._with_cookie()
        if not (seen and trusted is True and secrets.compare_digest(str(token), self.site.token)):
            return self.answer(403, "Use the page.", "text/plain")
        self.site.append_event(str(name), data)
        return self.answer(200, "Done.", "text/plain")

    def answer(
        self, status: int, text: str, kind: str, disposition: str | None = None, *, cookie: str | None = None
    ) -> None:
        """Send a whole answer and close."""
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        if disposition is not None:
            self.send_header("Content-Disposition", disposition)
        if cookie is not None:
            self.send_header("Set-Cookie", f"{COOKIE}={cookie}; Path=/; HttpOnly; SameSite=Strict")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: standard error leads nowhere."""


def main() -> None:
    """Serve for ever, on loopback only."""
    site, log, port, gid = sys.argv[1:]
    Handler.gid = int(gid)
    Handler.site = Site(json.loads(Path(site).read_text(encoding="utf-8")), Path(log))
    Path(log).touch(mode=0o600)
    ThreadingHTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()


if __name__ == "__main__":
    main()
