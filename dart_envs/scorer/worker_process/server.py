"""The scorer's process: one JSON request per line in, one JSON answer per line out.

Role: `main`, run by `__main__` with the interpreter that has `desktop-env`. Rule: evaluators print and log, so answers go to a private
copy of stdout and everything else to stderr; one request at a time; the end of the input is the end
(`orphan`). Non-goals: deciding anything.

    {"op": "hello"}                                          {"release", "python", "missing_packages", "metrics", "getters"}
    {"op": "evaluate", "parts", "conj", "desktop", "cache_dir"}   {"score", "parts"} or {"failed", "message"}
    {"op": "getter", "type", "content"}                           {"value"} or {"raised"}: a getter on a desktop of one file, base64
    {"op": "metric", "func", "result", "expected", "options"}     {"score", "cause"} or {"failed", "message"}
"""

from __future__ import annotations

import ast
import base64
import importlib
import importlib.metadata
import json
import logging
import os
import platform
import sys
import traceback
from collections.abc import Mapping
from typing import Any

from dart_envs.scorer.worker_process import missing_packages as absent
from dart_envs.scorer.worker_process import parent_watch
from dart_envs.scorer.worker_process.backports import GETTERS, METRICS
from dart_envs.scorer.worker_process.evaluation import (
    EvaluationFailed,
    compare,
    evaluate_parts,
    find_getter,
    missing_package_error,
)
from dart_envs.scorer.worker_process.evaluation_env import (
    EvaluationEnv,
    RequestMonitor,
    SingleFileEnv,
    ensure_cache_dir,
)


def load_release() -> tuple[list[str], RequestMonitor]:
    """Import the release, with hollow modules for what is absent and without fetching lists of domains from the internet."""
    missing_packages = absent.install()
    importlib.import_module("desktop_env.evaluators.metrics")
    importlib.import_module("desktop_env.evaluators.getters")
    domains: Any = importlib.import_module("tldextract")
    domains.extract = domains.TLDExtract(suffix_list_urls=(), cache_dir=None)
    # One metric evaluates text of the desktop as Python; here it reads literals and nothing else.
    basic: Any = importlib.import_module("desktop_env.evaluators.metrics.basic_os")
    basic.eval = lambda text: ast.literal_eval(text.strip())
    monitor = RequestMonitor()
    monitor.install()
    return missing_packages, monitor


def hello(missing_packages: list[str]) -> dict[str, Any]:
    """What this scorer is."""
    metrics = vars(importlib.import_module("desktop_env.evaluators.metrics"))
    getters = vars(importlib.import_module("desktop_env.evaluators.getters"))
    names = {name for name, value in metrics.items() if callable(value)} | set(METRICS)
    kinds = {
        name.removeprefix("get_") for name, value in getters.items() if name.startswith("get_") and callable(value)
    }
    return {
        "release": importlib.metadata.version("desktop-env"),
        "python": platform.python_version(),
        "missing_packages": missing_packages,
        "metrics": sorted(names),
        "getters": sorted(kinds | set(GETTERS)),
    }


def handle_request(request: Mapping[str, Any], missing_packages: list[str], monitor: RequestMonitor) -> dict[str, Any]:
    """The answer to one request. Raises EvaluationFailed."""
    if request["op"] == "hello":
        return hello(missing_packages)
    if request["op"] == "evaluate":
        ensure_cache_dir(request["cache_dir"])
        os.chdir(request["cache_dir"])
        parent_watch.evaluation_folders.clear()
        parent_watch.evaluation_folders.add(str(request["cache_dir"]))
        env = EvaluationEnv(request["desktop"], request["cache_dir"])
        return evaluate_parts(env, request["parts"], request.get("conj", "and"), monitor)
    if request["op"] == "metric":
        func = str(request["func"])
        try:
            score, cause = compare(
                func, request["result"], request.get("expected"), request.get("options") or {}, "expected" in request
            )
        except absent.MissingPackageError as error:
            raise missing_package_error(error.package, func) from error
        return {"score": score, "cause": cause}
    if request["op"] == "getter":
        content = None if request["content"] is None else base64.b64decode(request["content"])
        try:
            return {"value": find_getter(str(request["type"]))(SingleFileEnv(content), {})}
        except Exception as error:  # noqa: BLE001 - a desktop's file that a getter raises on is told, not judged
            return {"raised": f"{type(error).__name__}: {error}"}
    raise EvaluationFailed("protocol", f"There is no operation {request['op']!r}.")


def main() -> None:
    """Serve until the input ends."""
    parent_watch.exit_with_parent(0)
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    logging.basicConfig(stream=sys.stderr, level=logging.ERROR)
    missing_packages, monitor = load_release()
    for line in sys.stdin:
        try:
            said: dict[str, Any] = handle_request(json.loads(line), missing_packages, monitor)
        except EvaluationFailed as failed:
            said = {"failed": failed.kind, "message": str(failed), **failed.details}
        except Exception:  # noqa: BLE001 - whatever it is, the parent must hear of it and the process go on
            said = {"failed": "evaluator", "message": traceback.format_exc()[-2000:]}
        replies.write(json.dumps(said, default=str) + "\n")
