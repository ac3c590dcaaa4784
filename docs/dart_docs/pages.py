"""Every generated page of the documentation.

Role: `PAGES` maps the path of a page in the documentation to the function that renders it. Rule: nothing is written to the source tree; the
pages exist in the built site only. Non-goals: navigation (`mkdocs.yml`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from dart_docs.actions_page import actions_page
from dart_docs.api_page import errors_page, rest_page
from dart_docs.commands_page import PROGRAMS, commands_page
from dart_docs.database_page import database_page
from dart_docs.prometheus_page import prometheus_page
from dart_docs.python_pages import PACKAGES, python_index, python_page
from dart_docs.recipe_page import recipe_page
from dart_docs.settings_page import settings_page
from dart_docs.tasks_page import evaluators_page, task_schema_page

PAGES: Mapping[str, Callable[[], str]] = {
    "reference/settings.md": settings_page,
    "reference/recipe.md": recipe_page,
    "reference/actions.md": actions_page,
    "reference/rest.md": rest_page,
    "reference/errors.md": errors_page,
    "reference/task-files.md": task_schema_page,
    "reference/getters-and-metrics.md": evaluators_page,
    "reference/prometheus.md": prometheus_page,
    "reference/database.md": database_page,
    **{f"reference/{program}.md": partial(commands_page, program) for program in PROGRAMS},
    "reference/python/index.md": python_index,
    **{f"reference/python/{package}.md": partial(python_page, package) for package in PACKAGES},
}
