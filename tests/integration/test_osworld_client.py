"""OSWorld's own client code, unchanged, on a live desktop of each provider: every controller method and every type of setup step that
its tasks use.

The client is installed apart (`make osworld-client`), runs in its own interpreter and reaches the desktop through the lease's tunnels to
port 5000 and to the browser's port. The tasks' steps are those of OSWorld's own data (`osworld_data`).
The browser has no network: a server inside the desktop plays the web. Virtual machines are tried without the browser: emulated, they have
the image `basic` alone. Each test tells what it showed as properties, from which `python -m benchmarks osworld_client` makes its record.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sqlite3
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import live_host
import osworld_data
import pytest
from osworld_client import CLIENT, DEBUGGING_PORT, OSWORLD_PORT, Call, Client, driver
from served_farm import served_farm

from dart_envs.farm.client import AsyncFarmClient
from dart_server.wire import DesktopShape

pytestmark = pytest.mark.timeout(900)
CONTAINERS = [pytest.param("runc", marks=pytest.mark.desktop), pytest.param("docker", marks=pytest.mark.docker)]
MACHINES = [pytest.param("libvirt", marks=[pytest.mark.libvirt, pytest.mark.slow])]
SHOWN_S = 120.0
LOG_INS = 5
"""The client gives a page three seconds to show its form, says nothing when it does not, and an emulated browser is slower at first."""
TYPED = "until test -s /tmp/typed; do sleep 0.1; done"
SHAPE = DesktopShape(resolution=(1024, 768))
BROWSER_SHAPE = DesktopShape(image="desktop", resolution=(1280, 800))
WEB = Path(__file__).resolve().parents[1] / "support" / "stand_in_web.py"
LEFT_OUT = {
    "googledrive": "this step speaks to Google Drive alone, never to a desktop: a Google account and the internet are needed"
}
"""Types of steps that are not tested, with the reason."""


@pytest.fixture(scope="module", params=[*CONTAINERS, *MACHINES])
def farm_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if not CLIENT.exists():
        pytest.skip(f"OSWorld's client is not installed in {CLIENT.parent.parent}: run `make osworld-client`")
    desktops = 1 if request.param == "libvirt" else 4
    with served_farm(tmp_path_factory.mktemp("osworld"), provider=request.param, max_desktops=desktops) as url:
        yield url


@pytest.fixture(scope="module")
def driven(farm_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The farm, and the interpreter with OSWorld's client."""
    with driver(tmp_path_factory.mktemp("driver")) as path:
        yield farm_url, path


@asynccontextmanager
async def leased(driven: tuple[str, Path], shape: DesktopShape, cache_dir: Path) -> AsyncIterator[Client]:
    farm_url, path = driven
    async with (
        await AsyncFarmClient.connect(farm_url) as farm,
        await farm.lease(shape, ttl_s=120.0, wait_s=400.0) as lease,
        lease.tunnel(OSWORLD_PORT) as address,
        lease.tunnel(DEBUGGING_PORT) as debugging,
    ):
        yield Client(path, lease, address, debugging, cache_dir)


@pytest.fixture
async def client(driven: tuple[str, Path], tmp_path: Path) -> AsyncIterator[Client]:
    async with leased(driven, SHAPE, tmp_path) as client:
        yield client


@pytest.fixture
async def browser(driven: tuple[str, Path], tmp_path: Path) -> AsyncIterator[Client]:
    live_host.require_image(BROWSER_SHAPE.image)
    async with leased(driven, BROWSER_SHAPE, tmp_path) as client:
        yield client


@pytest.mark.desktop
@pytest.mark.skipif(not CLIENT.exists(), reason="OSWorld's client is not installed: run `make osworld-client`")
def test_the_client_is_imported_as_its_users_import_it() -> None:
    """In one interpreter with this project's client, as the documentation shows it, and with the metrics that the setup imports."""
    program = (
        "from desktop_env.controllers.python import PythonController\n"
        "from desktop_env.controllers.setup import SetupController\n"
        "from desktop_env.evaluators.metrics import compare_image_text\n"
        "from dart_envs.farm.client import AsyncFarmClient\n"
        "print(PythonController.__module__, SetupController.__module__)\n"
    )
    done = subprocess.run([str(CLIENT), "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (
        0,
        "desktop_env.controllers.python desktop_env.controllers.setup\n",
    ), done.stderr[-2000:]


async def test_the_tunnel_leads_to_osworlds_paths_only(client: Client) -> None:
    async def status(target: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(*client.address)
        writer.write(b"GET " + target + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = await reader.read()
        writer.close()
        return answer.split()[1]

    assert await status(b"/platform") == b"200"
    assert await status(b"/v1/health") == b"404"


async def shown(client: Client, title: str) -> None:
    """Wait until a window with this in its title is there."""
    async with asyncio.timeout(SHOWN_S):
        while not any(title in one for one in await client.titles()):  # noqa: ASYNC110 - what is waited for is outside this process
            await asyncio.sleep(0.2)


async def test_every_method_of_the_python_controller(
    client: Client, tmp_path: Path, record_property: pytest.RecordProperty
) -> None:
    tested = set()

    async def call(method: str, *arguments: Any) -> Any:
        tested.add(method)
        return await client.python(method, *arguments)

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
    await client.setup(("launch", {"command": ["zenity", "--info", "--width=300", "--title=Zenity box"]}))
    await shown(client, "Zenity box")
    size = await call("get_vm_window_size", "Zenity")
    assert size["width"] >= 300
    assert size["height"] > 0
    await client.output("python3 -c \"from PIL import Image; Image.new('RGB', (9, 9)).save('/tmp/w.png')\"")
    await client.setup(("change_wallpaper", {"path": "/tmp/w.png"}))
    assert (await call("get_vm_wallpaper")).startswith(b"\x89PNG")
    film = tmp_path / "film.mp4"
    await call("start_recording")
    await call("execute_action", {"action_type": "MOVE_TO", "parameters": {"x": 300, "y": 200}})
    await call("end_recording", str(film))
    assert film.read_bytes()[4:8] == b"ftyp"
    (listed,) = await client.run(("python", "__dir__", [], {}))
    fields = {"http_server", "pkgs_prefix", "retry_interval", "retry_times", "vm_ip"}
    assert {name for name in listed["value"] if not name.startswith("_")} - fields == tested
    record_property("controller_methods", " ".join(sorted(tested)))


async def test_every_action_reaches_the_desktop(client: Client, record_property: pytest.RecordProperty) -> None:
    ask = "zenity --entry --title Field > /tmp/typing 2>/dev/null; mv /tmp/typing /tmp/typed"
    await client.setup(("launch", {"command": ask, "shell": True}))
    await shown(client, "Field")
    await client.setup(("activate_window", {"window_name": "Field"}))
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
    record_property(
        "actions", " ".join(sorted({str(one["action_type"]) for one in actions} | {"WAIT", "FAIL", "DONE"}))
    )
    ended = "timeout 20 sh -c 'until test -e /tmp/typed; do sleep 0.1; done; cat /tmp/typed'"
    assert await client.output(ended) == 'it\'s <a> "Test" \\ ünïit\'s <a> "Test" \\ ünïQ\n'


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
    )
    await shown(client, "note.txt")
    await shown(client, "Second")
    await client.setup(("activate_window", {"window_name": "note.txt"}))
    assert "note.txt" in (await client.titles())[-1]
    await client.setup(("activate_window", {"window_name": "lxterminal.Lxterminal", "strict": True, "by_class": True}))
    assert (await client.titles())[-1] == "Second"
    await client.setup(("close_window", {"window_name": "Second", "strict": True}))
    async with asyncio.timeout(SHOWN_S):
        while "Second" in await client.titles():  # noqa: ASYNC110 - what is waited for is outside this process
            await asyncio.sleep(0.2)


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


async def check_tabs(client: Client) -> None:
    await browse(client)
    await client.setup(("chrome_open_tabs", {"urls_to_open": ["https://www.tripadvisor.com", "https://arxiv.org/a"]}))
    assert sorted(await tabs(client)) == ["https://arxiv.org/a", "https://www.tripadvisor.com/"]
    assert any("arxiv.org/a" in title for title in await client.titles())
    await client.setup(("chrome_close_tabs", {"urls_to_close": ["https://www.tripadvisor.com"]}))
    assert await tabs(client) == ["https://arxiv.org/a"]


async def check_log_in(client: Client) -> None:
    await browse(client)
    settings = client.cache_dir / "settings.json"
    settings.write_text(json.dumps({"email": "a@example.org", "password": "s3cret"}))
    for _ in range(LOG_INS):
        await client.setup(("login", {"settings_file": str(settings), "platform": "googledrive"}))
        if (await client.lease.exec(["timeout", "5", "sh", "-c", TYPED])).returncode == 0:
            break
    assert json.loads(await client.output("cat /tmp/typed")) == ["a@example.org", "s3cret"]


async def browse(client: Client) -> None:
    """The browser as the tasks start it, with a web inside the desktop."""
    await client.lease.write_file("/tmp/web.py", WEB.read_bytes())
    new_key = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=web"
    await client.output(f"{new_key} -keyout /tmp/key -out /tmp/certificate 2>&1; cat /tmp/key >> /tmp/certificate")
    await client.lease.exec(["python3", "/tmp/web.py", "8443", "/tmp/certificate", "/tmp/typed"], detach=True)
    no_network = ["--host-resolver-rules=MAP * 127.0.0.1:8443", "--ignore-certificate-errors"]
    await client.setup(
        ("launch", {"command": ["google-chrome", "--remote-debugging-port=1337", *no_network]}),
        ("launch", {"command": ["socat", "tcp-listen:9222,fork", "tcp:localhost:1337"]}),
    )


async def tabs(client: Client) -> list[str]:
    """Addresses of the browser's open tabs, asked through the tunnel to its debugging port."""
    reader, writer = await asyncio.open_connection(*client.debugging)
    writer.write(b"GET /json/list HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    found = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
    assert found, head
    listed = json.loads(await reader.readexactly(int(found[1])))
    writer.close()
    return [one["url"] for one in listed if one["type"] == "page"]


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
BROWSER_CHECKS = {"chrome_open_tabs": check_tabs, "chrome_close_tabs": check_tabs, "login": check_log_in}
"""The same for the types that need the browser of the image `desktop`; Google's log-in form is played by a page with the same parts."""


def types_of(check: Any, checks: dict[str, Any]) -> str:
    """The types of steps that a check shows."""
    return " ".join(kind for kind in checks if checks[kind] is check)


@pytest.mark.parametrize("check", list(dict.fromkeys(CHECKS.values())), ids=lambda check: check.__name__)
async def test_set_up_steps(client: Client, check: Any, record_property: pytest.RecordProperty) -> None:
    await check(client)
    record_property("step_types", types_of(check, CHECKS))


@pytest.mark.parametrize("check", list(dict.fromkeys(BROWSER_CHECKS.values())), ids=lambda check: check.__name__)
async def test_set_up_steps_in_the_browser(browser: Client, check: Any, record_property: pytest.RecordProperty) -> None:
    await check(browser)
    record_property("step_types", types_of(check, BROWSER_CHECKS))


@cache
def steps_of_tasks() -> list[dict[str, Any]]:
    """All setup steps of OSWorld's tasks, those before the evaluation too; skips the test where the tasks are not there."""
    steps = []
    for path in sorted((osworld_data.data() / "examples").glob("*/*.json")):
        task = json.loads(path.read_text(encoding="utf-8"))
        steps += [*task.get("config", []), *(task["evaluator"].get("postconfig") or [])]
    assert len(steps) > 1000
    return steps


def test_every_type_of_step_of_the_tasks_has_a_check() -> None:
    assert {step["type"] for step in steps_of_tasks()} <= {*CHECKS, *BROWSER_CHECKS, *LEFT_OUT}


@pytest.mark.slow
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
