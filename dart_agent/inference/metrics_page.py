"""One page for Prometheus: vLLM's metrics of every worker, and ours.

Role: `merge_pages` puts the text of several processes together, `MetricsPage` adds what pool, supervisor and updater know, `serve_metrics`
serves `GET /metrics` on the loopback. Rule: vLLM's names and labels stay as they are, each sample gets the label `worker`; ours begin with
`dart_inference_`. A worker that does not answer is left out and has `dart_inference_worker_up` 0. Non-goals: keys (the page holds no
secret and is not reachable from other machines), metrics of the run (`dart_agent.metrics_file`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
from collections.abc import Iterator, Mapping
from typing import Any

from dart_agent.errors import ConfigError, WorkerError
from dart_agent.inference.pool import VllmPool
from dart_agent.inference.supervisor import Supervisor
from dart_agent.inference.weight_updater import WeightUpdater

logger = logging.getLogger(__name__)

_SAMPLE = re.compile(r"(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})?(?P<value> .+)")
_PARTS = ("_bucket", "_sum", "_count", "_total", "_created")


def merge_pages(pages: Mapping[str, str]) -> str:
    """Put the pages of several processes together.

    Args:
        pages: Prometheus text by worker.

    Returns:
        One page; each sample has the label `worker`, and the samples of one metric stand together, as the format demands.
    """
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for worker, page in pages.items():
        for line in page.splitlines():
            if line.startswith(("# HELP ", "# TYPE ")):
                lines = heads.setdefault(line.split(" ", 3)[2], [])
                if line not in lines:
                    lines.append(line)
            elif (sample := _SAMPLE.fullmatch(line)) is not None:
                name, labels = sample["name"], sample["labels"]
                labelled = ",".join(part for part in (f'worker="{worker}"', labels) if part)
                samples.setdefault(_family(name, heads), []).append(f"{name}{{{labelled}}}{sample['value']}")
    lines = [line for family, found in samples.items() for line in (*heads.get(family, ()), *found)]
    return "".join(f"{line}\n" for line in lines)


def _family(name: str, known: Mapping[str, list[str]]) -> str:
    """The metric that a sample belongs to: `x_bucket` belongs to the histogram `x`."""
    if name in known:
        return name
    bases = (name.removesuffix(part) for part in _PARTS if name.endswith(part))
    return next((base for base in bases if base in known), name)


class MetricsPage:
    """The page of one inference component."""

    def __init__(self, pool: VllmPool, supervisor: Supervisor, updater: WeightUpdater | None) -> None:
        self._pool = pool
        self._supervisor = supervisor
        self._updater = updater

    async def text(self) -> str:
        """The page now. A worker that does not answer in time is left out."""
        names = [member.client.name for member in self._pool.members]
        found = await asyncio.gather(*(self._engine_page(name) for name in names))
        pages = {name: page for name, page in zip(names, found, strict=True) if page is not None}
        return _write(self._own(set(pages))) + merge_pages(pages)

    async def _engine_page(self, name: str) -> str | None:
        client: Any = next(member.client for member in self._pool.members if member.client.name == name)
        try:
            page: str = await client.metrics()
        except WorkerError:
            return None
        return page

    def _own(self, answering: set[str]) -> Iterator[tuple[str, str, str, dict[str, str], float]]:
        """Name, kind, help, labels and value of each sample of ours."""
        loads = self._pool.router.loads
        for member in self._pool.members:
            name = member.client.name
            label = {"worker": name}
            yield "worker_up", "gauge", "Whether the worker answers.", label, float(name in answering)
            yield "worker_version", "gauge", "Policy version that it serves.", label, float(member.version)
        for member in self._pool.members:
            label = {"worker": member.client.name}
            in_flight = float(loads[member.client.name].in_flight)
            yield "chat_in_flight", "gauge", "Requests of the chat API on it.", label, in_flight
        for failure, count in self._pool.failures.items():
            name, text = "chat_failed_attempts_total", "Attempts of the chat API's requests that failed, by reason."
            yield name, "counter", text, {"reason": failure.value}, float(count)
        yield (
            "worker_restarts_total",
            "counter",
            "Workers that were started again.",
            {},
            float(self._supervisor.restarts),
        )
        if self._updater is not None:
            target = self._updater.planner.target
            number = float(target.number if target is not None else 0)
            yield "target_version", "gauge", "Policy version of all workers but those of an evaluation.", {}, number
            outdated = float(len(self._updater.planner.outdated))
            yield "workers_outdated", "gauge", "Workers that do not serve yet what they are to serve.", {}, outdated
            updating = float(len(self._updater.planner.updating))
            yield "workers_updating", "gauge", "Workers whose requests stand still for it.", {}, updating


def _write(rows: Iterator[tuple[str, str, str, dict[str, str], float]]) -> str:
    samples: dict[str, list[str]] = {}
    for name, kind, text, labels, value in rows:
        full = f"dart_inference_{name}"
        lines = samples.setdefault(full, [f"# HELP {full} {text}", f"# TYPE {full} {kind}"])
        inner = ",".join(f'{key}="{given}"' for key, given in labels.items())
        lines.append(f"{full}{{{inner}}} {value:g}" if inner else f"{full} {value:g}")
    return "".join(f"{line}\n" for lines in samples.values() for line in lines)


def bind_loopback(port: int) -> socket.socket:
    """Listen on the loopback.

    Args:
        port: 0 takes a free one.

    Returns:
        The listening socket.

    Raises:
        ConfigError: The port is taken.
    """
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise ConfigError(f"metrics_port = {port} cannot be used: {error.strerror}; choose another") from error


async def serve_metrics(page: MetricsPage, listener: socket.socket) -> None:
    """Serve `GET /metrics` at `listener` until cancelled."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    async def metrics(_request: Any) -> Any:
        return PlainTextResponse(await page.text(), media_type="text/plain; version=0.0.4")

    class Server(uvicorn.Server):
        """Signals are the component's."""

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    app = Starlette(routes=[Route("/metrics", metrics, methods=["GET"])])
    logger.info("metrics at http://127.0.0.1:%d/metrics", listener.getsockname()[1])
    await Server(uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off")).serve(sockets=[listener])
