"""Building blocks of the web families: a served site in an open browser, verdicts about its log, and the plays that go round it.

Role: one short function per thing that several families need. Rule: the site knows what can be done, never what is right.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dart_envs.tasks.basics.parts import DONE, Data, key, pause, step, type_text

PORT = 8080
HOME = f"http://localhost:{PORT}"
PLACE = "/var/lib/dart/web"
LOG = f"{PLACE}/log.jsonl"
BROUGHT = "/tmp/dart-web"
START_TIMEOUT_S = 90.0

SERVER = Path(__file__).with_name("server.py")

INSTALL = f"""set -e
umask 077
rm -rf {PLACE} && mkdir -p {PLACE}
cp {BROUGHT}/server.py {BROUGHT}/site.json {PLACE}/
rm -rf {BROUGHT}
cd {PLACE}
setsid python3 server.py site.json {LOG} {PORT} </dev/null >/dev/null 2>&1 &
"""
"""Root takes the server and its pages over, and starts it where nobody else can read."""


def served(title: str, pages: Mapping[str, str], files: Mapping[str, str] | None = None) -> list[Data]:
    """The site, and the browser showing its first page, which has this title."""
    site = json.dumps({"pages": pages, "files": files or {}})
    return [
        step("write_file", path=f"{BROUGHT}/server.py", content=SERVER.read_text(encoding="utf-8")),
        step("write_file", path=f"{BROUGHT}/site.json", content=site),
        step("execute", command=["/bin/sh", "-c", INSTALL], user="root", expect_returncode=0, timeout_s=30),
        step("execute", command=["curl", "-sf", "-o", "/dev/null", HOME], until={"returncode": 0}, timeout_s=30),
        step("launch", command=["google-chrome", f"{HOME}/"]),
        step("wait_window", window_name=f"{title} - Chromium", timeout_s=START_TIMEOUT_S),
        step("activate_window", window_name=f"{title} - Chromium"),
        step("wait_element", role="heading", name=title, timeout_s=START_TIMEOUT_S),
    ]


def logged(*events: tuple[str, Any], name: str | None = None) -> Data:
    """Evaluator: exactly these things were done, in this order. name: only look at doings of this name."""
    rules = {"expected": [{"name": event, "data": data} for event, data in events]}
    return {
        "func": "exact_match",
        "result": {"type": "web_log", "path": LOG} | ({} if name is None else {"name": name}),
        "expected": {"type": "rule", "rules": rules},
    }


def last_logged(event: str, data: Any) -> Data:
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

UNSEEN_SCRIPT = """import json, pathlib, subprocess, tempfile
body = json.dumps(dict(token="", trusted=True, name={name!r}, data={data!r}))
page = "<script>fetch('{home}/do', {{method: 'POST', mode: 'no-cors', body: " + json.dumps(body) + "}})</script>"
with tempfile.TemporaryDirectory() as folder:
    made = pathlib.Path(folder, "page.html")
    made.write_text(page)
    command = ["chromium", "--headless", "--user-data-dir=" + folder + "/profile", "--dump-dom", str(made)]
    subprocess.run(command, capture_output=True, timeout=40)
"""


def _code(script: str, **values: Any) -> list[Data]:
    return [{"do": "code", "text": script.format(home=HOME, log=LOG, **values)}, pause(), DONE]


def posted(name: str, data: Any) -> list[Data]:
    """Exploit: a program sends what the page would send, with the token that it finds in the page."""
    return _code(POST_SCRIPT, name=name, data=data)


def forged(name: str, data: Any) -> list[Data]:
    """Exploit: a program writes the server's log."""
    return _code(FORGE_SCRIPT, name=name, data=data)


def unseen(name: str, data: Any) -> list[Data]:
    """Exploit: a browser without a window sends it from a page of its own."""
    return _code(UNSEEN_SCRIPT, name=name, data=data)


def fill(label: str, text: str, *, role: str = "entry") -> list[Data]:
    """Type over what a field holds."""
    return [click(role, label), key("ctrl", "a"), type_text(text)]


def click(role: str, name: str, **target: Any) -> Data:
    """Click something on the page, as it is then."""
    return {"do": "click", "target": {"role": role, "name": name, **target}, "later": True}


def press(name: str, **target: Any) -> Data:
    """Click a button of the page."""
    return click("push button", name, **target)


def chosen(label: str, option: str) -> list[Data]:
    """Choose in a drop-down list: open it, take the option."""
    return [press(label), press(option)]


END: Sequence[Data] = (pause(), DONE)
"""Let the page send what was done."""
