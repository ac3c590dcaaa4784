"""The generated reference covers the code: settings, commands, recipe keys, errors, tasks, REST, databases, the Python API."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml
from dart_docs import (
    actions_page,
    api_page,
    commands_page,
    database_page,
    prometheus_page,
    recipe_page,
    settings_page,
    tasks_page,
)
from dart_docs.fields import field_meanings, field_rows
from dart_docs.pages import PAGES
from dart_docs.python_pages import PACKAGES, exported, python_page
from dart_docs.root_pages import ROOT_PAGES, read_root_page

from dart_envs.actions import ACTION_SPECS
from dart_envs.evaluators.getters import GETTERS
from dart_envs.evaluators.metrics import METRICS
from dart_envs.key_names import KEY_ALIASES, NAMED_KEYS, is_key
from dart_envs.setup import STEP_PARAMETERS
from dart_envs.types import Action, ActionType
from dart_server.database.models import FarmTable
from dart_server.settings import FarmSettings
from dart_server.wire import ErrorCode
from dart_train.config import Recipe
from dart_train.data_manager.store.models import StoreBase

ROOT = Path(__file__).resolve().parents[3]
SOURCES = ("dart_envs", "dart_agent", "dart_train", "server/dart_server", "vm_images", "tests", "Makefile")
NO_SETTINGS = {"DART_WORKER_PID": "a worker tells its own children its process id"}
"""Variables that nobody sets by hand: why."""


def variables_in_code() -> set[str]:
    """Texts in Python that are exactly a name of a variable."""
    found = set()
    for folder in SOURCES[:-2]:
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found |= {node.value} if re.fullmatch(r"DART_[A-Z0-9_]+", node.value) else set()
    return found - NO_SETTINGS.keys()


def test_every_variable_that_the_code_reads_is_documented() -> None:
    assert not variables_in_code() - settings_page.variable_names()


def test_every_documented_variable_is_read_somewhere() -> None:
    text = "".join(
        path.read_text(encoding="utf-8")
        for folder in SOURCES
        for path in ([ROOT / folder] if (ROOT / folder).is_file() else (ROOT / folder).rglob("*.py"))
        if path != Path(__file__)
    )
    farm = {f"DART_{name.upper()}" for name in FarmSettings.model_fields}
    assert not {name for name in settings_page.variable_names() - farm if not re.search(rf"\b{name}\b", text)}


def test_every_setting_of_the_farm_has_a_meaning() -> None:
    assert [row.name for row in field_rows(FarmSettings) if not row.meaning] == []


def test_every_key_of_a_recipe_has_a_meaning_and_stands_on_the_page() -> None:
    page, silent = recipe_page.recipe_page(), []
    for name, section in recipe_page.recipe_sections():
        assert f"## `[{name}]`" in page
        silent += [f"{name}.{row.name}" for row in field_rows(section) if not row.meaning]
    assert silent == []
    assert set(Recipe.model_fields) <= {name for name, _ in recipe_page.recipe_sections()}


def test_every_error_code_has_a_meaning() -> None:
    meanings = field_meanings(ErrorCode)
    assert [each.name for each in ErrorCode if not meanings.get(each.name)] == []
    assert all(f"`{each.value}`" in api_page.errors_page() for each in ErrorCode)


def first_cells(section: str) -> list[str]:
    """The names in the first column of the tables of a section."""
    return re.findall(r"^\| `+ ?([^`]+) ?`+ \|", section, re.MULTILINE)


def test_every_action_type_field_and_key_stands_on_its_page() -> None:
    page = actions_page.actions_page()
    sections = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    assert first_cells(sections["Action types"]) == [f"ActionType.{kind.name}" for kind in ActionType]
    for kind in ActionType:
        row = next(line for line in sections["Action types"].splitlines() if f"ActionType.{kind.name}`" in line)
        assert set(re.findall(r"`([a-z_0-9]+)`", row.split("|")[3])) == ACTION_SPECS[kind].fields
        assert row.split("|")[4].strip()
    assert set(first_cells(sections["Fields"])) == {field.name for field in dataclasses.fields(Action)} - {"type"}
    named = [
        name for line in sections["Keys"].splitlines() if line[:1] == "|" for name in re.findall(r"`([^`]+)`", line)
    ]
    assert named == list(NAMED_KEYS)
    assert all(is_key(name) for name in named)
    others = re.findall(
        r"`([a-z_0-9]{2,})`", " ".join(line.split(" | ")[-1] for line in sections["Other names of keys"].splitlines())
    )
    assert sorted(others) == sorted(KEY_ALIASES)


@pytest.mark.parametrize("names", [GETTERS, METRICS], ids=["getters", "metrics"])
def test_every_getter_and_metric_says_what_it_does(names: dict[str, Any]) -> None:
    page = tasks_page.evaluators_page()
    assert [name for name, function in names.items() if not inspect.getdoc(function)] == []
    assert all(f"| `{name}` |" in page for name in names)


def test_getters_and_metrics_say_how_they_go_together() -> None:
    assert [name for name, getter in GETTERS.items() if not tasks_page.getter_gives(getter)] == []
    assert [name for name, metric in METRICS.items() if not tasks_page.metric_takes(metric)] == []
    page = tasks_page.evaluators_page()
    assert "| `compare_text_file` | text, a file, or a list of texts (its lines) | `vm_file` |" in page
    assert "| `vm_file` | a file, or a list of files | OSWorld |" in page


def test_every_setup_step_stands_on_the_page_of_task_files() -> None:
    page = tasks_page.task_schema_page()
    assert [name for name in STEP_PARAMETERS if f"### `{name}`" not in page] == []


def test_every_field_of_a_task_file_has_a_meaning() -> None:
    silent = [
        f"{model.__name__}.{row.name}"
        for model in tasks_page.TASK_MODELS
        for row in field_rows(model)
        if not row.meaning
    ]
    assert silent == []


@pytest.mark.parametrize("program", commands_page.PROGRAMS)
def test_every_command_and_option_has_a_help_text(program: str) -> None:
    page, silent = commands_page.commands_page(program), []
    for name, command in commands_page.walk_commands(program):
        if not command.help:
            silent.append(name)
        for parameter in command.params:
            if parameter.name != "help" and not getattr(parameter, "hidden", False):
                shown = parameter.name.upper() if parameter.param_type_name == "argument" else parameter.opts[0]
                assert f"`{shown}`" in page, f"{name} {shown}"
                silent += [] if parameter.help else [f"{name} {shown}"]
    assert silent == []
    assert "docs/" not in re.sub(r"docs/examples/", "", page), "a reader of the site has no folder docs/: name the page"


def test_every_operation_of_the_api_stands_on_its_page() -> None:
    page = api_page.rest_page()
    found = list(api_page.operations())
    assert len(found) > 30
    assert [path for path, method, _ in found if f"## `{method.upper()} {path}`" not in page] == []
    assert [name for name in api_page.openapi()["components"]["schemas"] if f"\n## {name}\n" not in page] == []


def test_every_table_and_column_stands_on_the_page_of_the_databases() -> None:
    farm, run = database_page.database_page().split("## The trajectories of a run", 1)
    for base, page in ((FarmTable, farm), (StoreBase, run)):
        for described in base.metadata.tables.values():
            section = page.split(f"### `{described.name}`\n", 1)[1].split("### ", 1)[0]
            assert [column.name for column in described.columns if f"| `{column.name}` |" not in section] == []


def test_every_metric_of_the_farm_stands_on_its_page() -> None:
    source = (ROOT / "server/dart_server/observability/metrics.py").read_text(encoding="utf-8")
    names = set(re.findall(r'"(dart_[a-z_]+)"', source))
    page = prometheus_page.prometheus_page()
    assert names
    assert [name for name in sorted(names) if f"`{name}`" not in page and f"`{name}_info`" not in page] == []


def packages_that_export() -> set[str]:
    """Packages and modules with `__all__`."""
    found = set()
    for top in ("dart_envs", "dart_agent", "dart_train", "dart_server.wire"):
        package = importlib.import_module(top)
        names = [top, *(each.name for each in pkgutil.walk_packages(package.__path__, f"{top}."))]
        for name in names:
            spec = importlib.util.find_spec(name)
            assert spec is not None
            assert spec.origin is not None
            if re.search(r"^__all__ =", Path(spec.origin).read_text(encoding="utf-8"), re.MULTILINE):
                found.add(name)
    return found


def test_every_package_that_exports_names_has_a_page() -> None:
    assert packages_that_export() == set(PACKAGES)
    for package in PACKAGES:
        page = python_page(package)
        assert exported(package)
        assert all(f"::: {package}.{name}\n" in page for name in exported(package))


def imported_in_blocks() -> set[tuple[str, str]]:
    """(module, name) of everything that Python blocks of the site and its examples import from our packages by name."""
    pages = [page for page in (ROOT / "docs").rglob("*.md") if "engineering-log" not in page.parts]
    blocks = [
        textwrap.dedent(block)
        for page in [*pages, ROOT / "README.md"]
        for block in re.findall(
            r"^ *```python[^\n]*\n(.*?)^ *```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
        )
    ]
    blocks += [example.read_text(encoding="utf-8") for example in (ROOT / "docs" / "examples").glob("*.py")]
    return {
        (node.module, alias.name)
        for block in blocks
        for node in ast.walk(ast.parse(block))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dart_") and node.module is not None
        for alias in node.names
    }


def is_documented(module: str, name: str) -> bool:
    """Whether a page has the name, or the same object under the name of another package that exports it."""
    if module in PACKAGES and name in exported(module):
        return True
    return any(
        getattr(importlib.import_module(package), name) is getattr(importlib.import_module(module), name)
        for package in PACKAGES
        if name in exported(package)
    )


def test_every_name_that_a_block_imports_is_on_a_page_of_the_reference() -> None:
    found = imported_in_blocks()
    assert ("dart_envs.envs.sb3", "StableBaselinesVecEnv") in found
    assert [f"{module}.{name}" for module, name in sorted(found) if not is_documented(module, name)] == []


def test_every_generated_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert [path for path in [*PAGES, *ROOT_PAGES] if path not in navigation] == []


def test_pages_of_the_repositorys_root_keep_links_that_lead_somewhere(tmp_path: Path) -> None:
    page = tmp_path / "PAGE.md"
    page.write_text("[a](docs/envs.md#seeds) [b](SECURITY.md) [c](server/x.py) [d](https://e.example) ![e](docs/i.png)")
    assert read_root_page(page) == "[a](../envs.md#seeds) [b](security.md) c [d](https://e.example) ![e](docs/i.png)"


def test_the_configuration_of_the_site_demands_links_that_lead_somewhere() -> None:
    text = re.sub(r"!!python\S+", "", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    links = yaml.safe_load(text)["validation"]["links"]
    assert set(links.values()) == {"warn"}
