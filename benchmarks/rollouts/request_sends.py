"""How often requests are sent to workers, and what they made of them.

Role: `CountedClient` counts what the pool sends to one worker in a `SendLog` that all workers share. Rule: a request is one id of the
caller; the pool's second attempt at `ID` is `ID#1`. A worker that refuses an attempt at once, because it drains, has sampled nothing for
it; any other attempt has begun to sample. Non-goals: deciding what is sent (`dart_agent.inference.pool`).
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from dart_agent.errors import WorkerError
from dart_agent.inference.client import WorkerClient
from dart_agent.inference.decisions.retries import RequestFailure
from dart_agent.types import Completion, PolicyRequest


class SendLog:
    """Counts of all attempts, by the caller's id."""

    def __init__(self) -> None:
        self._sampled: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._answered: Counter[str] = Counter()

    def sent(self, request_id: str) -> None:
        """Note that an attempt goes to a worker."""
        self._sampled[_original(request_id)] += 1

    def refused(self, request_id: str) -> None:
        """Note that the worker took it not: nothing was sampled."""
        self._sampled[_original(request_id)] -= 1
        self._refused[_original(request_id)] += 1

    def answered(self, request_id: str) -> None:
        """Note that the worker answered it."""
        self._answered[_original(request_id)] += 1

    @property
    def repeated(self) -> int:
        """Attempts that a worker began to sample after the first one of their request."""
        return sum(max(0, count - 1) for count in self._sampled.values())

    @property
    def refused_attempts(self) -> int:
        """Attempts that a worker refused at once."""
        return self._refused.total()

    @property
    def answered_twice(self) -> int:
        """Answers after the first one of their request."""
        return sum(max(0, count - 1) for count in self._answered.values())


class CountedClient(WorkerClient):
    """A worker's client that counts what is sent."""

    def __init__(self, name: str, directory: Path, log: SendLog) -> None:
        super().__init__(name, directory)
        self._log = log

    async def complete(self, request: PolicyRequest, *, timeout_s: float | None = None) -> Completion:
        """Sample one response, and count it. Raises RequestRejected or WorkerError."""
        self._log.sent(request.request_id)
        try:
            completion = await super().complete(request, timeout_s=timeout_s)
        except WorkerError as error:
            if error.failure is RequestFailure.BUSY:
                self._log.refused(request.request_id)
            raise
        self._log.answered(request.request_id)
        return completion


def _original(request_id: str) -> str:
    return request_id.partition("#")[0]
