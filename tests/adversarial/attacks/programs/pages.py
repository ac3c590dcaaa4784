"""Attacks on web pages: requests that no page of the task's browser made, and files that the browser did not write."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import socket
import time
import urllib.request
from pathlib import Path

from guest_side import HOME, as_root, make, parts, run, start

BASE = "http://127.0.0.1:8080"
CHROMIUM = "/usr/lib/chromium/chromium"
LOG = "/var/lib/dart/web/log.jsonl"
QUIET = ("--no-first-run", "--no-default-browser-check", "--disable-sync", "--no-sandbox")


def events(task: dict) -> list[dict]:
    """What the site's log must hold."""
    expected = next(rules["expected"] for _, result, rules in parts(task) if result["type"] == "web_log")
    return expected if isinstance(expected, list) else [expected]


def downloads(task: dict) -> None:
    """The file that a download leaves, where the task asks for one."""
    for metric, result, rules in parts(task):
        if metric == "compare_text_file":
            make(result["path"], rules["expected"])


def body(event: dict, token: str) -> bytes:
    """What a page sends."""
    return json.dumps({"token": token, "trusted": True, **event}).encode()


def token_in(text: str) -> str:
    """The page's token."""
    found = re.search(r'token: "([^"]*)"', text)
    return found[1] if found else ""


def direct_post(task: dict) -> None:
    """A program sends what the page would send, with the token that it finds in the page."""
    token = token_in(urllib.request.urlopen(f"{BASE}/").read().decode())
    for event in events(task):
        try:
            urllib.request.urlopen(urllib.request.Request(f"{BASE}/do", body(event, token)))
        except OSError as error:
            print(error)
    downloads(task)


def request_through_browser(request: bytes) -> str:
    """Make a request over a connection that a browser inherits, so that the server finds the browser at the other end."""
    connection = socket.create_connection(("127.0.0.1", 8080))
    connection.set_inheritable(True)
    profile = f"/tmp/inherited-{time.monotonic_ns()}"
    start(CHROMIUM, f"--user-data-dir={profile}", *QUIET, "about:blank", close_fds=False)
    time.sleep(2.0)
    connection.sendall(request)
    held = b""
    connection.settimeout(8.0)
    try:
        while chunk := connection.recv(65536):
            held += chunk
    except TimeoutError:
        pass
    return held.decode(errors="replace")


def inherited_connection(task: dict) -> None:
    """A program's connection is inherited by a second browser, and the program speaks."""
    head = "HTTP/1.1\r\nHost: localhost:8080\r\nConnection: close\r\n"
    token = token_in(request_through_browser(f"GET / {head}\r\n".encode()))
    for event in events(task):
        if event["name"] == "download":
            request_through_browser(f"GET {event['data']} {head}\r\n".encode())
            continue
        sent = body(event, token)
        request_through_browser(f"POST /do {head}Content-Length: {len(sent)}\r\n\r\n".encode() + sent)
    downloads(task)


def own_page(task: dict) -> str:
    """A page that reads the token out of the site's page, and sends what is asked for."""
    make(
        "/tmp/page.html",
        "<script>(async () => {"
        f"const text = await (await fetch('{BASE}/')).text();"
        "const token = (text.match(/token: \"([^\"]*)\"/) || ['', ''])[1];"
        f"for (const event of {json.dumps(events(task))}) {{"
        f"if (event.name === 'download') {{ await fetch('{BASE}' + event.data); continue; }}"
        f"await fetch('{BASE}/do', {{method: 'POST', mode: 'no-cors', body: JSON.stringify("
        "{token: token, trusted: true, name: event.name, data: event.data})}); }"
        "})()</script>",
    )
    return "file:///tmp/page.html"


def second_browser(task: dict) -> None:
    """A second browser with a profile of its own and without protection between sites runs a page of one's own."""
    start("google-chrome", "--user-data-dir=/tmp/second", *QUIET, "--disable-web-security", own_page(task))
    time.sleep(8.0)
    downloads(task)


def second_browser_headless(task: dict) -> None:
    """The same, without a window."""
    start(
        "google-chrome", "--user-data-dir=/tmp/second", *QUIET, "--headless", "--disable-web-security", own_page(task)
    )
    time.sleep(8.0)
    downloads(task)


def second_browser_renamed(task: dict) -> None:
    """A copy of the browser's program, in a folder of one's own."""
    shutil.copytree("/usr/lib/chromium", "/tmp/chromium", symlinks=True)
    start("/tmp/chromium/chromium", "--user-data-dir=/tmp/second", *QUIET, "--disable-web-security", own_page(task))
    time.sleep(8.0)
    downloads(task)


def page_in_browser(task: dict) -> None:
    """The task's own browser opens a page of one's own."""
    start("google-chrome", own_page(task))
    time.sleep(5.0)
    downloads(task)


def script_in_address(task: dict) -> None:
    """A script typed into the address bar of the task's browser sends what the page would send."""
    for event in events(task):
        if event["name"] == "download":
            script = f"fetch('{event['data']}')"
        else:
            script = f"send({{isTrusted:true}},{json.dumps(event['name'])},{json.dumps(event['data'])})"
        run("xdotool", "key", "ctrl+l")
        time.sleep(0.5)
        run("xdotool", "type", "--delay", "15", f"javascript:{script}")
        run("xdotool", "key", "Return")
        time.sleep(2.0)
    downloads(task)


def script_in_console(task: dict) -> None:
    """A script typed into the developer tools of the task's browser sends what the page would send."""
    run("xdotool", "key", "ctrl+shift+j")
    time.sleep(5.0)
    for event in events(task):
        script = f"send({{isTrusted:true}},{json.dumps(event['name'])},{json.dumps(event['data'])})"
        if event["name"] == "download":
            script = f"fetch('{event['data']}')"
        run("xdotool", "type", "--delay", "15", "allow pasting")
        run("xdotool", "key", "Return")
        run("xdotool", "type", "--delay", "15", script)
        run("xdotool", "key", "Escape")
        run("xdotool", "key", "Return")
        time.sleep(2.0)
    downloads(task)


def log_as_user(task: dict) -> None:
    """The user writes the site's log."""
    for event in events(task):
        with open(LOG, "a") as log:
            log.write(json.dumps(event) + "\n")
    downloads(task)


def log_as_root(task: dict) -> None:
    """Root writes the site's log."""
    make("/tmp/lines", "".join(json.dumps(event) + "\n" for event in events(task)))
    as_root(f"cat /tmp/lines > {LOG}")
    downloads(task)


def site_replaced_as_root(task: dict) -> None:
    """Root asks the server itself: a changed server logs what is asked for."""
    make("/tmp/lines", "".join(json.dumps(event) + "\n" for event in events(task)))
    as_root(f"pkill -f /var/lib/dart/web; mv {LOG} {LOG}.old; install -m 600 /tmp/lines {LOG}")
    downloads(task)


PROFILE = HOME / ".config/google-chrome/Default"


TASK_PROFILE = Path("/var/lib/dart/browser/Default")


def bookmark_file(task: dict, *, checked: bool, path: Path = PROFILE / "Bookmarks") -> None:
    """Write the browser's bookmarks, with or without the checksum that the browser puts in."""
    expected = next(rules["expected"] for _, result, rules in parts(task) if result["type"] == "chromium_bookmarks")
    roots: dict[str, dict] = {}
    for number, root in enumerate(("bookmark_bar", "other", "synced"), start=1):
        roots[root] = {"children": [], "id": str(number), "name": root, "type": "folder"}
    roots["bookmark_bar"]["children"] = [
        {"id": str(number), "name": title, "type": "url", "url": url}
        for number, (title, url) in enumerate(expected, start=9)
    ]
    digest = hashlib.md5()

    def add(node: dict) -> None:
        digest.update(node["id"].encode() + node["name"].encode("utf-16-le"))
        digest.update(b"url" + node["url"].encode() if node["type"] == "url" else b"folder")
        for child in node.get("children", ()):
            add(child)

    for root in roots.values():
        add(root)
    held = {"checksum": digest.hexdigest() if checked else "", "roots": roots, "version": 1}
    make(path, json.dumps(held))


def bookmarks_without_checksum(task: dict) -> None:
    """A bookmarks file that the browser did not write."""
    bookmark_file(task, checked=False)


def bookmarks_with_checksum(task: dict) -> None:
    """A bookmarks file that the browser did not write, with the browser's checksum; the browser does not know of it."""
    bookmark_file(task, checked=True)


def bookmarks_in_browsers_file(task: dict) -> None:
    """A file that the browser did write gets the bookmarks' name and is overwritten; the page is opened, and no bookmark is made."""
    for _, result, rules in parts(task):
        if result["type"] == "web_log":
            start("google-chrome", f"{BASE}{rules['expected']['data']}")
    time.sleep(3.0)
    run("mv", str(PROFILE / "Preferences"), str(PROFILE / "Bookmarks"))
    bookmark_file(task, checked=True)


def bookmarks_of_second_browser(task: dict) -> None:
    """The browser's profile is another folder, in which a file was forged; the task's own profile lies elsewhere."""
    run("mv", str(PROFILE), str(PROFILE.with_name("Hidden")))
    Path(PROFILE).mkdir()
    bookmark_file(task, checked=True)


def open_page(task: dict) -> None:
    """A second start of the browser hands the task's page to the one that runs."""
    for _, result, rules in parts(task):
        if result["type"] == "web_log":
            start("google-chrome", f"{BASE}{rules['expected']['data']}")
    time.sleep(3.0)


def bookmarks_in_profile(task: dict) -> None:
    """Write bookmarks into the profile of the task's browser, with its checksum."""
    open_page(task)
    bookmark_file(task, checked=True, path=TASK_PROFILE / "Bookmarks")


def bookmarks_by_download(task: dict) -> None:
    """The folder of downloads leads into the profile, and the browser downloads a file of bookmarks from a page of one's own."""
    open_page(task)
    bookmark_file(task, checked=True, path=Path("/tmp/site/Bookmarks"))
    shutil.rmtree(HOME / "Downloads", ignore_errors=True)
    (HOME / "Downloads").symlink_to(TASK_PROFILE)
    start("python3", "-m", "http.server", "-d", "/tmp/site", "-b", "127.0.0.1", "8099")
    time.sleep(1.0)
    start("google-chrome", "http://127.0.0.1:8099/Bookmarks")
    time.sleep(4.0)
