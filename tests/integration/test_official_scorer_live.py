"""OSWorld's own evaluators on a live desktop, through the lease's tunnels: verdicts, causes, and what the desktop never learns."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from served_farm import served_farm

from dart_envs.errors import EvaluatorError
from dart_envs.evaluators import evaluate
from dart_envs.farm.client import AsyncFarmClient
from dart_envs.farm.lease import AsyncLease
from dart_envs.scorer import paths
from dart_envs.tasks.model import Evaluator
from dart_envs.types import Outcome
from dart_server.wire import DesktopShape

pytestmark = [
    pytest.mark.desktop,
    pytest.mark.skipif(
        paths.read_installation() is None, reason="OSWorld's scorer is not installed: `dart-envs scorer install`"
    ),
]
SHAPE = DesktopShape(resolution=(1024, 768))
CANARY = "expected-7c1f0d2e"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served_farm(tmp_path_factory.mktemp("scorer"), max_desktops=2) as url:
        yield url


@pytest.fixture
async def lease(url: str) -> AsyncIterator[AsyncLease]:
    async with await AsyncFarmClient.connect(url) as farm, await farm.lease(SHAPE) as lease:
        yield lease


async def judged(lease: AsyncLease, **fields: Any) -> Outcome:
    return await evaluate(lease, Evaluator.model_validate(fields), scorer="osworld")


def rule(expected: Any) -> dict[str, Any]:
    return {"type": "rule", "rules": {"expected": expected}}


async def test_the_official_verdict_is_the_desktops_state(lease: AsyncLease) -> None:
    settings = {"func": "check_json_settings", "expected": rule({"a": CANARY})}
    file = {"type": "vm_file", "path": "/home/user/settings.json", "dest": "settings.json"}
    assert (await judged(lease, **settings, result=file)).reward == 0.0
    await lease.write_file(file["path"], b'{"a": "something else"}')
    assert (await judged(lease, **settings, result=file)).reward == 0.0
    await lease.write_file(file["path"], b"{not JSON")
    assert (await judged(lease, **settings, result=file)).reward == 0.0
    held = await lease.exec(["grep", "-rlF", CANARY, "/home", "/tmp", "/etc", "/var/lib", "/run/user"], user="root")
    assert held.stdout == ""
    found = "for p in /proc/[0-9]*; do grep -qaF %s $p/environ $p/cmdline 2>/dev/null && cat $p/cmdline; done; true"
    secret_half, other_half = CANARY[:8], CANARY[8:]
    told = await lease.exec(["sh", "-c", found % f"{secret_half}''{other_half}"], user="root")
    assert told.stdout == ""
    await lease.write_file(file["path"], f'{{"a": "{CANARY}"}}'.encode())
    assert (await judged(lease, **settings, result=file)).reward == 1.0


async def test_steps_before_it_and_what_they_printed(lease: AsyncLease) -> None:
    steps = [{"type": "execute", "parameters": {"command": ["echo", "one two"], "stdout": "said.txt"}}]
    lines = {"type": "rule", "rules": {"expect": ["^one t"], "unexpect": ["three"]}}
    said = {"type": "cache_file", "path": "said.txt"}
    assert (await judged(lease, postconfig=steps, func="check_list", result=said, expected=lines)).reward == 1.0
    one, other = {"type": "vm_command_line", "command": ["echo", "7"]}, {"type": "vm_command_line", "command": "false"}
    both: dict[str, Any] = {"func": ["exact_match"] * 2, "result": [one, other], "expected": [rule("7\n")] * 2}
    assert (await judged(lease, **both)).reward == 0.0
    assert (await judged(lease, **both, conj="or")).reward == 1.0


async def test_a_program_that_does_not_answer_is_the_policys_and_a_wrong_evaluator_is_not(lease: AsyncLease) -> None:
    playing = {"func": "is_vlc_playing", "result": {"type": "vlc_playing_info", "dest": "s.xml"}}
    outcome = await judged(
        lease, **playing, expected={"type": "rule", "rules": {"type": "file_name", "file_name": "a"}}
    )
    assert outcome.reward == 0.0
    assert "vlc_playing_info" in outcome.details["parts"][0]["cause"]
    command = {"type": "vm_command_line", "command": "date"}
    with pytest.raises(EvaluatorError, match="exact_match failed"):
        await judged(lease, func="exact_match", result=command)


async def test_an_evaluation_leaves_no_folder_behind(
    lease: AsyncLease, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    command = {"type": "vm_command_line", "command": ["hostname"]}
    assert (await judged(lease, func="exact_match", result=command, expected=rule("desktop\n"))).reward == 1.0
    assert not [name for name in os.listdir(tmp_path) if name.startswith("dart-evaluation")]
