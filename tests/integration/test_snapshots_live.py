"""What only real snapshots can show: nothing secret in them, a pause that is as long as is said, damage that is set aside."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from guest_insides import hold_in_memory, read_when_there, spelt
from served_farm import served_farm

from dart_envs.envs.core import AsyncDesktopEnv
from dart_envs.errors import FarmError
from dart_envs.farm.client import AsyncFarmClient
from dart_envs.farm.lease import AsyncLease
from dart_envs.tasks.model import parse_task
from dart_envs.types import Action, ActionType
from dart_server.hostd.storage import SHARED_MOUNT_POINT
from dart_server.wire import DesktopShape, ErrorCode, SnapshotState

pytestmark = pytest.mark.desktop
SHAPE = DesktopShape(resolution=(640, 400))
ANSWER = "ibex-quartz-73114-answer"
PLANTED_FILE, PLANTED_MEMORY = "heron-basalt-20931-file", "otter-gneiss-55102-memory"
CHUNK_BYTES = 1 << 24
DONE = Action(ActionType.DONE)


@pytest.fixture(params=["memory", "disk"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A farm's URL and its runtime directory; its snapshots in memory or on disk."""
    if os.geteuid() != 0:
        pytest.skip("only root can look into the helper's mounts")
    store = "/dev/shm" if request.param == "memory" else str(tmp_path)
    runtime = tmp_path / "run"
    runtime.mkdir()
    with served_farm(runtime, environment={"DART_SNAPSHOT_DIR": store}) as url:
        yield url, runtime


def stored(runtime: Path) -> Path:
    """The helper's tree of snapshots and layers, reached through its own mount namespace."""
    state = str(runtime / "hostd").encode()
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
        except OSError:
            continue
        if any(word.endswith(b"/dart-hostd") for word in words) and state in words:
            return entry / "root" / str(runtime / "hostd" / "live").lstrip("/")
    raise AssertionError("no helper runs")


def holding(top: Path, needles: dict[str, bytes]) -> dict[str, str]:
    """Which of the needles are in any file or name under `top`, and where."""
    found: dict[str, str] = {}
    overlap = max(map(len, needles.values()))
    for directory, _, names in os.walk(top):
        for name in names:
            path = os.path.join(directory, name)
            if not os.path.isfile(path) or os.path.islink(path):
                continue
            with open(path, "rb") as file:
                tail = os.fsencode(name) + b"\n"
                while chunk := file.read(CHUNK_BYTES):
                    window = tail + chunk
                    found |= {word: path for word, needle in needles.items() if needle in window}
                    tail = window[-overlap:]
    return found


async def test_no_key_token_or_answer_is_in_a_snapshot(place: tuple[str, Path]) -> None:
    url, runtime = place
    task = parse_task(
        {
            "id": "canary/0",
            "instruction": "Write the word.",
            "config": [{"type": "write_file", "parameters": {"path": "/home/user/n", "content": PLANTED_FILE}}],
            "evaluator": {
                "func": "exact_match",
                "result": {"type": "vm_command_line", "command": ["cat", "/home/user/n"]},
                "expected": {"type": "rule", "rules": {"expected": ANSWER}},
            },
        },
        name="canary",
    )
    key = (runtime / "farm.key").read_text().strip()
    async with await AsyncFarmClient.connect(url, key) as farm, AsyncDesktopEnv(farm, shape=SHAPE) as env:
        await env.reset(task)
        lease = env.lease
        assert isinstance(lease, AsyncLease)
        await hold_in_memory(lease, PLANTED_MEMORY)
        await env.step(Action(ActionType.CLICK, x=10, y=10))
        async with lease.tunnel(9):
            middle = await lease.snapshot("in the middle")
        last = await env.step(DONE)
        assert last.reward == 0.0
        await lease.snapshot("after the verdict")
        claim = await lease.acquire_setup("c" * 64)
        assert claim.grant is not None
        await lease.snapshot(publish_key="c" * 64, grant=claim.grant)
        kinds = sorted(view.kind for view in await farm.snapshots())
        assert kinds == ["booted", "setup", "setup", "user", "user"]
        secrets = {
            "API key": key,
            "lease token": lease.guest_headers()["X-Dart-Lease-Token"],
            "root of the tokens": (runtime / "farm.secret").read_text().strip(),
            "grant": claim.grant,
            "answer": ANSWER,
        }
        needles = {word: raw for name, secret in secrets.items() for word, raw in spelt(name, secret).items()}
        controls = {"file": PLANTED_FILE.encode(), "memory": PLANTED_MEMORY.encode()}
        found: dict[str, str] = {}
        for part in ("s", "l"):
            found |= await asyncio.to_thread(holding, stored(runtime) / part, needles | controls)
        memory = await asyncio.to_thread(holding, stored(runtime) / "s" / middle.snapshot_id, controls)
    assert set(found) == {"file", "memory"}, found
    assert "memory" in memory, "a text that only a process knows is found in its memory image"


TICKING = (
    "import os, time\n"
    "last = time.monotonic(); worst = 0.0\n"
    "open('/tmp/ticking', 'w')\n"
    "while not os.path.exists('/tmp/enough'):\n"
    " time.sleep(0.002); now = time.monotonic(); worst = max(worst, now - last); last = now\n"
    "open('/tmp/new', 'w').write(repr(worst)); os.rename('/tmp/new', '/tmp/worst')\n"
)


async def test_the_pause_that_is_told_is_the_pause_that_is_felt(place: tuple[str, Path]) -> None:
    url, _ = place
    async with await AsyncFarmClient.connect(url) as farm:
        lease = await farm.lease(SHAPE)
        await lease.exec(["python3", "-c", TICKING], detach=True)
        await read_when_there(lease, "/tmp/ticking")
        fork = await lease.fork(1)
        assert fork.snapshot.pause_ms is not None
        for desktop in (lease, *fork.leases):
            await desktop.write_file("/tmp/enough", b"")
        felt_s = float(await read_when_there(lease, "/tmp/worst"))
        told_s = fork.snapshot.pause_ms / 1000
        assert 0.5 * told_s < felt_s < told_s + 0.2
        copied_s = float(await read_when_there(fork.leases[0], "/tmp/worst"))
        assert copied_s < felt_s + 1.0, "for the copy, the time between does not exist"


def lower_layers(runtime: Path) -> list[tuple[str, ...]]:
    """The read-only layers under each living desktop, as the kernel has them mounted."""
    helper = stored(runtime).as_posix().split("/")[2]
    found = []
    for line in Path(f"/proc/{helper}/mountinfo").read_text().splitlines():
        options = line.partition(" - overlay ")[2]
        if f"{SHARED_MOUNT_POINT}/d/" in line and options:
            found.append(tuple(options.partition("lowerdir=")[2].partition(",")[0].split(":")))
    return found


async def test_copies_share_their_layers_and_hold_nothing_of_them_twice(place: tuple[str, Path]) -> None:
    url, runtime = place
    async with await AsyncFarmClient.connect(url) as farm:
        lease = await farm.lease(SHAPE)
        await lease.write_file("/home/user/large", os.urandom(8 << 20))
        saved = await lease.snapshot("large")
        assert saved.files_bytes >= 8 << 20
        before = await asyncio.to_thread(
            lambda: sum(path.stat().st_size for path in (stored(runtime) / "l").rglob("large"))
        )
        copies = await asyncio.gather(*(farm.lease(SHAPE, snapshot_id="large") for _ in range(2)))
        for copy in copies:
            assert await copy.read_file("/home/user/large") == await lease.read_file("/home/user/large")
        stacks = Counter(lower_layers(runtime))
        ((layers, count),) = stacks.most_common(1)
        assert (count, len(layers)) == (2, 2), stacks
        after = await asyncio.to_thread(
            lambda: sum(path.stat().st_size for path in (stored(runtime) / "l").rglob("large"))
        )
        assert after == before == 8 << 20


async def test_damage_is_set_aside_and_the_desktop_rebuilt_from_what_is_whole(place: tuple[str, Path]) -> None:
    url, runtime = place
    async with await AsyncFarmClient.connect(url) as farm:
        lease = await farm.lease(SHAPE)
        await lease.write_file("/home/user/n", b"first")
        first = await lease.snapshot("first")
        await lease.restore("first")
        views = []
        for name in ("second", "third"):
            await lease.write_file("/home/user/n", name.encode())
            views.append(await lease.snapshot(name))
            await lease.restore(name)
        assert views[1].lineage == [views[0].snapshot_id, first.snapshot_id, *first.lineage]
        images = stored(runtime) / "s"
        os.truncate(images / views[1].snapshot_id / "images" / "pages-1.img", 4096)
        inventory = images / views[0].snapshot_id / "images" / "inventory.img"
        inventory.write_bytes(bytes(inventory.stat().st_size))
        with pytest.raises(FarmError) as broken:
            await lease.restore("third")
        assert broken.value.code == ErrorCode.SNAPSHOT_BROKEN
        assert lease.snapshot_id == first.snapshot_id
        assert await lease.read_file("/home/user/n") == b"first"
        assert (await lease.step([])).image.shape == (400, 640, 3)
        aside = await farm.snapshots(SnapshotState.QUARANTINED)
        assert [view.snapshot_id for view in aside] == [views[1].snapshot_id, views[0].snapshot_id]
        for view in aside:
            assert view.quarantine_path is not None
            assert view.reason is not None
            assert "images" in os.listdir(view.quarantine_path)
            assert len(json.loads((Path(view.quarantine_path) / "snapshot.json").read_text())["layers"]) >= 2
        assert "cut short" in (aside[0].reason or "")
        assert "Error" in (Path(aside[1].quarantine_path or "") / "restore.log").read_text()
        told = [event.data["snapshot_id"] for event in await farm.events() if event.kind == "snapshot_quarantined"]
        assert told == [view.snapshot_id for view in aside]
        with pytest.raises(FarmError) as gone:
            await farm.lease(SHAPE, snapshot_id=views[0].snapshot_id)
        assert gone.value.code == ErrorCode.SNAPSHOT_BROKEN
        for view in aside:
            await farm.delete_snapshot(view.snapshot_id)
        left = await asyncio.to_thread(os.listdir, images)
        assert not {view.snapshot_id for view in aside} & set(left)
