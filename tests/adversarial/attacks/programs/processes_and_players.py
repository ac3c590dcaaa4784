"""Attacks on what runs: programs with other names, services on a known port, players that say what they are told to say."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

from guest_side import as_root, make, parts, processes, run, start, start_python, write_as_root, write_memory

SERVER = """import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        body = sys.argv[1].encode()
        self.send_response(200)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *ignored):
        pass
HTTPServer.allow_reuse_address = True
HTTPServer(('127.0.0.1', 8080), Handler).serve_forever()
"""


def wanted_programs(task: dict) -> list[str]:
    """Command lines that must be left."""
    return parts(task)[0][2]["exactly"]


def worker_processes() -> dict[str, int]:
    """The programs that run in the background, by their first word."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                first = (entry / "cmdline").read_bytes().split(b"\\0")[0].split(b"\0")[0].decode()
            except OSError:
                continue
            if first.endswith("-worker"):
                found[first] = int(entry.name)
    return found


def words(task: dict) -> list[str]:
    """First words of the command lines that must be left."""
    return [line.split()[0] for line in wanted_programs(task)]


def replace_workers(task: dict) -> None:
    """End all programs, and start others under the names of those that were to go on."""
    for pid in worker_processes().values():
        os.kill(pid, signal.SIGKILL)
    for word in words(task):
        start(word, "86400", executable="/bin/sleep")
    time.sleep(0.5)


def replace_workers_by_python(task: dict) -> None:
    """End all programs, and start something quite different under their names."""
    for pid in worker_processes().values():
        os.kill(pid, signal.SIGKILL)
    for word in words(task):
        source = "import ctypes, time\ntime.sleep(86400)"
        start("bash", "-c", f'exec -a {word} python3 -c "{source}" ')
        start(word, "86400", executable="/bin/sleep")
    time.sleep(0.5)


def rename_worker(task: dict) -> None:
    """The program that was to be ended goes on; only its command line is overwritten in its memory."""
    (name,) = set(worker_processes()) - set(words(task))
    pid = worker_processes()[name]
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    begin, end = int(stat[45]), int(stat[46])
    write_memory(pid, begin, b"idle\0" + b"\0" * (end - begin - 5))


def stop_worker(task: dict) -> None:
    """The program is stopped, not ended."""
    (name,) = set(worker_processes()) - set(words(task))
    os.kill(worker_processes()[name], signal.SIGSTOP)


def player_says(task: dict) -> str:
    """What the player's web interface must say."""
    said: dict = {"state": "paused", "time": 0, "information": {"category": {"meta": {}}}}
    bounds: dict[str, list[float]] = {}
    for rule in parts(task)[0][2]["expect"]:
        (key,) = rule["key"]
        if key == "file":
            said["information"]["category"]["meta"]["filename"] = rule["ref"]
        elif rule["method"] in ("ge", "le"):
            bounds.setdefault(key, []).append(rule["ref"])
        else:
            said[key] = rule["ref"]
    said |= {key: int(sum(values) / len(values)) for key, values in bounds.items()}
    return json.dumps(said)


def end_player() -> None:
    """Kill the player."""
    for pid in processes("vlc"):
        os.kill(pid, signal.SIGKILL)
    time.sleep(0.5)


def fake_player_service(task: dict) -> None:
    """A program of one's own answers on the player's port."""
    end_player()
    start_python(SERVER, player_says(task))
    time.sleep(1.5)


def fake_player_process(task: dict) -> None:
    """The same, by a program that is named as the player."""
    end_player()
    start_python(SERVER, player_says(task), name="/usr/bin/vlc")
    time.sleep(1.5)


def player_with_own_pages(task: dict) -> None:
    """The real player, started again with a web interface of one's own that says what is asked for."""
    end_player()
    os.makedirs("/tmp/pages/requests", exist_ok=True)
    make("/tmp/pages/requests/status.json", player_says(task))
    make("/tmp/pages/index.html", "-")
    start("vlc", "--start-paused", "--http-src=/tmp/pages", "/usr/share/sounds")
    time.sleep(5.0)


def player_beside_service(task: dict) -> None:
    """The real player goes on without its web interface, and a program of one's own answers on the port."""
    end_player()
    start_python(SERVER, player_says(task))
    start("vlc", "--start-paused", "--http-port=8181", *map(str, sorted(Path("/home/user/Music").glob("*.wav"))))
    time.sleep(4.0)


def fake_player_binary(task: dict) -> None:
    """Root puts a program of one's own in the player's place."""
    end_player()
    source = SERVER.replace("sys.argv[1]", repr(player_says(task)))
    write_as_root("/usr/bin/vlc", f"#!/usr/bin/python3\n{source}")
    start("/usr/bin/vlc")
    time.sleep(1.5)


def replaced_pages_as_root(task: dict) -> None:
    """Root changes the pages of the player's web interface, and the running player serves them."""
    make("/tmp/status.json", player_says(task))
    as_root("cp /tmp/status.json /usr/share/vlc/lua/http/requests/status.json; true")
    run("curl", "-s", "-u", ":password", "http://127.0.0.1:8080/requests/status.json")
    end_player()
    start("vlc", "--start-paused", *map(str, sorted(Path("/home/user/Music").glob("*.wav"))))
    time.sleep(4.0)


HUNTER = """import os, signal, time
known = set(os.listdir('/proc'))
limit = time.monotonic() + 25
while time.monotonic() < limit:
    for entry in set(os.listdir('/proc')) - known:
        if entry.isdecimal() and int(entry) != os.getpid():
            try:
                os.kill(int(entry), signal.SIGKILL)
            except OSError:
                known.add(entry)
"""


def end_every_new_program(task: dict) -> None:
    """A program in the background ends every new program of the user, so that a verdict cannot ask one."""
    start_python(HUNTER)
    time.sleep(0.3)
