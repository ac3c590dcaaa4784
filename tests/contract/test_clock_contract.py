"""The time of day inside live desktops of every kind: programs that run, later ones and the agent agree, however old the snapshot is."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from clock_programs import LOOKS, RUNNING
from provider_cases import Case, eventually

from dart_server.providers.libvirt import vm

pytestmark = pytest.mark.timeout(900)
STARTS_AT = datetime(2024, 2, 28, 23, 50, tzinfo=UTC).timestamp()
MONTH_S = 30 * 24 * 3600.0
AGREE_S = 2.0
"""How far a program's word may be from what the agent said before and after it: some tell whole seconds, and the host is busy."""


class Ahead:
    """A farm's time of day that can be moved on."""

    def __init__(self) -> None:
        self.by_s = 0.0

    def time(self) -> float:
        return time.time() + self.by_s


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> Ahead:
    found = Ahead()
    monkeypatch.setattr(vm, "time", SimpleNamespace(time=found.time))
    return found


@pytest.fixture
def wall_clock(ahead: Ahead) -> Callable[[], float]:
    return ahead.time


@pytest.fixture
def live(request: pytest.FixtureRequest) -> Case:
    found: Case = request.getfixturevalue(request.param)
    return found


async def agent_s(case: Case, desktop_id: str, **declared: float | None) -> float:
    """The agent's word, after it was told to declare a time where one is given."""
    method, body = ("POST", declared) if declared else ("GET", None)
    reply = await case.call(desktop_id, method, "/v1/clock", body)
    assert reply.status == 200, reply.content
    return float(json.loads(reply.content)["time_s"])


async def begin(case: Case, desktop_id: str) -> None:
    """A program that goes on telling the time."""
    await case.exec(desktop_id, "python3", "-c", RUNNING, user="user", detach=True)


async def agreed_s(case: Case, desktop_id: str) -> float:
    """The time of day on which every program and the agent agree."""

    async def running() -> bool:
        before_s = await agent_s(case, desktop_id)
        reply = await case.call(desktop_id, "GET", "/v1/files?path=/tmp/running")
        told.append(float(reply.content) if reply.status == 200 else -1.0)
        return before_s - AGREE_S < told[-1] < await agent_s(case, desktop_id) + AGREE_S

    told: list[float] = []
    try:
        await eventually(running, 30.0)
    except TimeoutError:
        pytest.fail(f"a running program says {told[-3:]}, the agent {await agent_s(case, desktop_id)}")
    for argv in LOOKS:
        before_s = await agent_s(case, desktop_id)
        ended = await case.exec(desktop_id, *argv, user="user", stdin="password\n")
        assert ended["returncode"] == 0, (argv, ended)
        assert before_s - AGREE_S < float(ended["stdout"]) < await agent_s(case, desktop_id) + AGREE_S, argv
    return await agent_s(case, desktop_id)


@pytest.mark.parametrize(
    "live",
    [
        pytest.param("runc_copies", marks=pytest.mark.desktop, id="runc"),
        pytest.param("docker_case", marks=pytest.mark.docker, id="docker"),
    ],
    indirect=True,
)
async def test_all_programs_are_in_the_time_that_was_declared(live: Case) -> None:
    await live.ready("d1")
    await begin(live, "d1")
    assert abs(await agreed_s(live, "d1") - time.time()) < AGREE_S
    begun_s = time.monotonic()
    await agent_s(live, "d1", time_s=STARTS_AT)
    assert abs(await agreed_s(live, "d1") - (STARTS_AT + time.monotonic() - begun_s)) < AGREE_S
    await agent_s(live, "d1", time_s=None)
    assert abs(await agreed_s(live, "d1") - time.time()) < AGREE_S


@pytest.mark.parametrize(
    ("live", "age_s", "declared"),
    [
        *(
            pytest.param("runc_case", age_s, declared, marks=pytest.mark.desktop)
            for age_s in (1.0, MONTH_S)
            for declared in (True, False)
        ),
        pytest.param("libvirt_case", MONTH_S, True, marks=pytest.mark.libvirt),
    ],
    indirect=["live"],
)
async def test_a_snapshot_of_any_age_is_in_one_time(live: Case, ahead: Ahead, age_s: float, declared: bool) -> None:
    provider = live.provider
    await live.ready("d1")
    if declared:
        await agent_s(live, "d1", time_s=STARTS_AT)
    await begin(live, "d1")
    frozen_s = await agreed_s(live, "d1")
    assert abs(frozen_s - (STARTS_AT if declared else time.time())) < (60 if declared else AGREE_S)
    await provider.snapshot("d1", "s1")
    frozen_s = await agent_s(live, "d1")
    ahead.by_s += age_s
    for desktop_id in ("d1", "d2"):
        await provider.restore(desktop_id, "s1")
        woken_s = time.monotonic()
        said_s = await agreed_s(live, desktop_id)
        if declared:
            stood_s = said_s - (time.monotonic() - woken_s) - frozen_s
            assert -10 * AGREE_S < stood_s < 10 * AGREE_S, "it stood still while it was a snapshot"
        else:
            assert abs(said_s - ahead.time()) < AGREE_S, "it is what the farm says that it is"
