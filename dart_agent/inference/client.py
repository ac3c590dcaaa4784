"""Client of one inference worker.

Role: the worker's routes as methods, over its Unix socket. Rule: one HTTP request per call, no retries, each with a time limit; every
failure is a `WorkerError` that says what it means for the request, except a request that no worker could answer (`RequestRejected`) and
refused weights (`WeightUpdateError`). Non-goals: choosing a worker (`dart_agent.inference.pool`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from dart_agent.errors import RequestRejected, WeightUpdateError, WorkerError
from dart_agent.inference import pointer_wire, wire
from dart_agent.inference.decisions.retries import RequestFailure
from dart_agent.inference.decisions.weight_updates import WeightsId
from dart_agent.inference.pointer_wire import POINT_PATH, PointAnswer, PointRequest
from dart_agent.inference.settings import KEY_NAME, SOCKET_NAME, PublishedWeights
from dart_agent.inference.wire import WorkerHealth
from dart_agent.types import Completion, FinishReason, PolicyRequest

_LATE_S = 10.0
"""How much later than asked for a held answer may come."""


@dataclass(frozen=True, slots=True)
class WeightUpdateTimes:
    """How long one worker's requests stood still for new weights: until they stood still, and for the load itself."""

    pause_s: float
    load_s: float


class WorkerClient:
    """Speaks to the worker that lives in `directory`. The worker may not run yet, and may be replaced by another at the same place."""

    def __init__(self, name: str, directory: Path, *, request_timeout_s: float = 300.0) -> None:
        self.name = name
        self._directory = directory
        self._request_timeout_s = request_timeout_s
        self._http = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(
                uds=str(directory / SOCKET_NAME), limits=httpx.Limits(max_connections=None)
            ),
            base_url="http://worker",
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def health(
        self, *, after: int | None = None, wait_s: float = 0.0, timeout_s: float = _LATE_S
    ) -> WorkerHealth:
        """State of the worker; with `after`, as soon as its revision is another than that, at most `wait_s` later.

        Raises WorkerError when the worker does not answer or is broken.
        """
        query = {} if after is None else {"after": str(after), "wait_s": str(wait_s)}
        reply = await self._call("GET", wire.HEALTH_PATH, params=query, timeout_s=wait_s + timeout_s)
        try:
            return wire.decode_health(reply)
        except (KeyError, TypeError, ValueError) as error:
            raise WorkerError(f"{self.name} answered nonsense: {error}") from error

    async def complete(self, request: PolicyRequest, *, timeout_s: float | None = None) -> Completion:
        """Sample one response on this worker. Raises RequestRejected or WorkerError."""
        reply = await self._call(
            "POST",
            wire.GENERATE_PATH,
            content=wire.encode_request(request),
            timeout_s=self._request_timeout_s if timeout_s is None else timeout_s,
        )
        try:
            completion = wire.decode_completion(reply, worker=self.name)
        except (KeyError, TypeError, ValueError) as error:
            raise WorkerError(f"{self.name} answered nonsense: {error}", RequestFailure.ENGINE) from error
        if completion.finish_reason is FinishReason.ABORT:
            raise WorkerError(f"{self.name} stopped before the answer was complete", RequestFailure.ABORTED)
        return completion

    async def point(self, asked: PointRequest, *, timeout_s: float | None = None) -> PointAnswer:
        """Ask this worker's action head. Raises RequestRejected or WorkerError."""
        reply = await self._call(
            "POST",
            POINT_PATH,
            content=pointer_wire.encode_point_request(asked),
            timeout_s=self._request_timeout_s if timeout_s is None else timeout_s,
        )
        try:
            return pointer_wire.decode_point_answer(reply)
        except (KeyError, TypeError, ValueError) as error:
            raise WorkerError(f"{self.name} answered nonsense: {error}", RequestFailure.ENGINE) from error

    async def stage(self, published: PublishedWeights) -> float:
        """Let the worker read and check weights while its requests run. Returns seconds.

        Raises WeightUpdateError when they are refused (the old ones serve), else WorkerError.
        """
        body = {"path": str(published.path), "version": published.version, "digest": published.digest}
        reply = await self._call("POST", wire.STAGE_PATH, json=body, timeout_s=self._request_timeout_s)
        return float(reply["stage_s"])

    async def swap(self, weights: WeightsId, *, pause: bool = True) -> WeightUpdateTimes:
        """Swap to the staged weights between two tokens. Raises WeightUpdateError when others are staged, else WorkerError."""
        body = {"version": weights.number, "digest": weights.digest, "pause": pause}
        reply = await self._call("POST", wire.SWAP_PATH, json=body, timeout_s=self._request_timeout_s)
        return WeightUpdateTimes(pause_s=float(reply["pause_s"]), load_s=float(reply["load_s"]))

    async def load(self, published: PublishedWeights) -> WeightUpdateTimes:
        """Stage and swap at once. Raises WeightUpdateError or WorkerError."""
        await self.stage(published)
        return await self.swap(published.identity)

    async def pause(self) -> None:
        """Let all requests stand still. Raises WorkerError."""
        await self._call("POST", wire.PAUSE_PATH, json={}, timeout_s=self._request_timeout_s)

    async def resume(self) -> None:
        """Let all requests go on. Raises WorkerError."""
        await self._call("POST", wire.RESUME_PATH, json={}, timeout_s=self._request_timeout_s)

    async def drain(self) -> int:
        """Let the worker take no new request. Returns how many run. Raises WorkerError."""
        reply = await self._call("POST", wire.DRAIN_PATH, json={}, timeout_s=_LATE_S)
        return int(reply["in_flight"])

    async def metrics(self) -> str:
        """Prometheus text of the engine. Raises WorkerError."""
        reply = await self._call("GET", wire.METRICS_PATH, timeout_s=_LATE_S)
        return str(reply["text"])

    async def _call(self, method: str, path: str, *, timeout_s: float, **content: Any) -> dict[str, Any]:
        try:
            key = (self._directory / KEY_NAME).read_text().strip()
            reply = await self._http.request(
                method, path, headers={"Authorization": f"Bearer {key}"}, timeout=timeout_s, **content
            )
            body: dict[str, Any] = reply.json()
        except httpx.ReadTimeout as error:
            late = f"{self.name} gave no answer within {timeout_s:.0f} s"
            raise WorkerError(late, RequestFailure.TIMEOUT) from error
        except (httpx.ConnectError, FileNotFoundError) as error:
            raise WorkerError(f"{self.name} does not answer: it is still starting, or has ended") from error
        except (OSError, httpx.HTTPError, ValueError) as error:
            raise WorkerError(f"{self.name} does not answer: {type(error).__name__}: {error}") from error
        if reply.is_success:
            return body
        detail = f"{self.name}: {body.get('detail', reply.status_code)}"
        if reply.status_code == 400 and path in (wire.GENERATE_PATH, POINT_PATH):
            raise wire.decode_prompt_too_long(body) or RequestRejected(detail)
        if reply.status_code == 409:
            raise WeightUpdateError(detail)
        failures = {"busy": RequestFailure.BUSY, "engine": RequestFailure.ENGINE}
        raise WorkerError(detail, failures.get(str(body.get("error")), RequestFailure.CONNECTION))
