"""What the fields of data types are called, take, and mean, read from the code.

Role: one row per field of a pydantic model: type, default, limits, meaning. Rule: the meaning is the field's description, the text under
it, or its line in the section `Attributes:` of the class, whichever there is. Non-goals: pages.
"""

from __future__ import annotations

import ast
import enum
import functools
import inspect
import itertools
import textwrap
import types
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from griffe import Docstring, DocstringSectionKind
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

LIMITS = {
    "ge": "≥",
    "gt": ">",
    "le": "≤",
    "lt": "<",
    "min_length": "length ≥",
    "max_length": "length ≤",
    "pattern": "matches",
}


@dataclass(frozen=True, slots=True)
class FieldRow:
    """One field of a data type.

    Attributes:
        name: Name of the field.
        type: Its type, for a reader.
        default: Its default; "required" where there is none.
        limits: What a value must satisfy beside its type.
        meaning: What it means; empty where the code does not say.
    """

    name: str
    type: str
    default: str
    limits: str
    meaning: str


def field_rows(model: type[BaseModel]) -> list[FieldRow]:
    """Describe the fields of a model, nested models as their names.

    Args:
        model: The model.

    Returns:
        One row per field, in the order of the class.
    """
    meanings = field_meanings(model)
    return [
        FieldRow(
            name=info.alias or name,
            type=type_name(info.annotation),
            default=_default(info),
            limits=_limits(info),
            meaning=info.description or meanings.get(name, ""),
        )
        for name, info in model.model_fields.items()
    ]


@functools.cache
def field_meanings(kind: type) -> dict[str, str]:
    """Read what the fields of a class mean, those of its bases included.

    Args:
        kind: A class.

    Returns:
        Meanings by name of the field.
    """
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if base is object or base.__module__.startswith(("pydantic", "builtins", "typing")):
            continue
        found |= _attributes_section(base) | _texts_under_fields(base)
    return found


def _attributes_section(kind: type) -> dict[str, str]:
    text = inspect.cleandoc(kind.__dict__.get("__doc__") or "")
    return {
        item.name: item.description
        for section in Docstring(text).parse("google", warnings=False)
        if section.kind is DocstringSectionKind.attributes
        for item in section.value
    }


def _texts_under_fields(kind: type) -> dict[str, str]:
    """Strings that stand alone under a field of a class, or under a member of an enumeration."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    except (OSError, TypeError):  # a class that was made at run time has no source
        return {}
    body = typing.cast(ast.ClassDef, tree.body[0]).body
    found = {}
    for statement, following in itertools.pairwise(body):
        target = statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
        if (
            isinstance(target, ast.Name)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
            and isinstance(following.value.value, str)
        ):
            found[target.id] = inspect.cleandoc(following.value.value)
    return found


def type_name(annotation: Any) -> str:
    """Name a type as its readers write it: enumerations and literals by their values.

    Args:
        annotation: The annotation of a field.

    Returns:
        The name.
    """
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return " or ".join(f'"{value}"' if isinstance(value, str) else str(value) for value in inner)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(type_name(each) for each in inner)
    if origin is typing.Annotated:
        return type_name(inner[0])
    if annotation in (None, type(None)):
        return "none"
    if origin is not None:
        parts = [each for each in inner if each is not Ellipsis]
        kind = {tuple: "list", list: "list", dict: "table", set: "list", frozenset: "list"}.get(origin, _plain(origin))
        kind = "table" if kind == "Mapping" else "list" if kind == "Sequence" else kind
        joint = " to " if kind == "table" else ", "
        return f"{kind} of {joint.join(dict.fromkeys(type_name(each) for each in parts))}" if parts else kind
    if inspect.isclass(annotation) and issubclass(annotation, enum.Enum):
        return " or ".join(f'"{each.value}"' for each in annotation)
    return _plain(annotation)


def _plain(annotation: Any) -> str:
    names = {str: "text", int: "integer", float: "number", bool: "true or false", Path: "path", Any: "any"}
    if annotation in names:
        return names[annotation]
    return getattr(annotation, "__name__", str(annotation)).removeprefix("typing.")


def _default(info: FieldInfo) -> str:
    if info.default_factory is not None:
        made = info.default_factory
        if made in (dict, list, tuple):
            return "empty"
        return "see meaning"
    if info.default is PydanticUndefined:
        return "required"
    return format_value(info.default)


def format_value(value: Any) -> str:
    """Write a default as it stands in a recipe or an environment variable.

    Args:
        value: The value.

    Returns:
        The text; "section" for a nested model with its own defaults.
    """
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, enum.Enum):
        return f'"{value.value}"'
    if isinstance(value, BaseModel):
        return "section"
    if isinstance(value, str | Path):
        return f'"{value}"'
    if isinstance(value, tuple | list | set | frozenset):
        return f"[{', '.join(format_value(each) for each in value)}]"
    if isinstance(value, int) and abs(value) >= 10_000:
        return f"{value:_}"
    return str(value)


def _limits(info: FieldInfo) -> str:
    found = []
    for limit in info.metadata:
        found += [
            f"{sign} `{value}`" if name == "pattern" else f"{sign} {value}"
            for name, sign in LIMITS.items()
            if (value := getattr(limit, name, None)) is not None
        ]
    return ", ".join(dict.fromkeys(found))
