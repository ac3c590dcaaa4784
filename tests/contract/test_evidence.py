"""What a provider says of a desktop from outside: the same message for all, and on live ones nothing that the desktop can fake."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from provider_cases import Case, eventually

from dart_envs.types import Evidence
from dart_server.providers.base import DesktopGone, SupportsHostEvidence

RUNC = pytest.param("runc_copies", marks=pytest.mark.desktop, id="runc")
DOCKER = pytest.param("docker_case", marks=pytest.mark.docker, id="docker")
SIM = pytest.param("sim_case", id="sim")


@pytest.fixture
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.getfixturevalue(request.param)
    return found


async def look(case: Case, *queries: Mapping[str, Any]) -> Evidence:
    assert isinstance(case.provider, SupportsHostEvidence)
    assert case.provider.capabilities.evidence == "host"
    return Evidence.parse(await case.provider.evidence("d1", queries))


def file(path: str, limit_nbytes: int = 1 << 20) -> dict[str, Any]:
    return {"kind": "file", "path": path, "limit_nbytes": limit_nbytes}


def tree(path: str) -> dict[str, Any]:
    return {"kind": "tree", "path": path, "max_entries": 100, "max_depth": 8, "digests": True}


@pytest.mark.parametrize("case", [SIM, RUNC, DOCKER], indirect=True)
async def test_files_and_folders_are_read_from_outside(case: Case) -> None:
    await case.ready("d1")
    await case.call("d1", "PUT", "/v1/files?path=/home/user/papers/a/note", raw=b"hello\n")
    seen = await look(
        case,
        file("/home/user/papers/a/note"),
        file("/home/user/none"),
        file("/home/user/papers"),
        tree("/home/user/papers"),
    )
    note, none, folder, papers = seen.answers
    assert seen.content(note) == b"hello\n"
    assert (none.error, folder.error) == ("not_found", "not_regular_file")
    assert papers.entries is not None
    assert [(entry.path, entry.kind) for entry in papers.entries] == [("a", "folder"), ("a/note", "file")]
    assert papers.entries[1].sha256 == "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"
    assert (await look(case, {"kind": "processes", "code": False})).answers[0].processes
    assert seen.header.frozen
    assert (await case.provider.health("d1")).alive
    with pytest.raises(DesktopGone):
        await case.provider.evidence("none", [tree("/")])  # type: ignore[attr-defined]


FAKED = """set -e
printf 'password\\n' | sudo -S sh -c 'printf "#!/bin/sh\\necho fake\\n" > /usr/local/bin/stat; chmod +x /usr/local/bin/stat'
cp /usr/bin/python3 /tmp/thunar
bash -c 'exec -a /usr/bin/xterm /tmp/thunar -c "import time; time.sleep(600)"' >/dev/null 2>&1 &
python3 -m http.server 8123 --bind 127.0.0.1 >/dev/null 2>&1 &
printf 'password\\n' | sudo -S sh -c 'cp /usr/bin/true /usr/bin/true.new; mv /usr/bin/true.new /usr/bin/true'
python3 -c "import ctypes as c, time
c = c.CDLL(None); c.inotify_add_watch(c.inotify_init(), b'/home/user', 2); time.sleep(600)" >/dev/null 2>&1 &
mkfifo /home/user/pipe; ln -s /proc/1/root/etc/shadow /home/user/magic; echo 1 > /dev/shm/one
"""


@pytest.mark.parametrize("case", [RUNC, DOCKER], indirect=True)
async def test_what_is_faked_inside_shows_outside(case: Case) -> None:
    await case.ready("d1")
    done = await case.exec("d1", "sh", "-c", FAKED, user="user")
    assert done["returncode"] == 0, done
    stat = {"kind": "stat", "follow": True}

    async def all_run() -> bool:
        found = (await look(case, {"kind": "processes", "code": True})).answers[0].processes or []
        watching = any(one.watched and one.argv[:1] == ["python3"] for one in found)
        return (
            watching and any(one.executable == "/tmp/thunar" for one in found) and any(one.listening for one in found)
        )

    await eventually(all_run)
    seen = await look(
        case,
        {"kind": "processes", "code": True},
        {**stat, "path": "/usr/local/bin/stat"},
        {**stat, "path": "/usr/bin/true"},
        {**stat, "path": "/usr/bin/stat"},
        file("/home/user/pipe"),
        file("/home/user/magic"),
        file("/dev/shm/one"),
        file("/proc/1/status"),
        {**stat, "path": "/home/user"},
    )
    processes = seen.answers[0].processes or []
    fake = next(one for one in processes if one.argv[:1] == ["/usr/bin/xterm"])
    assert (fake.executable, fake.from_image, fake.code_from_image) == ("/tmp/thunar", False, False)
    serving = next(one for one in processes if one.listening)
    assert [(socket.address, socket.port) for socket in serving.listening] == [("127.0.0.1", 8123)]
    assert serving.executable.startswith("/usr/bin/python3")
    assert serving.from_image
    assert serving.code_from_image
    assert (serving.uid, next(one for one in processes if one.pid == 1).uid) == (1000, 0)
    assert seen.answers[8].facts is not None
    assert [one.argv[0] for one in processes if seen.answers[8].facts.identity in one.watched] == ["python3"]
    assert [answer.facts and answer.facts.from_image for answer in seen.answers[1:4]] == [False, False, True]
    assert [answer.error for answer in seen.answers[4:6]] == ["not_regular_file", "not_found"]
    assert seen.content(seen.answers[6]) == b"1\n"
    assert seen.answers[7].error == "not_readable"


@pytest.mark.parametrize("case", [RUNC], indirect=True)
async def test_looks_side_by_side_leave_a_desktop_running_and_a_frozen_one_frozen(case: Case) -> None:
    await case.ready("d1")
    await asyncio.gather(*(look(case, tree("/etc/xdg"), {"kind": "processes", "code": False}) for _ in range(20)))
    assert (await case.exec("d1", "true"))["returncode"] == 0
    await case.provider.freeze("d1")  # type: ignore[attr-defined]
    assert (await look(case, file("/etc/hostname"))).header.frozen
    assert (await case.provider.health("d1")).detail == "frozen"
    await case.provider.thaw("d1")  # type: ignore[attr-defined]
    assert (await case.exec("d1", "true"))["returncode"] == 0
