"""The page of every key of a recipe.

Role: one table per section, nested tables included. Rule: text and limits come from the schema. Non-goals: advice.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator

from pydantic import BaseModel

from dart_docs.fields import field_rows
from dart_docs.markdown import code, first_paragraph, table
from dart_train.config import Recipe


def recipe_sections() -> Iterator[tuple[str, type[BaseModel]]]:
    """The sections of a recipe with their names, nested ones after the one that holds them; `*` stands for a name of the user's."""
    for name, info in Recipe.model_fields.items():
        yield from _nested(name, info.annotation)


def _nested(name: str, annotation: object) -> Iterator[tuple[str, type[BaseModel]]]:
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        yield name, annotation
        for key, info in annotation.model_fields.items():
            yield from _nested(f"{name}.{key}", info.annotation)
        return
    is_table = "Mapping" in str(typing.get_origin(annotation)) or typing.get_origin(annotation) is dict
    for each in typing.get_args(annotation):
        yield from _nested(f"{name}.*" if is_table else name, each)


def recipe_page() -> str:
    """Render the page."""
    parts = [
        "# Recipe\n\n",
        "This page is for people who write a training recipe. After it you know every section and key of the TOML file "
        "that `dart-train` reads, with default and limits. "
        "A key that is not listed is an error, and so is a contradiction between keys. `none` in a file or "
        "after `--set` stands for no value.\n\n",
    ]
    for name, section in recipe_sections():
        rows = [
            (code(row.name), row.type, code(row.default), row.limits, row.meaning)
            for row in field_rows(section)
            if not _is_section(section, row.name)
        ]
        parts += [f"## `[{name}]`\n\n", first_paragraph(inspect.getdoc(section)), "\n\n"]
        parts.append(table(("key", "type", "default", "limits", "meaning"), rows))
    return "".join(parts)


def _is_section(section: type[BaseModel], key: str) -> bool:
    info = section.model_fields.get(key)
    return info is not None and any(True for _ in _nested(key, info.annotation))
