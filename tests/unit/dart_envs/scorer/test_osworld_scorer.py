"""What an osworld evaluation is asked and given, with a worker and a desktop of the test's own."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from dart_envs import assets
from dart_envs.errors import AssetError, EvaluatorError
from dart_envs.scorer.osworld import evaluate
from dart_envs.scorer.workers import ScorerPool
from dart_envs.tasks.model import Evaluator
from dart_envs.testing.fake_desktop import FakeDesktop

GOLD = {"type": "cloud_file", "path": "https://gold.invalid/gold.txt", "dest": "gold.txt"}


class TunnelDesktop(FakeDesktop):
    """A desktop with ports."""

    @asynccontextmanager
    async def tunnel(self, port: int) -> AsyncIterator[tuple[str, int]]:
        yield "127.0.0.1", 20_000 + port


def texts_in(folder: str) -> dict[str, str]:
    return {path.name: path.read_text() for path in Path(folder).iterdir()}


class FakeScorerPool:
    """A pool that answers the same to everything and keeps what it was asked and what lay in the cache."""

    def __init__(self, answer: Mapping[str, Any]) -> None:
        self.answer = answer
        self.sent: Mapping[str, Any] = {}
        self.files: dict[str, str] = {}

    async def request(self, request: Mapping[str, Any], *, timeout_s: float) -> Mapping[str, Any]:
        self.sent = request
        self.files = texts_in(request["cache_dir"])
        return self.answer


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(assets.CACHE_DIR_VARIABLE, str(tmp_path))
    monkeypatch.setenv(assets.OFFLINE_VARIABLE, "1")
    (tmp_path / "task").mkdir()
    (tmp_path / "task" / "gold.txt").write_text("gold")
    return tmp_path


def evaluator(**fields: Any) -> Evaluator:
    made = {"func": "compare_text_file", "result": {"type": "cache_file", "path": "said.txt"}, "expected": GOLD}
    return Evaluator.model_validate(made | fields)


async def test_the_worker_gets_ports_parts_and_files_and_the_folder_goes(cache: Path) -> None:
    pool = FakeScorerPool({"score": 0.5, "parts": [{"func": "compare_text_file", "score": 0.5}]})
    step_outputs = {"said.txt": "one\n"}
    outcome = await evaluate(
        TunnelDesktop((640, 400)), evaluator(), step_outputs=step_outputs, task_id="task", pool=cast(ScorerPool, pool)
    )
    assert outcome.reward == 0.5
    assert outcome.details["scorer"] == "osworld"
    assert pool.files == {"said.txt": "one\n", "gold.txt": "gold"}
    assert pool.sent["desktop"]["server_port"] == 25_000
    assert pool.sent["desktop"]["screen"] == [640, 400]
    assert Path(pool.sent["cache_dir"]).name not in os.listdir(tempfile.gettempdir())


async def test_a_gold_file_that_is_not_there_is_told_before_anything_is_asked(cache: Path) -> None:
    pool = FakeScorerPool({})
    with pytest.raises(AssetError, match="another"):
        await evaluate(TunnelDesktop(), evaluator(), step_outputs={}, task_id="another", pool=cast(ScorerPool, pool))
    assert pool.sent == {}


@pytest.mark.parametrize("name", ["../outside", "/etc/outside"])
async def test_no_name_leads_out_of_the_folder(cache: Path, name: str) -> None:
    with pytest.raises(EvaluatorError, match="no name inside"):
        await evaluate(
            TunnelDesktop(),
            evaluator(expected=None),
            step_outputs={name: "x"},
            pool=cast(ScorerPool, FakeScorerPool({})),
        )


async def test_a_desktop_without_ports_is_refused() -> None:
    with pytest.raises(EvaluatorError, match="leased desktop"):
        await evaluate(FakeDesktop(), evaluator(), step_outputs={})
