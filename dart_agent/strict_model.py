"""The base of every configuration and payload model of the agent and the trainer, its files, and the text of its validation errors."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from dart_agent.errors import ConfigError


class StrictModel(BaseModel):
    """A frozen model in which unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Model = TypeVar("Model", bound=StrictModel)


def read_config_file(path: Path, model: type[Model]) -> Model:
    """Read and check the configuration of a process.

    Args:
        path: The JSON file.
        model: Its schema.

    Returns:
        The configuration.

    Raises:
        ConfigError: The file cannot be read or has mistakes.
    """
    try:
        return model.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"configuration {path} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        raise ConfigError(f"configuration {path}: {format_validation_error(error)}") from None


def format_validation_error(error: ValidationError, model: type[BaseModel] | None = None) -> str:
    """Format the mistakes that pydantic found in a configuration for display.

    Args:
        error: The validation error.
        model: What was validated; the nearest of its keys is suggested for one that it does not have. None: none is.

    Returns:
        One clause per mistake, each with the path of its key, joined by semicolons.
    """
    return "; ".join(
        _format_error(item, () if model is None else _known_keys(model, item["loc"][:-1])) for item in error.errors()
    )


def _known_keys(model: type[BaseModel], path: tuple[int | str, ...]) -> tuple[str, ...]:
    """The keys of a section; none where the path does not lead to a model."""
    for part in path:
        field = model.model_fields.get(str(part))
        if field is None or not isinstance(field.annotation, type) or not issubclass(field.annotation, BaseModel):
            return ()
        model = field.annotation
    return tuple(model.model_fields)


def _format_error(item: Any, known: tuple[str, ...]) -> str:
    path = ".".join(str(part) for part in item["loc"]) or "the file"
    if item["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(item["loc"][-1]), known, n=1)
        return f"unknown key `{path}`" + (f": did you mean `{near[0]}`?" if near else "")
    message = str(item["msg"]).removeprefix("Value error, ")
    given = "" if item["type"] in {"missing", "value_error"} else f" (got {item['input']!r})"
    return f"`{path}`: {message[0].lower()}{message[1:]}{given}"
