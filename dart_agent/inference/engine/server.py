"""The process of one inference worker: an engine behind a few routes on a Unix socket.

Role: `python -m dart_agent.inference.engine.server --settings JSON --directory DIR --parent PID`; the routes are those of
`dart_agent.inference.wire`. Rule: the socket appears once the worker can serve; an engine that cannot go on ends the process. The engine
may not outlive its parent: a thread ends the whole process group. The engine is vLLM, or what another program gives to `main`, such as a
fake in tests of processes. Non-goals: routing, restarts (`dart_agent.inference.pool`).

vLLM's own OpenAI server is not used: its chat route returns no version spans, and its token route wants images that another
process has already expanded.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hmac
import os
import shutil
import signal
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from dart_agent.client_disconnect import unless_disconnected
from dart_agent.errors import PromptTooLongError, RequestRejected, WeightUpdateError, WorkerError
from dart_agent.inference import pointer_wire, wire
from dart_agent.inference.compat import patch_torch_extras
from dart_agent.inference.decisions.retries import RequestFailure
from dart_agent.inference.decisions.weight_updates import WeightsId
from dart_agent.inference.engine.worker_engine import EngineBackend, WorkerEngine
from dart_agent.inference.process_group import kill_members, mark_group_leader
from dart_agent.inference.settings import KEY_NAME, SOCKET_NAME, PublishedWeights, WorkerSettings
from dart_envs.clock import SYSTEM_CLOCK
from dart_server.wire import Clock

if __name__ in ("__main__", "__mp_main__"):
    # vLLM spawns its engine, and the spawned process imports this module before it imports vLLM: mend here, for both.
    patch_torch_extras()

MakeBackend = Callable[[WorkerSettings], EngineBackend]
"""Makes the engine of a worker; called once, in the worker's process."""


def build_app(engine: WorkerEngine, key: str) -> Any:
    """The ASGI application."""
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    expected = f"Bearer {key}"

    def problem(status: int, code: str, detail: str) -> Any:
        return JSONResponse({"error": code, "detail": detail}, status_code=status)

    def guarded(handler: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
        async def handle(request: Any) -> Any:
            if not hmac.compare_digest(request.headers.get("authorization", ""), expected):
                return problem(401, "unauthenticated", "the key of this worker is missing or wrong")
            try:
                return JSONResponse(await handler(request))
            except PromptTooLongError as error:
                return JSONResponse(wire.encode_prompt_too_long(error), status_code=400)
            except RequestRejected as error:
                return problem(400, "invalid", str(error))
            except WeightUpdateError as error:
                return problem(409, "weights", str(error))
            except Exception as error:  # noqa: BLE001 - every other failure of the engine means: use another worker
                return failed(error)

        return handle

    def failed(error: Exception) -> Any:
        detail = f"{type(error).__name__}: {error}"
        if isinstance(error, WorkerError) and error.failure is RequestFailure.BUSY:
            return problem(503, "busy", str(error))
        return problem(500, "broken" if engine.broken else "engine", detail)

    async def health(request: Any) -> Any:
        after = request.query_params.get("after")
        wait_s = float(request.query_params.get("wait_s", 0.0))
        waiting = asyncio.ensure_future(engine.health(None if after is None else int(after), wait_s))
        try:
            return wire.encode_health(await waiting)
        except Exception as error:
            # A worker that is not healthy must not be mistaken for one that failed a request.
            engine.broken = engine.broken or f"{type(error).__name__}: {error}"
            raise

    async def generate(request: Any) -> Any:
        try:
            decoded = wire.decode_request(await request.body())
        except ValueError as error:
            raise RequestRejected(str(error)) from error
        task = asyncio.ensure_future(engine.generate(decoded))
        return wire.encode_completion(await unless_disconnected(request, task))

    async def point(request: Any) -> Any:
        try:
            asked = pointer_wire.decode_point_request(await request.body())
        except ValueError as error:
            raise RequestRejected(str(error)) from error
        task = asyncio.ensure_future(engine.point(asked))
        return pointer_wire.encode_point_answer(await unless_disconnected(request, task))

    async def stage(request: Any) -> Any:
        body = await request.json()
        published = PublishedWeights(int(body["version"]), Path(body["path"]), body["digest"])
        return {"stage_s": await engine.stage(published)}

    async def swap(request: Any) -> Any:
        body = await request.json()
        weights = WeightsId(int(body["version"]), body["digest"])
        # Shielded: a caller that goes away must not leave the engine paused.
        pause_s, load_s = await asyncio.shield(asyncio.ensure_future(engine.swap(weights, pause=bool(body["pause"]))))
        return {"pause_s": pause_s, "load_s": load_s}

    async def pause(_request: Any) -> Any:
        await asyncio.shield(asyncio.ensure_future(engine.pause()))
        return {}

    async def resume(_request: Any) -> Any:
        await asyncio.shield(asyncio.ensure_future(engine.resume()))
        return {}

    async def drain(_request: Any) -> Any:
        return {"in_flight": engine.drain()}

    async def metrics(_request: Any) -> Any:
        return {"text": await asyncio.to_thread(engine.backend.metrics)}

    posts = {
        wire.GENERATE_PATH: generate,
        pointer_wire.POINT_PATH: point,
        wire.STAGE_PATH: stage,
        wire.SWAP_PATH: swap,
        wire.PAUSE_PATH: pause,
        wire.RESUME_PATH: resume,
        wire.DRAIN_PATH: drain,
    }
    gets = {wire.HEALTH_PATH: health, wire.METRICS_PATH: metrics}
    return Starlette(
        routes=[
            *(Route(path, guarded(handler), methods=["GET"]) for path, handler in gets.items()),
            *(Route(path, guarded(handler), methods=["POST"]) for path, handler in posts.items()),
        ]
    )


def make_vllm(settings: WorkerSettings) -> EngineBackend:
    """An engine on vLLM, which is imported here and not before."""
    from dart_agent.inference.engine.vllm_engine import VllmEngine

    return VllmEngine(settings)


@contextlib.asynccontextmanager
async def engine_context(settings: WorkerSettings, make_backend: MakeBackend) -> AsyncIterator[WorkerEngine]:
    """An engine, closed at the end."""
    engine = WorkerEngine(make_backend(settings), keep_kv=settings.kv_after_update == "keep")
    try:
        yield engine
    finally:
        engine.close()


async def serve(
    settings: WorkerSettings,
    socket_path: Path,
    key: str,
    published: PublishedWeights | None,
    make_backend: MakeBackend = make_vllm,
) -> None:
    """Serve until SIGTERM or SIGINT; the socket appears once the weights of `published` are in."""
    import uvicorn

    async with engine_context(settings, make_backend) as engine:
        await engine.start(published)
        config = uvicorn.Config(
            build_app(engine, key),
            uds=str(socket_path),
            log_level="warning",
            access_log=False,
            lifespan="off",
            # Who stops a worker drains it before; what is left are held questions after its state.
            timeout_graceful_shutdown=1,
        )
        server = uvicorn.Server(config)
        watcher = asyncio.ensure_future(_exit_when_broken(engine, server))
        await server.serve()
        watcher.cancel()
        if server.should_exit and engine.broken:
            raise SystemExit(f"this worker ends: {engine.broken}")


async def _exit_when_broken(
    engine: WorkerEngine, server: Any, poll_s: float = 1.0, clock: Clock = SYSTEM_CLOCK
) -> None:
    """A worker that cannot answer any more ends itself; its supervisor starts a new one."""
    while True:
        await clock.sleep(poll_s)
        try:
            await engine.health()
        except Exception as error:  # noqa: BLE001 - whatever it is, the engine is not healthy
            engine.broken = engine.broken or f"{type(error).__name__}: {error}"
            server.should_exit = server.force_exit = True
            return


def exit_with_parent(parent: int, directory: Path, key: str, poll_s: float = 0.5) -> None:
    """End this process group as soon as the process `parent` that started it is gone, however it went; `directory` is removed too.

    A directory that holds another key belongs to a successor already and is left alone.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(poll_s)
        with contextlib.suppress(OSError):
            if (directory / KEY_NAME).read_text().strip() == key:
                shutil.rmtree(directory, ignore_errors=True)
        kill_members(os.getpgid(0), spare_trackers=True, spare=(os.getpid(),))
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="follow-parent", daemon=True).start()


def main(make_backend: MakeBackend = make_vllm) -> None:
    """Entry point of the worker process.

    Args:
        make_backend: Makes the engine.
    """
    parser = argparse.ArgumentParser(description="One inference worker on a Unix socket.")
    parser.add_argument("--settings", required=True, help="WorkerSettings as JSON")
    parser.add_argument("--directory", required=True, type=Path, help="holds the file `key`; the socket is made in it")
    parser.add_argument(
        "--parent", required=True, type=int, help="process id of the launcher: this worker ends with it"
    )
    parser.add_argument("--weights", type=Path, help="directory of the weights to serve instead of the model's own")
    parser.add_argument("--version", type=int, help="policy version of --weights")
    parser.add_argument("--digest", help="digest of --weights; left out: not compared")
    arguments = parser.parse_args()
    directory: Path = arguments.directory
    key = (directory / KEY_NAME).read_text().strip()
    exit_with_parent(arguments.parent, directory, key)
    mark_group_leader()
    os.umask(0o077)
    settings = WorkerSettings.model_validate_json(arguments.settings)
    published = None
    if arguments.weights is not None:
        published = PublishedWeights(arguments.version, arguments.weights, arguments.digest)
    asyncio.run(serve(settings, directory / SOCKET_NAME, key, published, make_backend))


if __name__ == "__main__":
    main()
