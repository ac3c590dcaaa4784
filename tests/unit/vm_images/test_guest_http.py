"""The agent's HTTP side, against a scripted desktop: forms, errors, order, limits."""

import asyncio
import io
import json
import os
import signal
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import WSMsgType
from dart_guest import events
from dart_guest.a11y import WalkFailed
from guest_bench import Bench, running_agent, unpack, walker_script


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with running_agent() as made:
        yield made


async def test_health_tells_a_live_and_a_dead_session(bench: Bench) -> None:
    bench.agent.ready = True
    status, health = await bench.get("/v1/health")
    assert (status, health["ready"], health["session_alive"], health["resolution"]) == (200, True, True, [2, 1])
    assert health["protocol"] == 1
    assert health["held"] == ["shift"]
    bench.desktop.down = True
    status, health = await bench.get("/v1/health")
    assert (status, health["ready"], health["session_alive"], health["resolution"]) == (200, False, False, [2, 1])


async def test_a_step_answers_with_header_and_pixels(bench: Bench) -> None:
    body = {"seq": 9, "events": [{"type": "move", "x": 1, "y": 0}], "frame": {"encoding": "raw"}}
    async with bench.client.post("/v1/step", json=body) as response:
        header, payload = unpack(await response.read())
    assert (header["seq"], header["width"], header["height"], header["encoding"]) == (9, 2, 1, "raw")
    assert payload == b"\xff\0\0\xff\0\0"
    assert bench.desktop.performed[0].events == (events.Move(1, 0),)


async def test_a_bad_step_performs_nothing(bench: Bench) -> None:
    body = {"events": [{"type": "move", "x": 1, "y": 0}, {"type": "key_down", "key": "nokey"}]}
    assert (await bench.post("/v1/step", body)) == (
        400,
        {
            "error": "unknown_key",
            "detail": "event 1: unknown key name 'nokey': use a pyautogui key name or one character",
        },
    )
    assert bench.desktop.performed == []


async def test_a_dead_session_is_503(bench: Bench) -> None:
    bench.desktop.down = True
    status, body = await bench.post("/v1/step", {})
    assert (status, body["error"]) == (503, "session_down")


async def test_a_channel_that_asks_for_it_is_sent_the_picture_ahead_of_the_answer(bench: Bench) -> None:
    red = bytes([255, 0, 0] * 2)
    bench.desktop.offers = [red, b"what was on the screen before"]
    async with bench.client.ws_connect("/v1/channel?early=1") as channel:
        for number in (1, 2, 3):
            await channel.send_str(json.dumps({"seq": number, "frame": {"encoding": "raw"}}))
        answers = [unpack(await channel.receive_bytes()) for _ in range(5)]
    told = [(header["seq"], header.get("draft", False), header.get("early", False), body) for header, body in answers]
    assert told == [
        (1, True, False, red),
        (1, False, True, b""),
        (2, True, False, b"what was on the screen before"),
        (2, False, False, red),
        (3, False, False, red),
    ]
    async with bench.client.ws_connect("/v1/channel") as channel:
        bench.desktop.offers = [red]
        await channel.send_str('{"seq": 4, "frame": {"encoding": "raw"}}')
        header, body = unpack(await channel.receive_bytes())
    assert (header["seq"], body) == (4, red)


async def test_the_channel_keeps_order_and_survives_errors(bench: Bench) -> None:
    async with bench.client.ws_connect("/v1/channel") as channel:
        await channel.send_str('{"seq": 1, "frame": {"encoding": "none"}}')
        await channel.send_str('{"seq": 2, "events": [{"type": "zap"}]}')
        await channel.send_str("{")
        await channel.send_bytes(b"x")
        await channel.send_str('{"seq": 3, "frame": {"encoding": "raw"}}')
        answers = [unpack(await channel.receive_bytes()) for _ in range(5)]
        bench.desktop.down = True
        await channel.send_str('{"seq": 4}')
        answers.append(unpack(await channel.receive_bytes()))
    told = [(header["seq"], header.get("error"), header.get("status")) for header, _ in answers]
    assert told == [
        (1, None, None),
        (2, "bad_request", 400),
        (None, "bad_request", 400),
        (None, "bad_request", 400),
        (3, None, None),
        (4, "session_down", 503),
    ]


async def test_unknown_paths_and_bodies_use_the_envelope(bench: Bench) -> None:
    assert (await bench.get("/v1/nothing"))[1]["error"] == "not_found"
    async with bench.client.post("/v1/step", data=b"{nope") as response:
        assert response.status == 400
        assert (await response.json())["error"] == "bad_request"


async def test_exec_returns_streams_and_code(bench: Bench) -> None:
    program = "import sys; print(sys.stdin.read()[::-1]); print('e', file=sys.stderr); sys.exit(3)"
    status, body = await bench.post("/v1/exec", {"argv": ["python3", "-c", program], "stdin": "äb"})
    assert status == 200
    assert (body["returncode"], body["stdout"], body["stderr"], body["timed_out"]) == (3, "bä\n", "e\n", False)


def ended(pid: int) -> bool:
    """Whether a process is gone or waits to be collected."""
    try:
        return " Z " in Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return True


async def test_exec_ends_the_whole_group_on_time_out(bench: Bench) -> None:
    script = "sleep 30 & echo $!; wait"
    status, body = await bench.post("/v1/exec", {"argv": ["sh", "-c", script], "timeout_s": 0.3})
    assert (status, body["timed_out"], body["returncode"]) == (200, True, -9)
    child = int(body["stdout"])
    for _ in range(100):
        if ended(child):
            break
        await asyncio.sleep(0.01)
    else:
        pytest.fail("the child of a timed-out program still runs")


async def test_exec_of_a_missing_program_is_127(bench: Bench) -> None:
    _, body = await bench.post("/v1/exec", {"argv": ["/nonexistent"]})
    assert body["returncode"] == 127
    assert "/nonexistent" in body["stderr"]


@pytest.mark.parametrize(
    "body",
    [{}, {"argv": []}, {"argv": "ls"}, {"argv": ["ls"], "user": "bob"}, {"argv": ["ls"], "timeout_s": 0},
     {"argv": ["ls"], "env": {"A": 1}}, {"argv": ["ls"], "stdin": 4}, {"argv": ["ls"], "shell": True}],
)  # fmt: skip
async def test_exec_refuses_what_it_does_not_know(bench: Bench, body: dict[str, object]) -> None:
    status, answer = await bench.post("/v1/exec", body)
    assert (status, answer["error"]) == (400, "bad_request")


async def test_files_come_back_as_they_went_in(bench: Bench, tmp_path: Path) -> None:
    path, content = tmp_path / "new" / "folder" / "ä b", os.urandom(700_000)
    async with bench.client.put("/v1/files", params={"path": str(path), "mode": "0600"}, data=content) as response:
        assert await response.json() == {"nbytes": len(content)}
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["ä b"]
    async with bench.client.get("/v1/files", params={"path": str(path)}) as response:
        assert (response.status, response.content_length) == (200, len(content))
        assert await response.read() == content


async def test_only_regular_files_are_read(bench: Bench, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for name, status, code in (
        ("fifo", 400, "not_regular_file"),
        ("", 400, "not_regular_file"),
        ("no", 404, "not_found"),
    ):
        async with bench.client.get("/v1/files", params={"path": f"{tmp_path}/{name}"}) as response:
            assert (response.status, (await response.json())["error"]) == (status, code)
    assert (await bench.get("/v1/files?path=relative"))[0] == 400


async def test_a_file_that_cannot_be_written_leaves_nothing(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    async with bench.client.put("/v1/files", params={"path": str(tmp_path / "taken")}, data=b"x") as response:
        assert response.status == 400
    assert os.listdir(tmp_path) == ["taken"]


async def test_quiesce_waits_for_the_step_and_closes_channels(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    # Outside a desktop every zombie of the machine is in sight.
    monkeypatch.setattr("dart_guest.lifecycle.zombies", list)
    entered, go_on = threading.Event(), threading.Event()

    def slow() -> None:
        entered.set()
        go_on.wait(5)

    bench.desktop.before_step = slow
    async with bench.client.ws_connect("/v1/channel") as channel:
        await channel.send_str('{"seq": 1, "frame": {"encoding": "none"}}')
        await asyncio.to_thread(entered.wait, 5)
        assert await bench.post("/v1/quiesce", {"timeout_s": 0.05}) == (
            409,
            {"error": "busy", "detail": "a step or a program is still running"},
        )
        quiesce = asyncio.create_task(bench.post("/v1/quiesce", {"timeout_s": 5}))
        go_on.set()
        assert unpack(await channel.receive_bytes())[0]["seq"] == 1
        assert (await channel.receive()).type in (WSMsgType.CLOSE, WSMsgType.CLOSED)
        assert channel.close_code == 1001
        status, answer = await quiesce
    assert status == 200
    assert (answer["ok"], answer["zombies"]) == (True, [])
    assert bench.desktop.released == 1


async def test_every_restore_gets_its_own_boot_id(bench: Bench) -> None:
    before = (await bench.get("/v1/health"))[1]["boot_id"]
    body = {"entropy": "ab" * 32, "machine_id": "cd" * 16, "realtime_s": 0}
    first = (await bench.post("/v1/restored", body))[1]
    second = (await bench.post("/v1/restored", body))[1]
    assert len({before, first["boot_id"], second["boot_id"]}) == 3
    assert (first["restores"], second["restores"]) == (1, 2)
    assert first["clock_offset_s"] > 1e9
    assert (await bench.post("/v1/restored", body | {"entropy": "xy"}))[0] == 400


async def test_the_walker_is_used_once_and_the_next_stands_ready(bench: Bench, tmp_path: Path) -> None:
    program = 'import os, sys\nform, limit = sys.stdin.readline().split()\nprint(\'{"elements": [], "pid": %d}\' % os.getpid())'
    bench.agent.walker.package_dir = walker_script(tmp_path, program)
    first = (await bench.get("/v1/a11y"))[1]["pid"]
    waiting = bench.agent.walker.ready
    assert waiting is not None
    second = (await bench.get("/v1/a11y"))[1]["pid"]
    assert (second, first != second) == (waiting.pid, True)


async def test_a_walker_that_ended_while_it_stood_ready_costs_no_walk(bench: Bench, tmp_path: Path) -> None:
    walker = bench.agent.walker
    walker.package_dir = walker_script(tmp_path, "import sys\nsys.stdin.readline()\nprint('{\"elements\": []}')")
    assert await walker.walk("json", 5.0) == {"elements": []}
    ready = walker.ready
    assert ready is not None
    os.kill(ready.pid, signal.SIGKILL)
    assert ready.returncode is None, "nobody has noticed yet"
    assert await walker.walk("json", 5.0) == {"elements": []}
    walker.package_dir = walker_script(tmp_path / "other", "raise SystemExit(3)")
    await walker.stop()
    with pytest.raises(WalkFailed, match="it ended with 3 and no word"):
        await walker.walk("json", 5.0)


@pytest.mark.parametrize(
    ("program", "code"), [("import time; time.sleep(60)", "timeout"), ("raise SystemExit(3)", "session_down")]
)
async def test_a_walker_that_fails_is_an_error_and_leaves_no_process(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, code: str
) -> None:
    monkeypatch.setattr("dart_guest.a11y.GRACE_S", 0.1)
    bench.agent.walker.package_dir = walker_script(tmp_path, program)
    status, body = await bench.get("/v1/a11y?timeout_s=0.2")
    assert (status, body["error"]) == (503, code)


async def test_osworld_execute_forms(bench: Bench) -> None:
    status, body = await bench.post("/execute", {"command": "echo hi; exit 3", "shell": True})
    assert (status, body) == (200, {"status": "success", "output": "hi\n", "error": "", "returncode": 3})
    _, body = await bench.post("/setup/execute", {"command": "echo 'a b' c"})
    assert body["output"] == "a b c\n"
    _, body = await bench.post("/execute", {"command": ["printf", "%s", "~/x"]})
    assert body["output"] == "/home/user/x"
    status, body = await bench.post("/execute", {"command": "/nonexistent"})
    assert (status, body["status"]) == (500, "error")
    status, body = await bench.post("/run_bash_script", {"script": "echo out; echo err >&2; exit 4"})
    assert (status, body) == (200, {"status": "error", "output": "out\nerr\n", "error": "", "returncode": 4})
    status, body = await bench.post("/run_python", {"code": "print(6 * 7)"})
    assert (status, body["output"], body["return_code"]) == (200, "42\n", 0)


async def test_osworld_files(bench: Bench, tmp_path: Path) -> None:
    form = {"file_path": str(tmp_path / "sub" / "f.txt"), "file_data": io.BytesIO(b"DATA")}
    async with bench.client.post("/setup/upload", data=form) as response:
        assert await response.text() == "File Uploaded: 4 bytes"
    async with bench.client.post("/file", data={"file_path": str(tmp_path / "sub" / "f.txt")}) as response:
        assert await response.read() == b"DATA"
    async with bench.client.post("/file", data={"file_path": str(tmp_path / "none")}) as response:
        assert (response.status, "error" in await response.json()) == (404, True)
    _, body = await bench.post("/list_directory", {"path": str(tmp_path)})
    tree = body["directory_tree"]
    assert tree["children"] == [
        {"type": "directory", "name": "sub", "children": [{"type": "file", "name": "f.txt"}]},
    ]
