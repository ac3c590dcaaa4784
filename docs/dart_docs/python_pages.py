"""The pages of the Python API.

Role: one page per package or module that exports names, each name rendered by mkdocstrings. Rule: what it exports is its `__all__`, a
literal list that is read and not executed, because some modules need extras. Non-goals: modules without `__all__`.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Mapping
from pathlib import Path

PACKAGES: Mapping[str, str] = {
    "dart_envs": "Environments and the farm's clients: what most programs need.",
    "dart_envs.farm": "The clients of a farm in full: leases, claims, snapshots, transports, errors.",
    "dart_envs.errors": "The errors that environments and clients raise.",
    "dart_envs.tasks": "Tasks, suites and splits.",
    "dart_envs.envs.vector": "The vectorised environment.",
    "dart_envs.envs.sb3": "The vectorised environment for Stable-Baselines3 (the extra `rl`).",
    "dart_envs.actions": "Canonical actions: checking, decoding, scaling, and their JSON form.",
    "dart_envs.action_spaces": "Action spaces, and how to add one.",
    "dart_envs.action_formats": "Action formats: how checkpoints are asked and how their answers are read.",
    "dart_envs.evaluation": "Evaluation of a policy over many tasks.",
    "dart_envs.evaluators": "Evaluators: from a task's evaluator to an outcome.",
    "dart_envs.evaluators.getters": "The table of getters.",
    "dart_envs.evaluators.metrics": "The table of metrics.",
    "dart_envs.setup": "Setup steps.",
    "dart_envs.demos": "Demonstrations: recording and reading them.",
    "dart_envs.osworld": "OSWorld's own interfaces on desktops of a farm.",
    "dart_server.wire": "The data types of the REST API.",
    "dart_agent.types": "What policies are asked and answer, and what a rollout stores.",
    "dart_agent.grounding.samples": "Grounding samples, and their file of lines.",
    "dart_train.objectives.algorithms": "Algorithms by name, and how a package adds one.",
    "dart_train.objectives.settings": "The settings of the loss.",
    "dart_train.objectives.terms": "What surrogates are computed from, and what they return.",
    "dart_train.config": "Recipes: schema and loading.",
    "dart_train.presets": "Shapes of small models that are made with random weights.",
    "dart_train.warmup": "The supervised warm start of a small model.",
}
"""Packages and modules with their purpose."""


def exported(package: str) -> list[str]:
    """Names that a package or module exports.

    Args:
        package: Its name.

    Returns:
        Its `__all__`, sorted.

    Raises:
        ValueError: It has no `__all__`.
    """
    spec = importlib.util.find_spec(package)
    if spec is not None and spec.origin is not None:
        for node in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                return sorted(ast.literal_eval(node.value))
    raise ValueError(f"{package} has no __all__: add one, a literal list")


def python_page(package: str) -> str:
    """Render the page of one package or module.

    Args:
        package: Its name.

    Returns:
        Markdown with one directive of mkdocstrings per name.
    """
    lead = (
        f"{PACKAGES[package]} This page is for people who import `{package}`. After it you know every name that it exports, with "
        "arguments, results and errors.\n\n"
    )
    return f"# {package}\n\n{lead}" + "".join(f"::: {package}.{name}\n\n" for name in exported(package))


def python_index() -> str:
    """Render the list of packages."""
    return (
        "# Python API\n\n"
        "This page is for people who write Python against DART. After it you know which package has what you need. Each one below "
        "exports the names on its page. Everything else may change without notice.\n\n"
    ) + "".join(f"- [`{package}`]({package}.md): {purpose}\n" for package, purpose in PACKAGES.items())
