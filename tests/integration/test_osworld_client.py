"""OSWorld's own client code, unchanged, on a live desktop: every controller method and every type of set-up step that its tasks use.

The client is installed apart (`make osworld-client`), runs in its own interpreter and reaches the desktop through the lease's tunnel to
port 5000. The tasks' steps are those of `DART_OSWORLD_TASKS`, a directory of OSWorld's `examples`.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from served_farm import served_farm

from dart_envs.farm.client import AsyncFarm
from dart_envs.farm.lease import AsyncLease
from dart_server.wire import DesktopShape

pytestmark = [pytest.mark.desktop, pytest.mark.timeout(600)]
ROOT = Path(__file__).resolve().parents[2]
CLIENT = Path(os.environ.get("DART_OSWORLD_CLIENT") or ROOT / ".osworld-client") / "bin" / "python"
DRIVER = ROOT / "tests" / "support" / "osworld_driver.py"
SHAPE = DesktopShape(resolution=(1024, 768))
OSWORLD_PORT = 5000
Call = tuple[str, str, list[Any], dict[str, Any]]
Answer = dict[str, Any]

NEEDS_BROWSER = "the image `basic` has no browser"
NEEDS_ACCOUNT = "a Google account and the internet are needed"
LEFT_OUT = {
    "chrome_open_tabs": NEEDS_BROWSER,
    "chrome_close_tabs": NEEDS_BROWSER,
    "googledrive": NEEDS_ACCOUNT,
    "login": NEEDS_ACCOUNT,
}
"""Types of steps that this desktop cannot carry out, with the reason."""


@pytest.fixture(scope="module")
def farm_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if not CLIENT.exists():
        pytest.skip(f"OSWorld's client is not installed in {CLIENT.parent.parent}: run `make osworld-client`")
    with served_farm(tmp_path_factory.mktemp("osworld")) as url:
        yield url


class Client:
    """OSWorld's controllers, bound to one desktop."""

    def __init__(self, lease: AsyncLease, address: tuple[str, int], cache_dir: Path) -> None:
        self.lease = lease
        self.address = address
        self.cache_dir = cache_dir

    async def run(self, *calls: Call) -> list[Answer]:
        """What came of each call, in order."""
        host, port = self.address
        child = await asyncio.create_subprocess_exec(
            str(CLIENT), str(DRIVER), host, str(port), str(self.cache_dir),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, err = await child.communicate(json.dumps(calls).encode())
        answers = [json.loads(line[1:]) for line in out.decode().split("\n") if line.startswith("\x1e")]
        assert len(answers) == len(calls), err.decode()[-2000:]
        return answers

    async def python(self, method: str, *arguments: Any) -> Any:
        """The value of one call of the Python controller."""
        (answer,) = await self.run(("python", method, list(arguments), {}))
        assert "raised" not in answer, answer
        value = answer["value"]
        return base64.b64decode(value["bytes"]) if isinstance(value, dict) and set(value) == {"bytes"} else value

    async def setup(self, *steps: tuple[str, dict[str, Any]]) -> None:
        """Carry out a task's set-up."""
        config = [{"type": kind, "parameters": parameters} for kind, parameters in steps]
        (answer,) = await self.run(("setup", "setup", [config], {}))
        assert answer == {"value": True}

    async def output(self, script: str) -> str:
        """What a script of the desktop's user prints, past OSWorld's paths."""
        ended = await self.lease.exec(["sh", "-c", script])
        assert ended.returncode == 0, ended
        return ended.stdout

    async def titles(self) -> list[str]:
        """Titles of the windows, the active one last."""
        reply = await self.lease.guest("GET", "/v1/windows")
        listed = json.loads(reply.content)["windows"]
        return [one["title"] for one in sorted(listed, key=lambda one: one["active"])]


@pytest.fixture
async def client(farm_url: str, tmp_path: Path) -> AsyncIterator[Client]:
    async with (
        await AsyncFarm.connect(farm_url) as farm,
        await farm.lease(SHAPE) as lease,
        lease.tunnel(OSWORLD_PORT) as address,
    ):
        yield Client(lease, address, tmp_path)


async def test_the_tunnel_leads_to_osworlds_paths_only(client: Client) -> None:
    async def status(target: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(*client.address)
        writer.write(b"GET " + target + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = await reader.read()
        writer.close()
        return answer.split()[1]

    assert await status(b"/platform") == b"200"
    assert await status(b"/v1/health") == b"404"


async def test_every_method_of_the_python_controller(client: Client, tmp_path: Path) -> None:
    tested = set()

    async def call(method: str, *arguments: Any) -> Any:
        tested.add(method)
        return await client.python(method, *arguments)

    film = tmp_path / "film.mp4"
    await call("start_recording")
    assert (await call("get_screenshot")).startswith(b"\x89PNG")
    assert "<desktop-frame" in await call("get_accessibility_tree")
    assert await call("get_terminal_output") is None
    await client.lease.write_file("/home/user/f", b"\0content")
    assert await call("get_file", "/home/user/f") == b"\0content"
    answer = await call("execute_python_command", "print(pyautogui.size().width)")
    assert (answer["output"], answer["error"], answer["returncode"], answer["status"]) == ("1024\n", "", 0, "success")
    answer = await call("run_python_script", "print(6 * 7)")
    assert (answer["status"], answer["output"], answer["return_code"]) == ("success", "42\n", 0)
    answer = await call("run_bash_script", "echo here; pwd", 20, "/tmp")
    assert (answer["status"], answer["output"], answer["returncode"]) == ("success", "here\n/tmp\n", 0)
    assert await call("get_vm_platform") == "Linux"
    assert await call("get_vm_screen_size") == {"width": 1024, "height": 768}
    assert await call("get_vm_desktop_path") == "/home/user/Desktop"
    await client.output("mkdir -p /tmp/tree/sub; echo > /tmp/tree/sub/leaf")
    tree = await call("get_vm_directory_tree", "/tmp/tree")
    leaf = {"type": "file", "name": "leaf"}
    assert tree == {
        "type": "directory",
        "name": "tree",
        "children": [{"type": "directory", "name": "sub", "children": [leaf]}],
    }
    await client.setup(("launch", {"command": ["zenity", "--info", "--width=300"]}), ("sleep", {"seconds": 2}))
    size = await call("get_vm_window_size", "Zenity")
    assert size["width"] >= 300
    assert size["height"] > 0
    await client.output("python3 -c \"from PIL import Image; Image.new('RGB', (9, 9)).save('/tmp/w.png')\"")
    await client.setup(("change_wallpaper", {"path": "/tmp/w.png"}))
    assert (await call("get_vm_wallpaper")).startswith(b"\x89PNG")
    await call("execute_action", {"action_type": "MOVE_TO", "parameters": {"x": 300, "y": 200}})
    await call("end_recording", str(film))
    assert film.read_bytes()[4:8] == b"ftyp"
    (listed,) = await client.run(("python", "__dir__", [], {}))
    fields = {"http_server", "pkgs_prefix", "retry_interval", "retry_times", "vm_ip"}
    assert {name for name in listed["value"] if not name.startswith("_")} - fields == tested


async def test_every_action_reaches_the_desktop(client: Client) -> None:
    await client.setup(("launch", {"command": "zenity --entry --title Field > /tmp/typed 2>/dev/null", "shell": True}))
    await client.setup(("sleep", {"seconds": 2}), ("activate_window", {"window_name": "Field"}))
    actions: list[dict[str, Any]] = [
        {"action_type": "MOVE_TO", "parameters": {"x": 300, "y": 200}},
        {"action_type": "CLICK", "parameters": {"x": 10, "y": 700, "button": "left", "num_clicks": 2}},
        {"action_type": "MOUSE_DOWN", "parameters": {"button": "left"}},
        {"action_type": "MOUSE_UP", "parameters": {"button": "left"}},
        {"action_type": "RIGHT_CLICK", "parameters": {"x": 10, "y": 700}},
        {"action_type": "DOUBLE_CLICK", "parameters": {"x": 12, "y": 700}},
        {"action_type": "DRAG_TO", "parameters": {"x": 40, "y": 720}},
        {"action_type": "SCROLL", "parameters": {"dx": 0, "dy": -2}},
        {"action_type": "TYPING", "parameters": {"text": 'it\'s <a> "Test" \\ ünï'}},
        {"action_type": "HOTKEY", "parameters": {"keys": ["ctrl", "a"]}},
        {"action_type": "HOTKEY", "parameters": {"keys": ["ctrl", "c"]}},
        {"action_type": "PRESS", "parameters": {"key": "end"}},
        {"action_type": "HOTKEY", "parameters": {"keys": ["ctrl", "v"]}},
        {"action_type": "KEY_DOWN", "parameters": {"key": "shift"}},
        {"action_type": "PRESS", "parameters": {"key": "q"}},
        {"action_type": "KEY_UP", "parameters": {"key": "shift"}},
        {"action_type": "PRESS", "parameters": {"key": "enter"}},
    ]
    calls: list[Call] = [("python", "execute_action", [action], {}) for action in actions]
    answers = await client.run(*calls, *(("python", "execute_action", [word], {}) for word in ("WAIT", "FAIL", "DONE")))
    assert answers == [{"value": None}] * len(answers)
    assert await client.output("cat /tmp/typed") == 'it\'s <a> "Test" \\ ünïit\'s <a> "Test" \\ ünïQ\n'


async def served(content: bytes) -> asyncio.Server:
    """A web server of this host that answers everything with `content`."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(content) + content)
        await writer.drain()
        writer.close()

    return await asyncio.start_server(answer, "127.0.0.1", 0)


@asynccontextmanager
async def web_file(content: bytes) -> AsyncIterator[str]:
    """An address under which this host serves a file."""
    async with await served(content) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/file.bin"


async def check_download(client: Client) -> None:
    content = os.urandom(3_000_000)
    async with web_file(content) as url:
        await client.setup(("download", {"files": [{"url": url, "path": "/home/user/new/deep/file.bin"}]}))
    assert await client.lease.read_file("/home/user/new/deep/file.bin") == content
    assert await client.output("stat -c %U:%a /home/user/new/deep/file.bin /home/user/new") == "user:644\nuser:755\n"


async def check_execute(client: Client) -> None:
    command = "echo {CLIENT_PASSWORD} | sudo -S sh -c 'echo {SCREEN_WIDTH_HALF} > /root/half; cat /root/half'"
    await client.setup(("execute", {"command": command, "shell": True, "stdout": "half.txt"}))
    assert (client.cache_dir / "half.txt").read_text() == "960\n"
    await client.output("(sleep 1; touch /tmp/done) >/dev/null 2>&1 &")
    await client.setup(("execute", {"command": ["test", "-e", "/tmp/done"], "until": {"returncode": 0}}))
    await client.output("test -e /tmp/done")


async def check_command(client: Client) -> None:
    await client.setup(("command", {"command": ["touch", "/tmp/commanded"]}))
    await client.output("test -e /tmp/commanded")


async def check_launch(client: Client) -> None:
    await client.setup(("launch", {"command": ["sh", "-c", "sleep 1; touch /tmp/launched; sleep 60"]}))
    await client.setup(("execute", {"command": ["test", "-e", "/tmp/launched"], "until": {"returncode": 0}}))


async def check_windows(client: Client) -> None:
    await client.output("echo hello > /home/user/note.txt")
    await client.setup(
        ("open", {"path": "/home/user/note.txt"}),
        ("launch", {"command": ["lxterminal", "--title=Second"]}),
        ("sleep", {"seconds": 2}),
        ("activate_window", {"window_name": "note.txt"}),
    )
    assert "note.txt" in (await client.titles())[-1]
    await client.setup(("activate_window", {"window_name": "lxterminal.Lxterminal", "strict": True, "by_class": True}))
    assert (await client.titles())[-1] == "Second"
    await client.setup(("close_window", {"window_name": "Second", "strict": True}), ("sleep", {"seconds": 1}))
    assert "Second" not in await client.titles()


async def check_history(client: Client) -> None:
    empty = sqlite3.connect(client.cache_dir / "history_new.sqlite")
    empty.execute(
        "CREATE TABLE urls (id INTEGER PRIMARY KEY, url, title, visit_count, typed_count, last_visit_time, hidden)"
    )
    empty.execute(
        "CREATE TABLE visits (id INTEGER PRIMARY KEY, url, visit_time, from_visit, transition, segment_id, visit_duration)"
    )
    empty.commit()
    empty.close()
    visit = {"url": "https://a.example/", "title": "A", "visit_time_from_now_in_seconds": 60}
    await client.setup(("update_browse_history", {"history": [visit]}))
    content = await client.lease.read_file("/home/user/.config/google-chrome/Default/History")
    assert content is not None
    assert b"https://a.example/" in content


async def check_others(client: Client) -> None:
    (client.cache_dir / "local").write_bytes(b"local")
    await client.setup(("upload_file", {"files": [{"local_path": str(client.cache_dir / "local"), "path": "/tmp/up"}]}))
    assert await client.lease.read_file("/tmp/up") == b"local"
    condition = {"command_success": "test -e /tmp/verified"}
    command = "(sleep 1; touch /tmp/verified) >/dev/null 2>&1 &"
    await client.setup(("execute_with_verification", {"command": command, "verification": condition, "shell": True}))
    await client.output("test -e /tmp/verified")


CHECKS = {
    "download": check_download,
    "execute": check_execute,
    "command": check_command,
    "launch": check_launch,
    "open": check_windows,
    "activate_window": check_windows,
    "close_window": check_windows,
    "sleep": check_windows,
    "update_browse_history": check_history,
    "upload_file": check_others,
    "execute_with_verification": check_others,
}
"""By type of step: what it must do. Several types are shown by one check."""


@pytest.mark.parametrize("check", list(dict.fromkeys(CHECKS.values())), ids=lambda check: check.__name__)
async def test_set_up_steps(client: Client, check: Any) -> None:
    await check(client)


@cache
def steps_of_tasks() -> list[dict[str, Any]]:
    """All set-up steps of OSWorld's tasks, those before the evaluation too; skips the test where the tasks are not there."""
    place = os.environ.get("DART_OSWORLD_TASKS")
    if not place:
        pytest.skip("DART_OSWORLD_TASKS does not name a directory of OSWorld's examples")
    steps = []
    for path in sorted(Path(place).glob("*/*.json")):
        task = json.loads(path.read_text(encoding="utf-8"))
        steps += [*task.get("config", []), *(task["evaluator"].get("postconfig") or [])]
    assert len(steps) > 1000
    return steps


def test_every_type_of_step_of_the_tasks_has_a_check() -> None:
    assert {step["type"] for step in steps_of_tasks()} <= CHECKS.keys() | LEFT_OUT.keys()


@pytest.mark.parametrize("kind", sorted(LEFT_OUT))
def test_steps_that_this_desktop_cannot_carry_out(kind: str) -> None:
    pytest.skip(LEFT_OUT[kind])


async def test_every_pyautogui_program_of_the_tasks_runs(client: Client) -> None:
    programs = {
        json.dumps(step["parameters"]["command"])
        for step in steps_of_tasks()
        if step["type"] in ("execute", "command") and "pyautogui" in json.dumps(step["parameters"]["command"])
    }
    # Waiting for an application that is not there shows nothing.
    commands = [
        json.loads(re.sub(r"time\.sleep\([\d.]+\)", "time.sleep(0.01)", program)) for program in sorted(programs)
    ]
    answers = await client.run(
        *(
            ("setup", "_execute_setup", [command], {"stderr": f"{number}.err", "shell": isinstance(command, str)})
            for number, command in enumerate(commands)
        )
    )
    assert answers == [{"value": None}] * len(commands)
    said = {str(commands[number]): (client.cache_dir / f"{number}.err").read_text() for number in range(len(commands))}
    assert not {command: text for command, text in said.items() if text.strip()}
    assert len(commands) > 20
