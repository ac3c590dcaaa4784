from __future__ import annotations

import json
import os
import re
import socket
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from dart_envs.setup.protected import PROTECTED_GID
from dart_envs.tasks.web import server
from dart_envs.tasks.web.pages import button, page

PAGES = {"pages": {"/": page("Shop", button("Buy", "send(event, 'buy', 1)"))}, "files": {"/files/a.csv": "1,2\n"}}


GID = PROTECTED_GID


class RunningServer:
    def __init__(self, folder: Path) -> None:
        self.log = folder / "log.jsonl"
        handler = type("Bound", (server.Handler,), {"site": server.Site(PAGES, self.log), "gid": GID})
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.http.server_port}", verify=False)

    @property
    def events(self) -> list[Any]:
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []

    def token(self) -> str:
        found = re.search(r'token: "([^"]*)"', self.client.get("/").text)
        assert found is not None
        return found[1]

    def post(self, **body: Any) -> int:
        return self.client.post(
            "/do", json={"name": "buy", "data": 1, "trusted": True, "token": self.token()} | body
        ).status_code


@pytest.fixture
def served(tmp_path: Path) -> Iterator[RunningServer]:
    site = RunningServer(tmp_path)
    thread = threading.Thread(target=site.http.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    with site.client:
        yield site
    site.http.shutdown()
    site.http.server_close()
    thread.join()


def test_what_another_program_does_is_not_logged(served: RunningServer) -> None:
    assert served.token() == ""
    assert served.post() == 403
    assert served.client.get("/files/a.csv").text == "1,2\n"
    assert served.events == []


def test_the_browser_needs_its_token_and_a_persons_input(
    served: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "from_browser", lambda client, own, gid: True)
    assert len(served.token()) == 32
    assert [served.post(token="0" * 32), served.post(trusted=False), served.post(trusted="yes")] == [403] * 3
    visits = served.events
    assert visits == [{"name": "visit", "data": "/"}] * 4
    assert served.post() == 200
    served.client.get("/files/a.csv")
    assert served.events[len(visits) + 1 :] == [
        {"name": "buy", "data": 1},
        {"name": "download", "data": "/files/a.csv"},
    ]


def test_the_browser_is_known_by_the_cookie_of_its_first_page(
    served: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "set-cookie" not in served.client.get("/").headers, "another program came first"
    monkeypatch.setattr(server, "from_browser", lambda client, own, gid: True)
    assert "HttpOnly" in served.client.get("/").headers["set-cookie"]
    assert len(served.token()) == 32
    assert served.post() == 200
    events = served.events
    served.client.cookies.clear()
    assert "set-cookie" not in served.client.get("/").headers
    assert served.token() == ""
    assert served.post(token=served.token()) == 403
    served.client.get("/files/a.csv")
    assert served.events == events, "what holds the browser's socket only"


def test_the_other_end_is_known_by_its_address_and_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as first:
            accepted, client = listening.accept()
            with accepted, socket.socket() as second:
                second.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                second.bind(("127.0.0.2", client[1]))
                second.connect(("127.0.0.1", port))
                other, other_client = listening.accept()
                with other:
                    inodes = [server.peer_socket_inode(one, ("127.0.0.1", port)) for one in (client, other_client)]
            assert client[1] == other_client[1]
            assert inodes == [str(os.fstat(first.fileno()).st_ino), inodes[1]]
            assert inodes[0] != inodes[1]


@pytest.mark.parametrize(("content", "status"), [(b"", 413), (b"{", 400), (b"[]", 400), (b'{"name": "buy"}', 400)])
def test_what_is_not_understood(served: RunningServer, content: bytes, status: int) -> None:
    assert served.client.post("/do", content=content).status_code == status
    assert served.client.get("/none").status_code == 404
    assert served.events == []


def process(folder: Path, pid: int, exe: str, parent: int, *arguments: str, gid: int = GID) -> Path:
    place = folder / str(pid)
    (place / "fd").mkdir(parents=True)
    (place / "exe").symlink_to(exe)
    (place / "cmdline").write_text("\0".join([exe, *arguments]))
    (place / "status").write_text(f"Name:\ta\nUid:\t1000\t1000\t1000\t1000\nGid:\t{gid}\t{gid}\t{gid}\t{gid}\n")
    (place / "stat").write_text(f"{pid} (a (odd) name) S {parent} 1 1")
    return place


def test_a_browser_is_one_with_a_window_that_the_task_started(tmp_path: Path) -> None:
    shell = process(tmp_path, 1, "/bin/sh", 0)
    process(tmp_path, 2, server.BROWSER, 1, "--load-extension=", "http://localhost")
    process(tmp_path, 4, server.BROWSER, 1, "--headless", "http://localhost")
    process(tmp_path, 6, server.BROWSER, 1, "--load-extension=/tmp/mine")
    process(tmp_path, 8, server.BROWSER, 1, "http://localhost", gid=1000)
    children = [process(tmp_path, parent + 1, server.BROWSER, parent, "--type=utility") for parent in (2, 4, 6)]
    assert [server.is_browser(child, GID) for child in children] == [True, False, False]
    assert not server.is_browser(shell, GID)
    assert not server.is_browser(tmp_path / "8", GID), "a browser that the task did not start"
    assert not server.is_browser(tmp_path / "9", GID)
    (children[0] / "fd" / "7").symlink_to("socket:[42]")
    assert server.has_open_socket(children[0], "socket:[42]")
    assert not server.has_open_socket(children[0], "socket:[4]")
