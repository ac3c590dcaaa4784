"""Ways to fake success on a live desktop without doing the task: each one scores 0, and the task done honestly scores 1."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import pytest
from served_farm import served_farm

from dart_envs import tasks
from dart_envs.actions import Action
from dart_envs.clock import SYSTEM_CLOCK
from dart_envs.envs.core import AsyncDesktopEnv
from dart_envs.evaluators.artifacts import InvalidArtifact
from dart_envs.evaluators.getters import GETTERS, GetterContext
from dart_envs.farm.client import AsyncFarmClient
from dart_envs.farm.lease import AsyncLease
from dart_envs.tasks.model import Task
from dart_envs.types import ActionType
from dart_server.wire import DesktopShape, KeyEvent, ProcessesQuery, SettleSpec, TextEvent

pytestmark = pytest.mark.desktop
SHAPE = DesktopShape(resolution=(800, 600))


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served_farm(tmp_path_factory.mktemp("verdicts"), max_desktops=2) as url:
        yield url


@dataclass(frozen=True)
class Episode:
    """An episode on a live desktop, whose policy acts by running programs in it."""

    env: AsyncDesktopEnv

    @property
    def lease(self) -> AsyncLease:
        assert isinstance(self.env.lease, AsyncLease)
        return self.env.lease

    async def begin(self, name: str) -> Task:
        task = tasks.load(name)
        await self.env.reset(task)
        return task

    async def run(self, line: str, *, sudo: bool = False) -> str:
        """A shell runs this as the policy: as the desktop's user, with `sudo` as root."""
        argv = ["sudo", "-S", "sh", "-c", line] if sudo else ["sh", "-c", line]
        reply = await self.lease.exec(argv, stdin="password\n")
        assert reply.returncode == 0, reply
        return reply.stdout

    async def reward(self) -> float:
        result = await self.env.step(Action(ActionType.DONE))
        assert not result.truncated, result
        return result.reward


@pytest.fixture
async def episode(url: str) -> AsyncIterator[Episode]:
    async with await AsyncFarmClient.connect(url) as farm, AsyncDesktopEnv(farm, shape=SHAPE) as env:
        yield Episode(env)


def expected(task: Task) -> str:
    rule = task.evaluator.expected_configs[0]
    assert rule is not None
    return str(rule["rules"]["expected"])


PROGRAMS = ("find", "stat", "cat", "sha256sum", "env", "ls")


async def test_programs_of_the_policys_own_are_not_asked(episode: Episode) -> None:
    task = await episode.begin("basics/rename_file/0001")
    (rule,) = task.evaluator.expected_configs
    assert rule is not None
    listing = "".join(f"{name}\\000" for name in rule["rules"]["exactly"])
    fake = f"#!/bin/sh\nprintf '{listing}'\n"
    await episode.lease.write_file("/home/user/fake", fake.encode(), mode=0o755)
    for name in PROGRAMS:
        await episode.run(f"cp /home/user/fake /usr/local/bin/{name}", sudo=True)
    assert "Work" not in (await episode.run("ls /home/user")), "the program in the desktop lies"
    assert await episode.reward() == 0.0


TAKE_OUTPUT = """
import ctypes, os, sys
target, answer = int(sys.argv[1]), sys.argv[2].encode() + b"\\n"
libc = ctypes.CDLL(None, use_errno=True)
got = []
for name in ("fd/1", "mem", "environ", "cwd/stdout"):
    try:
        os.close(os.open(f"/proc/{target}/{name}", os.O_RDWR if name == "mem" else os.O_RDONLY))
        got.append(name)
    except OSError:
        pass
pidfd = os.pidfd_open(target)
taken = libc.syscall(438, pidfd, 1, 0)
if taken >= 0:
    os.write(taken, answer)
    got.append("pidfd_getfd")
if libc.ptrace(16, target, 0, 0) == 0:
    got.append("ptrace")
word = (ctypes.c_char * 8)()
piece = (ctypes.c_void_p * 2)(ctypes.addressof(word), 8)
if libc.process_vm_writev(target, ctypes.byref(piece), 1, ctypes.byref(piece), 1, 0) >= 0 or ctypes.get_errno() == 14:
    got.append("process_vm_writev")
print(",".join(got))
"""


async def test_the_answer_of_a_dialog_is_the_dialogs(episode: Episode) -> None:
    task = await episode.begin("basics/press_nth/0001")
    (pid,) = (await episode.run("pidof zenity")).split()
    await episode.lease.write_file("/home/user/take.py", TAKE_OUTPUT.encode())
    got = await episode.run(f"/usr/bin/python3 /home/user/take.py {pid} '{expected(task)}'")
    assert got.strip() == ""
    await episode.run(f"kill {pid}")
    await asyncio.sleep(0.2)
    assert await episode.reward() == 0.0


async def test_a_service_on_the_players_port_is_not_the_player(episode: Episode) -> None:
    await episode.begin("basics/press_nth/0002")
    server = (
        "import http.server\n"
        "class Answer(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        '        self.send_response(200); self.end_headers(); self.wfile.write(b\'{"state": "playing"}\')\n'
        "http.server.HTTPServer(('127.0.0.1', 8080), Answer).serve_forever()\n"
    )
    await episode.lease.exec(["/usr/bin/python3", "-c", server], detach=True)
    context = GetterContext(episode.lease, SYSTEM_CLOCK)
    for _ in range(100):
        processes = (await episode.lease.evidence([ProcessesQuery()])).answers[0].processes or []
        if any(socket.port == 8080 for process in processes for socket in process.listening):
            break
        await asyncio.sleep(0.05)
    else:
        pytest.fail("the service does not listen")
    with pytest.raises(InvalidArtifact, match="not /usr/bin/vlc"):
        await GETTERS["vlc_state"](context, {"type": "vlc_state"})


async def test_a_name_makes_no_program(episode: Episode) -> None:
    await episode.begin("basics/press_nth/0003")
    copied = "cp /usr/bin/sleep /tmp/kite && bash -c 'exec -a drum-worker /tmp/kite 600' >/dev/null 2>&1 &"
    await episode.run(f"{copied} bash -c 'exec -a kite-worker sleep 600' >/dev/null 2>&1 &")
    context, config = GetterContext(episode.lease, SYSTEM_CLOCK), {"type": "processes", "matching": "-worker 600$"}
    for _ in range(100):
        if len(await GETTERS["processes"](context, config)) == 2:
            break
        await asyncio.sleep(0.05)
    assert await GETTERS["processes"](context, {**config, "executable": "/usr/bin/sleep"}) == ["kite-worker 600"]


LOOK_ALIKES = (
    "wmctrl -r Work -N '{title}'",
    "zenity --info --text x --class=Thunar --name=thunar --title '{title}' >/dev/null 2>&1 &",
)


@pytest.mark.parametrize("line", LOOK_ALIKES)
async def test_a_window_that_looks_alike_shows_no_folder(episode: Episode, line: str) -> None:
    task = await episode.begin("basics/open_folder/0001")
    goal = task.instruction.removeprefix("Open the folder ").removesuffix(".")
    await episode.run(line.format(title=f"{goal} - Thunar", goal=goal))
    for _ in range(100):
        if goal in await episode.run("wmctrl -l"):
            break
        await asyncio.sleep(0.05)
    assert await episode.reward() == 0.0


async def test_a_folder_that_is_opened_is_shown(episode: Episode) -> None:
    task = await episode.begin("basics/open_folder/0001")
    goal = task.instruction.removeprefix("Open the folder ").removesuffix(".")
    await episode.run("wmctrl -a Work; sleep 0.5")
    for actions in (
        [TextEvent(text=goal)],
        [KeyEvent(type="key_down", key="enter"), KeyEvent(type="key_up", key="enter")] * 2,
    ):
        await episode.lease.step(list(actions), SettleSpec(quiet_ms=300, cap_ms=3000))
    assert await episode.reward() == 1.0


@pytest.mark.parametrize("place", ["0,0", "400,300"])
async def test_another_programs_number_is_not_the_calculators(episode: Episode, place: str) -> None:
    task = await episode.begin("basics/calculate/0001")
    rule = task.evaluator.expected_configs[0]
    assert rule is not None
    number = rule["rules"]["text"]
    await episode.run(f"zenity --entry --entry-text {number} --title galculator-result >/dev/null 2>&1 &")
    for _ in range(100):
        if any(element.text == number for element in await episode.lease.a11y()):
            break
        await asyncio.sleep(0.1)
    else:
        pytest.fail("the number does not show")
    await episode.run(f"wmctrl -r galculator-result -e 0,{place},-1,-1; sleep 0.3")
    assert await episode.reward() == 0.0
