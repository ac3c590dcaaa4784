"""The pages of the Python API.

Role: one page per package that exports names, each name rendered by mkdocstrings. Rule: what a package exports is its `__all__`. Non-goals:
modules that packages do not export.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping

PACKAGES: Mapping[str, str] = {
    "dart_envs": "Environments and the farm's clients: what most programs need.",
    "dart_envs.farm": "The clients of a farm in full: leases, claims, snapshots, transports, errors.",
    "dart_envs.tasks": "Tasks, suites and splits.",
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
    "dart_train.config": "Recipes: schema and loading.",
    "dart_train.presets": "Shapes of small models that are made with random weights.",
    "dart_train.warmup": "The supervised warm start of a small model.",
}
"""Packages with their purpose."""


def exported(package: str) -> list[str]:
    """Names that a package exports.

    Args:
        package: Name of the package.

    Returns:
        Its `__all__`, sorted.
    """
    return sorted(importlib.import_module(package).__all__)


def python_page(package: str) -> str:
    """Render the page of one package.

    Args:
        package: Name of the package.

    Returns:
        Markdown with one directive of mkdocstrings per name.
    """
    return f"# {package}\n\n{PACKAGES[package]}\n\n" + "".join(
        f"::: {package}.{name}\n\n" for name in exported(package)
    )


def python_index() -> str:
    """Render the list of packages."""
    return (
        "# Python API\n\n"
        "This page is for people who write Python against DART. Each package below exports the names on its "
        "page. Everything else may change without notice.\n\n"
    ) + "".join(f"- [`{package}`]({package}.md): {purpose}\n" for package, purpose in PACKAGES.items())
