"""Parts of the rollout benchmark: counts of what is sent to workers, and prefix hits on the product's path."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from benchmarks.rollouts.prefix_hits import HISTORIES, TURNS, measure_hits, play
from benchmarks.rollouts.request_sends import CountedClient, SendLog
from dart_agent.errors import WorkerError
from dart_agent.inference.client import WorkerClient
from dart_agent.inference.decisions.retries import RequestFailure, RetrySettings
from dart_agent.inference.decisions.routing import WorkerState
from dart_agent.inference.pool import VllmPool
from dart_agent.types import Completion, FinishReason, PolicyRequest
from tests.unit.dart_agent.fakes import FakeClock, completion, request


@pytest.mark.parametrize(
    ("failures", "repeated", "refused"),
    [
        ([], 0, 0),
        ([RequestFailure.BUSY], 0, 1),
        ([RequestFailure.ABORTED], 1, 0),
        ([RequestFailure.TIMEOUT, RequestFailure.BUSY, RequestFailure.ENGINE], 2, 1),
    ],
)
async def test_a_request_is_repeated_where_a_second_attempt_begins_to_sample(
    failures: list[RequestFailure], repeated: int, refused: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the real pool; its workers fail as they are told."""
    log, left = SendLog(), list(failures)

    async def complete(self: WorkerClient, asked: PolicyRequest, *, timeout_s: float | None = None) -> Completion:
        if left:
            raise WorkerError("as told", left.pop(0))
        return completion("done", worker=self.name)

    monkeypatch.setattr(WorkerClient, "complete", complete)
    clients = [CountedClient(name, Path(name), log) for name in ("w0", "w1")]
    pool = VllmPool(clients, clock=FakeClock(), chance=random.Random(0), retry=RetrySettings())
    for client in clients:
        pool.router.set_worker(client.name, WorkerState.SERVING)
    await pool.complete(request())
    assert not left
    assert (log.repeated, log.refused_attempts, log.answered_twice) == (repeated, refused, 0)


def test_an_answer_to_each_of_two_attempts_is_one_too_many() -> None:
    log = SendLog()
    for attempt in ("r0", "r0#1", "r1"):
        log.sent(attempt)
        log.answered(attempt)
    assert (log.answered_twice, log.repeated) == (1, 1)


class FakeEngine:
    """Four tokens per message and a hundred per picture; finds in its cache what it is told that the prompt continues."""

    async def complete(self, asked: PolicyRequest) -> Completion:
        assert len(asked.image_sha256) == len(asked.images)
        length = max(4 * len(asked.messages) + 100 * len(asked.images), len(asked.prefix_ids_P) + 104)
        return Completion(
            "Action: wait()",
            (*asked.prefix_ids_P, *range(length - len(asked.prefix_ids_P))),
            (1, 2),
            (-0.5, -0.25),
            (),
            FinishReason.STOP,
            cached_prompt_tokens=len(asked.prefix_ids_P),
        )


async def test_prefix_hits_are_those_of_an_episode_with_its_history() -> None:
    figures = await measure_hits(FakeEngine())
    assert figures["prompts_continued_full_history"] == TURNS - 1
    assert figures["prompts_continued_last_5_images"] == 4, "the sixth turn drops the first picture"
    assert figures["hit_rate_full_history"] > 0.8 > figures["hit_rate_last_5_images"] > 0
    counted = await play(FakeEngine(), "again", HISTORIES["full_history"])
    assert counted.prompts == TURNS
