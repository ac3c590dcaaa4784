"""Reads a recipe: the TOML file, the files that it extends, and the overrides of the command line on top.

Role: from files to a `Recipe`. A file may name another one, `extends = "base.toml"`, relative to itself: its sections are laid over those
of the other file key by key, lists are replaced. A base that is not there is looked for among those of the package (`BUNDLED`), and so is
a recipe whose name has no `.toml`: `demo` and `bases/8gpu.toml` are found from everywhere. TOML has no null: a key that may have no value
has none where it is "none" or "null".
Rule: every mistake is a `RecipeError` that names the path of the key. Non-goals: the schema (`dart_train.config.recipe`).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from dart_agent.strict_model import format_validation_error
from dart_train.config.recipe import Recipe

EXTENDS = "extends"
BUNDLED = Path(__file__).parents[1] / "recipes"
"""Recipes that come with the package, and in `bases/` what they extend."""
NO_VALUE = ("none", "null")
"""How a file or an override says that a key has no value."""


class RecipeError(Exception):
    """A recipe cannot be run; the message says which key and what to write instead."""


Override = Annotated[str, "KEY.PATH=TOML-VALUE"]


def load_recipe(path: Path, overrides: tuple[Override, ...] = ()) -> Recipe:
    """Read and check a recipe.

    Args:
        path: The TOML file, or the name of one of the package's.
        overrides: `section.key=value` with a TOML value, or null, applied on top.

    Returns:
        The recipe.

    Raises:
        RecipeError: One clause per mistake, each with the path of the key.
    """
    path = _named(path)
    data = _read(path, ())
    for override in overrides:
        _apply(data, override)
    try:
        return Recipe.model_validate(_with_nulls(data, Recipe))
    except ValidationError as error:
        raise RecipeError(f"recipe {path}: {format_validation_error(error, Recipe)}") from None


def bundled_recipes() -> list[str]:
    """List the recipes that come with the package.

    Returns:
        Their names, sorted.
    """
    return sorted(path.name.removesuffix(".toml") for path in BUNDLED.glob("*.toml"))


def _named(path: Path) -> Path:
    """The file, also where its name lacks `.toml`; a name without it may be that of the package, too."""
    with_suffix = path.with_name(f"{path.name}.toml") if path.name and not path.name.endswith(".toml") else None
    if path.is_file() or with_suffix is None:
        return path
    return with_suffix if with_suffix.is_file() else _locate(path)


def _locate(path: Path, folder: Path = Path()) -> Path:
    """The file in a folder, or else the one of this name that comes with the package."""
    own = folder / path
    if own.is_file() or not path.name or path.is_absolute() or ".." in path.parts:
        return own
    bundled = BUNDLED / (path if path.name.endswith(".toml") else path.with_name(f"{path.name}.toml"))
    return bundled if bundled.is_file() else own


def _read(path: Path, extended_by: tuple[Path, ...]) -> dict[str, Any]:
    """The sections of a file over those that it extends."""
    if path.resolve() in extended_by:
        chain = " -> ".join(str(each) for each in (*extended_by, path.resolve()))
        raise RecipeError(f"recipes extend each other in a circle: {chain}")
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        told = f", which {extended_by[-1]} extends," if extended_by else ""
        raise RecipeError(
            f"recipe {path}{told} does not exist: give the path of a TOML file, or one of the names {', '.join(bundled_recipes())}"
        ) from None
    except OSError as error:
        raise RecipeError(f"recipe {path} cannot be read: {error.strerror}; give the path of a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"recipe {path} is not valid TOML: {error}") from None
    named = data.pop(EXTENDS, [])
    bases = [named] if isinstance(named, str) else named
    if not isinstance(bases, list) or not all(isinstance(base, str) for base in bases):
        raise RecipeError(f"recipe {path}: `{EXTENDS}` is the path of a recipe, or a list of them, not {named!r}")
    below: dict[str, Any] = {}
    for base in bases:
        below = _laid_over(below, _read(_locate(Path(base), path.parent), (*extended_by, path.resolve())))
    return _laid_over(below, data)


def _laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    both = {
        key: _laid_over(below[key], above[key])
        for key in below.keys() & above.keys()
        if isinstance(below[key], dict) and isinstance(above[key], dict)
    }
    return {**below, **above, **both}


def _apply(data: dict[str, Any], override: str) -> None:
    key, separator, value = override.partition("=")
    if not separator:
        raise RecipeError(f"override {override!r} is not of the form section.key=value")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value
    *sections, last = key.strip().split(".")
    target: Any = data
    for section in sections:
        target = target.setdefault(section, {})
        if not isinstance(target, dict):
            raise RecipeError(f"override {override!r}: {section} is not a section")
    target[last] = parsed


def _with_nulls(data: Mapping[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    """The values, with None where a key that may have no value says so."""
    found = dict(data)
    for name, field in model.model_fields.items():
        kinds = (field.annotation, *get_args(field.annotation))
        value = found.get(name)
        section = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)
        if isinstance(value, str) and value.strip() in NO_VALUE and NoneType in kinds:
            found[name] = None
        elif isinstance(value, dict) and section is not None and get_origin(field.annotation) is dict:
            found[name] = {
                key: _with_nulls(each, section) if isinstance(each, dict) else each for key, each in value.items()
            }
        elif isinstance(value, dict) and section is not None:
            found[name] = _with_nulls(value, section)
    return found
