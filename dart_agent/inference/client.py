"""Client of one inference worker.

Role: the worker's routes as methods, over its Unix socket. Rule: one HTTP request per call, no retries; every failure is a
`WorkerError`, except a request that no worker could answer (`RequestRejected`) and refused weights (`WeightUpdateError`).
Non-goals: choosing a worker (`dart_agent.inference.pool`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from dart_agent.errors import RequestRejected, WeightUpdateError, WorkerError
from dart_agent.inference import wire
from dart_agent.inference.settings import KEY_NAME, SOCKET_NAME
from dart_agent.types import Completion, PolicyRequest, PolicyVersion


@dataclass(frozen=True, slots=True)
class WorkerHealth:
    """What a worker says about itself."""

    version: PolicyVersion
    in_flight: int
    pid: int


@dataclass(frozen=True, slots=True)
class WeightUpdateTimes:
    """How long one worker was paused for new weights: until it stood still, and for the load itself."""

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

    async def health(self, *, timeout_s: float = 10.0) -> WorkerHealth:
        """Raises WorkerError when the worker does not answer or is broken."""
        reply = await self._call("GET", wire.HEALTH_PATH, timeout_s=timeout_s)
        return WorkerHealth(version=int(reply["version"]), in_flight=int(reply["in_flight"]), pid=int(reply["pid"]))

    async def complete(self, request: PolicyRequest) -> Completion:
        """Sample one response on this worker. Raises RequestRejected or WorkerError."""
        reply = await self._call(
            "POST", wire.GENERATE_PATH, content=wire.encode_request(request), timeout_s=self._request_timeout_s
        )
        try:
            return wire.decode_completion(reply, worker=self.name)
        except (KeyError, TypeError, ValueError) as error:
            raise WorkerError(f"{self.name} answered nonsense: {error}") from error

    async def load(self, path: Path, version: PolicyVersion) -> WeightUpdateTimes:
        """Swap the worker's weights. Raises WeightUpdateError when they are refused (the old ones serve), else WorkerError."""
        reply = await self._call(
            "POST", wire.WEIGHTS_PATH, json={"path": str(path), "version": version}, timeout_s=self._request_timeout_s
        )
        return WeightUpdateTimes(pause_s=float(reply["pause_s"]), load_s=float(reply["load_s"]))

    async def _call(self, method: str, path: str, *, timeout_s: float, **content: Any) -> dict[str, Any]:
        try:
            key = (self._directory / KEY_NAME).read_text().strip()
            reply = await self._http.request(
                method, path, headers={"Authorization": f"Bearer {key}"}, timeout=timeout_s, **content
            )
            body: dict[str, Any] = reply.json()
        except (OSError, httpx.HTTPError, ValueError) as error:
            raise WorkerError(f"{self.name} does not answer: {type(error).__name__}: {error}") from error
        if reply.is_success:
            return body
        detail = f"{self.name}: {body.get('detail', reply.status_code)}"
        if reply.status_code == 400 and path == wire.GENERATE_PATH:
            raise RequestRejected(detail)
        if reply.status_code == 409:
            raise WeightUpdateError(detail)
        raise WorkerError(detail)
