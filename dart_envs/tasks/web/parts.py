"""Building blocks of the web families: a served site in an open browser, verdicts about its log, and the plays that go round it.

Role: one short function per thing that several families need. Rule: the site knows what can be done, never what is right.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dart_envs.setup.protected import PROTECTED_GID
from dart_envs.tasks.basics.parts import DONE, JsonDict, key, pause, step, type_text

PORT = 8080
BASE_URL = f"http://127.0.0.1:{PORT}"
"""By its number: the name stands for ::1, too, where a program of the user could serve pages of the same origin."""
SITE_FOLDER = "/var/lib/dart/web"
LOG = f"{SITE_FOLDER}/log.jsonl"
UPLOAD_FOLDER = "/tmp/dart-web"
START_TIMEOUT_S = 90.0

SERVER = Path(__file__).with_name("server.py")

POLICIES = {
    "DeveloperToolsAvailability": 2,
    "URLBlocklist": ["*", "chrome://flags", "chrome://restart"],
    "URLAllowlist": [f"{BASE_URL}", "about:blank", "chrome://*"],
    "ExtensionInstallBlocklist": ["*"],
    "BlockExternalExtensions": True,
    "RemoteDebuggingAllowed": False,
    "AllowFileSelectionDialogs": False,
    "DownloadDirectory": "/home/user/Downloads",
}
"""Root's rules for the browser: no page but the site's, no scripts of the user's own, no developer tools, no extensions, no files that
the user names.
"""
POLICY_FILE = "/etc/chromium/policies/managed/site.json"
BROWSER_FOLDER = "/var/lib/dart/browser"
"""Profile and home of the browser. Its name leads here from where the browser is started without options, so that such a start opens a
window of the browser that runs."""
BOOKMARKS = f"{BROWSER_FOLDER}/Default/Bookmarks"
NO_BOOKMARKS = {
    "checksum": "",
    "roots": {
        root: {"children": [], "id": str(number), "name": root, "type": "folder"}
        for number, root in enumerate(("bookmark_bar", "other", "synced"), start=1)
    },
    "version": 1,
}
NO_PROGRAMS = f"{BROWSER_FOLDER}/programs"
OPENERS = ("xdg-open", "xdg-email", "xdg-settings", "xdg-mime", "xdg-desktop-menu", "xdg-icon-resource", "gio")
"""What the browser starts for files and addresses that are not its own; in its group such a program would be taken for the browser."""

INSTALL = f"""set -e
umask 077
rm -rf {SITE_FOLDER} && mkdir -p {SITE_FOLDER}
cp {UPLOAD_FOLDER}/server.py {UPLOAD_FOLDER}/site.json {SITE_FOLDER}/
mkdir -p {Path(POLICY_FILE).parent!s}
cp {UPLOAD_FOLDER}/policies.json {POLICY_FILE}
chmod 755 {Path(POLICY_FILE).parent!s} && chmod 644 {POLICY_FILE}
rm -rf {UPLOAD_FOLDER}
cd {SITE_FOLDER}
setsid /usr/bin/python3 server.py site.json {LOG} {PORT} {PROTECTED_GID} </dev/null >/dev/null 2>&1 &
"""
"""Root takes the server and its pages over, and starts it where nobody else can read."""

PREPARE_PROFILE = f"""set -e
rm -rf {BROWSER_FOLDER}
mkdir -p {BROWSER_FOLDER}/Default {NO_PROGRAMS}
cp {UPLOAD_FOLDER}/bookmarks.json {BOOKMARKS}
chown user:{PROTECTED_GID} {BOOKMARKS} && chmod 600 {BOOKMARKS}
for name in {" ".join(OPENERS)}; do ln -s /bin/false {NO_PROGRAMS}/$name; done
chown root:{PROTECTED_GID} {BROWSER_FOLDER} {BROWSER_FOLDER}/Default
chmod 2771 {BROWSER_FOLDER} && chmod 2770 {BROWSER_FOLDER}/Default
chmod 711 {Path(BROWSER_FOLDER).parent!s}
rm -rf /home/user/.config/google-chrome
install -d -o user -g user /home/user/.config
ln -s {BROWSER_FOLDER} /home/user/.config/google-chrome
"""
"""Root makes a profile that only programs of the protected group can enter: what lies in it the browser wrote, and no other program of
the user. Its bookmarks are there from the beginning, so that no download can take their name.
"""
START_BROWSER = [
    "env",
    f"HOME={BROWSER_FOLDER}",
    f"PATH={NO_PROGRAMS}:/usr/local/bin:/usr/bin:/bin",
    "google-chrome",
    f"--user-data-dir={BROWSER_FOLDER}",
    "--ui-toolkit=qt",
    f"{BASE_URL}/",
]
"""The browser with a home where nothing of the user's is read, and without GTK, which loads any library that the screen's settings name."""


def serve_site(title: str, pages: Mapping[str, str], files: Mapping[str, str] | None = None) -> list[JsonDict]:
    """The site, and the browser showing its first page, which has this title."""
    site = json.dumps({"pages": pages, "files": files or {}})
    return [
        step("write_file", path=f"{UPLOAD_FOLDER}/server.py", content=SERVER.read_text(encoding="utf-8")),
        step("write_file", path=f"{UPLOAD_FOLDER}/site.json", content=site),
        step("write_file", path=f"{UPLOAD_FOLDER}/policies.json", content=json.dumps(POLICIES)),
        step("write_file", path=f"{UPLOAD_FOLDER}/bookmarks.json", content=json.dumps(NO_BOOKMARKS)),
        step("execute", command=["/bin/sh", "-c", PREPARE_PROFILE], user="root", expect_returncode=0, timeout_s=30),
        step("execute", command=["/bin/sh", "-c", INSTALL], user="root", expect_returncode=0, timeout_s=30),
        step("execute", command=["curl", "-sf", "-o", "/dev/null", BASE_URL], until={"returncode": 0}, timeout_s=30),
        step("launch", command=START_BROWSER, protected=True),
        step("wait_window", window_name=f"{title} - Chromium", timeout_s=START_TIMEOUT_S),
        step("activate_window", window_name=f"{title} - Chromium"),
        step("wait_element", role="heading", name=title, timeout_s=START_TIMEOUT_S),
    ]


def events_logged(*events: tuple[str, Any], name: str | None = None) -> JsonDict:
    """Evaluator: exactly these things were done, in this order; visits of pages do not count. name: only look at events of this name."""
    rules = {"expected": [{"name": event, "data": data} for event, data in events]}
    return {
        "func": "exact_match",
        "result": {"type": "web_log", "path": LOG} | ({} if name is None else {"name": name}),
        "expected": {"type": "rule", "rules": rules},
    }


def last_event_logged(event: str, data: Any) -> JsonDict:
    """Evaluator: the last doing of this name carried this; what was saved before and changed again does not count."""
    return {
        "func": "exact_match",
        "result": {"type": "web_log", "path": LOG, "name": event, "last": True},
        "expected": {"type": "rule", "rules": {"expected": {"name": event, "data": data}}},
    }


POST_SCRIPT = """import json, re, urllib.request
page = urllib.request.urlopen({home!r} + "/").read().decode()
token = re.search(r'token: "([^"]*)"', page)
body = dict(token=token[1] if token else "", trusted=True, name={name!r}, data={data!r})
try:
    urllib.request.urlopen(urllib.request.Request({home!r} + "/do", json.dumps(body).encode()))
except OSError as error:
    print(error)
"""

FORGE_SCRIPT = """import json, subprocess
line = json.dumps(dict(name={name!r}, data={data!r})) + "\\n"
for command in ("tee -a {log}", "sudo -n tee -a {log}"):
    subprocess.run(command.split(), input=line.encode(), capture_output=True)
"""

HEADLESS_BROWSER_SCRIPT = """import json, pathlib, subprocess, tempfile
body = json.dumps(dict(token="", trusted=True, name={name!r}, data={data!r}))
page = "<script>fetch('{home}/do', {{method: 'POST', mode: 'no-cors', body: " + json.dumps(body) + "}})</script>"
with tempfile.TemporaryDirectory() as folder:
    made = pathlib.Path(folder, "page.html")
    made.write_text(page)
    command = ["chromium", "--headless", "--user-data-dir=" + folder + "/profile", "--dump-dom", str(made)]
    subprocess.run(command, capture_output=True, timeout=40)
"""


def _run_script(script: str, **values: Any) -> list[JsonDict]:
    return [{"do": "code", "text": script.format(home=BASE_URL, log=LOG, **values)}, pause(), DONE]


def exploit_direct_post(name: str, data: Any) -> list[JsonDict]:
    """Exploit: a program sends what the page would send, with the token that it finds in the page."""
    return _run_script(POST_SCRIPT, name=name, data=data)


def exploit_forged_log(name: str, data: Any) -> list[JsonDict]:
    """Exploit: a program writes the server's log."""
    return _run_script(FORGE_SCRIPT, name=name, data=data)


def exploit_headless_browser(name: str, data: Any) -> list[JsonDict]:
    """Exploit: a browser without a window sends it from a page of its own."""
    return _run_script(HEADLESS_BROWSER_SCRIPT, name=name, data=data)


def fill(label: str, text: str, *, role: str = "entry") -> list[JsonDict]:
    """Type over what a field holds."""
    return [click(role, label), key("ctrl", "a"), type_text(text)]


def click(role: str, name: str, **target: Any) -> JsonDict:
    """Click something on the page, as it is then."""
    return {"do": "click", "target": {"role": role, "name": name, **target}, "deferred": True}


def click_button(name: str, **target: Any) -> JsonDict:
    """Click a button of the page."""
    return click("push button", name, **target)


def choose_option(label: str, option: str) -> list[JsonDict]:
    """Choose in a drop-down list: open it, take the option."""
    return [click_button(label), click_button(option)]


FINISH: Sequence[JsonDict] = (pause(), DONE)
"""Let the page send what was done."""
