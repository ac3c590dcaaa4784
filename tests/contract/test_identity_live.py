"""Copies of one desktop are told apart, and draw other random numbers: restored in place, forked, made anew for the standby pool."""

from __future__ import annotations

import json
from itertools import combinations

import pytest
from provider_cases import Case, eventually

pytestmark = pytest.mark.timeout(900)

DRAWN = "/home/user/drawn"
DRAW_FOR_EVER = f"""
import os, time
while True:
    with open("{DRAWN}.new", "w") as file:
        file.write(os.urandom(16).hex())
    os.replace("{DRAWN}.new", "{DRAWN}")
    time.sleep(0.05)
"""
LOOK = """
import json, os, pathlib, random, secrets, tempfile, uuid
read = lambda path: pathlib.Path(path).read_text().strip()
print(json.dumps({
    "machine id": read("/etc/machine-id"), "session bus's machine id": read("/var/lib/dbus/machine-id"),
    "kernel's randomness": os.urandom(16).hex(), "kernel's uuid": read("/proc/sys/kernel/random/uuid"),
    "a program's generator": random.random(), "a program's token": secrets.token_hex(16), "a uuid": str(uuid.uuid4()),
    "a temporary name": tempfile.mktemp(), "seed of hashes": hash("text"),
    "addresses": next(line for line in read("/proc/self/maps").splitlines() if "[stack]" in line),
}))
"""


@pytest.fixture(
    params=[
        pytest.param("runc", marks=pytest.mark.desktop),
        pytest.param("docker", marks=pytest.mark.docker),
        pytest.param("libvirt", marks=pytest.mark.libvirt),
    ]
)
def live(request: pytest.FixtureRequest) -> Case:
    found: Case = request.getfixturevalue(f"{request.param}_case")
    return found


async def look(case: Case, desktop_id: str) -> dict[str, object]:
    """What a program that starts now in a desktop is given, and the agent's boot id."""
    ended = await case.exec(desktop_id, "python3", "-c", LOOK, user="user")
    assert ended["returncode"] == 0, ended
    health = json.loads((await case.call(desktop_id, "GET", "/v1/health")).content)
    told: dict[str, object] = json.loads(ended["stdout"])
    return told | {"boot id": health["boot_id"]}


async def drawn_since(case: Case, desktop_id: str) -> str:
    """What a program that ran through the snapshot draws from the kernel from now on."""
    await case.exec(desktop_id, "rm", "-f", DRAWN)
    reply = b""

    async def drawn() -> bool:
        nonlocal reply
        answer = await case.call(desktop_id, "GET", f"/v1/files?path={DRAWN}")
        reply = answer.content
        return answer.status == 200

    await eventually(drawn, 30.0)
    return reply.decode()


def assert_all_differ(looks: dict[str, dict[str, object]]) -> None:
    same = [
        f"{name} of {one} and {other}"
        for one, other in combinations(looks, 2)
        for name in looks[one]
        if looks[one][name] == looks[other][name]
    ]
    assert same == []


async def test_copies_of_a_snapshot_are_others_and_draw_other_numbers(live: Case) -> None:
    if not live.provider.capabilities.memory_snapshot:
        await live.ready("d1", "d2")
        assert_all_differ({name: await look(live, name) for name in ("d1", "d2")})
        return
    await live.ready("d1")
    await live.exec("d1", "python3", "-c", DRAW_FOR_EVER, user="user", detach=True)
    looks = {"first": await look(live, "d1") | {"drawn on": await drawn_since(live, "d1")}}
    await live.provider.snapshot("d1", "s1")
    for name in ("restored", "restored again"):
        await live.provider.restore("d1", "s1")
        looks[name] = await look(live, "d1") | {"drawn on": await drawn_since(live, "d1")}
    await live.provider.destroy("d1")
    if live.provider.capabilities.fork:
        for fork in ("f1", "f2"):
            await live.provider.restore(fork, "s1")
            looks[fork] = await look(live, fork) | {"drawn on": await drawn_since(live, fork)}
            await live.provider.destroy(fork)
    assert_all_differ(looks)
