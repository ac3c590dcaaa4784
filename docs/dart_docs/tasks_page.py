"""The pages of a task file: its fields, setup steps, getters and metrics.

Role: tables from the models and the tables of names. Rule: what a name does is its docstring. Non-goals: how to write a task.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from typing import get_type_hints

from pydantic import BaseModel

from dart_docs.fields import field_rows
from dart_docs.markdown import code, first_paragraph, table
from dart_envs.evaluators.getters import GETTERS, Getter
from dart_envs.evaluators.metrics import METRICS, OSWORLD_EQUIVALENT_GETTERS, OSWORLD_EQUIVALENT_METRICS, Metric
from dart_envs.setup import NETWORK_STEPS, STEP_PARAMETERS
from dart_envs.tasks import BUNDLED_SUITES, load_suite
from dart_envs.tasks.model import Checkpoint, Evaluator, SetupStep, Task
from dart_envs.tasks.script import ActionTemplate, ElementTarget

HEADER = ("field", "type", "default", "limits", "meaning")
GIVES: Mapping[str, str] = {
    "GuestFile": "a file",
    "GuestFile | list[GuestFile]": "a file, or a list of files",
    "str": "text",
    "list[str]": "a list of texts",
    "list[list[str]]": "a list of lists of texts",
    "list[A11yElement]": "a list of elements",
    "dict[str, Facts]": "facts by path",
    "dict[str, int]": "an object",
    "Any": "what the description says",
}
"""The types that getters return, in words."""
TASK_MODELS: tuple[type[BaseModel], ...] = (Task, SetupStep, Evaluator, Checkpoint, ActionTemplate, ElementTarget)
"""The models that a task file is made of."""


def task_schema_page() -> str:
    """Render the page of the fields of a task and of its setup steps."""
    parts = [
        "# Task files\n\n",
        "This page is for people who write task files. After it you know every field and every setup step. "
        "[Tasks](../tasks.md) explains how they work together. "
        "A field that is not listed is an error that names the file and the field.\n\n",
    ]
    for model in TASK_MODELS:
        parts += [f"## {model.__name__}\n\n", first_paragraph(inspect.getdoc(model)), "\n\n", _fields(model)]
    parts.append("## Setup steps\n\nThe `type` of a step and its `parameters`.\n\n")
    for name, parameters in sorted(STEP_PARAMETERS.items()):
        network = " It needs the internet, so that it is refused here." if name in NETWORK_STEPS else ""
        parts += [
            f"### `{name}`\n\n",
            first_paragraph(inspect.getdoc(parameters)),
            network,
            "\n\n",
            _fields(parameters),
        ]
    return "".join(parts)


def _fields(model: type[BaseModel]) -> str:
    rows = field_rows(model)
    if not rows:
        return "It takes no parameters.\n\n"
    return table(HEADER, ((code(row.name), row.type, code(row.default), row.limits, row.meaning) for row in rows))


def evaluators_page() -> str:
    """Render the page of getters and metrics."""
    used = bundled_pairs()
    return (
        "# Getters and metrics\n\n"
        "This page is for people who write evaluators. After it you know every getter and metric, with its parameters. A getter "
        "(`result.type`, `expected.type`) reads one "
        "value from the desktop. A metric (`func`) compares "
        "it with what is expected and returns a score in [0, 1]. The parameters that each takes are in braces, "
        "those in brackets are optional. "
        "Names marked *OSWorld* give exactly the results of OSWorld's own. A getter goes with a metric that takes what it gives; "
        "*used with* has the getters that tasks of the bundled suites use it with, and `dart-envs tasks show ID --json` "
        "shows such a task.\n\n"
        "## Getters\n\n"
        + table(
            ("name", "gives", "", "what it reads"),
            (
                (
                    code(name),
                    getter_gives(getter),
                    "OSWorld" if name in OSWORLD_EQUIVALENT_GETTERS else "",
                    first_paragraph(inspect.getdoc(getter)),
                )
                for name, getter in sorted(GETTERS.items())
            ),
        )
        + "## Metrics\n\n"
        + table(
            ("name", "takes", "used with", "", "what it compares"),
            (
                (
                    code(name),
                    metric_takes(metric),
                    ", ".join(map(code, sorted(used.get(name, ())))),
                    "OSWorld" if name in OSWORLD_EQUIVALENT_METRICS else "",
                    first_paragraph(inspect.getdoc(metric)),
                )
                for name, metric in sorted(METRICS.items())
            ),
        )
    )


def getter_gives(getter: Getter) -> str:
    """Say what a getter returns, by its annotation.

    Args:
        getter: The getter.

    Returns:
        A few words.
    """
    return GIVES[str(inspect.signature(getter).return_annotation)]


def metric_takes(metric: Metric) -> str:
    """Say what a metric compares, by the annotation of its first parameter.

    Args:
        metric: The metric.

    Returns:
        A few words.
    """
    (words,) = get_type_hints(metric, include_extras=True)["result"].__metadata__
    return str(words)


@cache
def bundled_pairs() -> dict[str, set[str]]:
    """Collect which getters a task of each bundled family uses each metric with.

    Returns:
        Names of getters by name of metric.
    """
    pairs: dict[str, set[str]] = defaultdict(set)
    for suite in map(load_suite, BUNDLED_SUITES):
        for family in suite.families.values():
            evaluator = family.task(suite.name, 0, image=suite.image).evaluator
            for metric, result in zip(evaluator.functions, evaluator.result_configs, strict=True):
                if result is not None:
                    pairs[metric].add(str(result["type"]))
    return pairs
