"""`python -I THIS_FOLDER` with the interpreter that has `desktop-env`.

Role: makes this folder importable under its own name and serves. Rule: the packages above it are hollow here, so that none of their code
runs and none of their dependencies is needed. Non-goals: the protocol (`serve`).
"""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path

HERE = Path(__file__).resolve().parent

for name, folder in (("dart_envs", HERE.parents[1]), ("dart_envs.scorer", HERE.parent)):
    package = types.ModuleType(name)
    package.__path__ = [str(folder)]
    sys.modules[name] = package

importlib.import_module("dart_envs.scorer.worker_process.server").main()
