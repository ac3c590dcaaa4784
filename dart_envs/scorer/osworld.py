"""Judges a live desktop with OSWorld's own evaluators.

Role: tunnels to the desktop's server (whose files the host reads, `file_proxy`), its browser's debugging port and VLC's, a cache folder of
this evaluation's own with the files that the task expects and what the post-configuration printed, one request to a worker. Rule: expected
values stay on this side; what a worker could not judge is an `EvaluatorError` that says why; the folder goes when the evaluation ends.
Non-goals: post-configuration and infeasible tasks (`dart_envs.evaluators.scoring`), which scorer judges
(`dart_envs.evaluators.scorer_choice`).
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from dart_envs import assets
from dart_envs.errors import EvaluatorError
from dart_envs.scorer.file_proxy import serve_files_from_outside
from dart_envs.scorer.worker_process.parent_watch import FOLDER_PREFIX
from dart_envs.scorer.workers import INSTALL_HINT, ScorerNotInstalledError, ScorerPool, shared_pool
from dart_envs.setup.steps import CLIENT_PASSWORD
from dart_envs.task_parts import EvaluatorLike
from dart_envs.types import Desktop, Outcome, SupportsTunnel

SERVER_PORT, CHROMIUM_PORT, VLC_PORT = 5000, 9222, 8080
EVALUATION_TIMEOUT_S = 100.0
"""Of one evaluation, below what an episode's end may take."""


async def evaluate(
    desktop: Desktop,
    evaluator: EvaluatorLike,
    *,
    step_outputs: Mapping[str, str],
    task_id: str = "",
    pool: ScorerPool | None = None,
    timeout_s: float = EVALUATION_TIMEOUT_S,
) -> Outcome:
    """The osworld verdict on a desktop after its post-configuration.

    step_outputs: files of the cache by name (what steps printed). task_id: whose files the asset cache is asked for.

    Raises EvaluatorError (ScorerNotInstalledError, ScorerWorkerError).
    """
    if not isinstance(desktop, SupportsTunnel):
        raise EvaluatorError("The osworld scorer needs a leased desktop, whose ports it can reach.")
    folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))
    try:
        for name, text in step_outputs.items():
            _cache_path(folder, name).write_text(text, encoding="utf-8")
        await asyncio.to_thread(copy_expected_files, folder, evaluator, task_id)
        async with AsyncExitStack() as stack:
            tunnel = await stack.enter_async_context(desktop.tunnel(SERVER_PORT))
            host, server_port = await stack.enter_async_context(serve_files_from_outside(desktop, tunnel))
            _, chromium_port = await stack.enter_async_context(desktop.tunnel(CHROMIUM_PORT))
            _, vlc_port = await stack.enter_async_context(desktop.tunnel(VLC_PORT))
            ports = {"server_port": server_port, "chromium_port": chromium_port, "vlc_port": vlc_port}
            said = {"host": host, **ports, "screen": list(desktop.resolution), "password": CLIENT_PASSWORD}
            request = {
                "op": "evaluate",
                "parts": request_parts(evaluator),
                "conj": evaluator.conj,
                "desktop": said,
                "cache_dir": str(folder),
            }
            answer = await (pool or shared_pool()).request(request, timeout_s=timeout_s)
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
    return parse_outcome(answer)


def request_parts(evaluator: EvaluatorLike) -> list[dict[str, Any]]:
    """One plain object per function."""
    listed = zip(
        evaluator.functions, evaluator.result_configs, evaluator.expected_configs, evaluator.metric_options, strict=True
    )
    return [
        {"func": func, "result": result, "expected": expected, "options": dict(options)}
        for func, result, expected, options in listed
    ]


def parse_outcome(answer: Mapping[str, Any]) -> Outcome:
    """The verdict that a worker's answer holds. Raises EvaluatorError, ScorerNotInstalledError."""
    if "failed" in answer:
        message = str(answer.get("message", "it did not say why"))
        if answer["failed"] == "missing_package":
            raise ScorerNotInstalledError(f"{message} {INSTALL_HINT}")
        raise EvaluatorError(f"OSWorld's evaluator failed: {message}")
    return Outcome(float(answer["score"]), {"scorer": "osworld", "parts": answer["parts"]})


def copy_expected_files(folder: Path, evaluator: EvaluatorLike, task_id: str) -> None:
    """Copy the `cloud_file`s of an evaluator from the asset cache, fetching what it has not. Raises AssetError where one cannot be had."""
    for config in (*evaluator.result_configs, *evaluator.expected_configs):
        if config is None or config.get("type") != "cloud_file":
            continue
        for url, name, digest in assets.cloud_files(config):
            place = _cache_path(folder, name)
            if not place.exists():
                source = assets.fetch_asset(url, f"{task_id or 'tasks'}/{name}", task_id=task_id, sha256=digest)
                shutil.copyfile(source, place)


def _cache_path(folder: Path, name: str) -> Path:
    """A place in the cache folder. Raises EvaluatorError for a name that leads out of it."""
    place = (folder / name).resolve()
    if not place.is_relative_to(folder.resolve()):
        raise EvaluatorError(f"{name!r} is no name inside the evaluation's cache.")
    place.parent.mkdir(parents=True, exist_ok=True)
    return place
