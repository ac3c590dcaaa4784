"""The base of every configuration and payload model of the agent and the trainer, and the text of its validation errors."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError


class StrictModel(BaseModel):
    """A frozen model in which unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def format_validation_error(error: ValidationError) -> str:
    """Format the mistakes that pydantic found in a configuration for display.

    Args:
        error: The validation error.

    Returns:
        One clause per mistake, each with the path of its key, joined by semicolons.
    """
    return "; ".join(_format_error(item) for item in error.errors())


def _format_error(item: Any) -> str:
    path = ".".join(str(part) for part in item["loc"]) or "the file"
    if item["type"] == "extra_forbidden":
        return f"unknown key `{path}`"
    message = str(item["msg"]).removeprefix("Value error, ")
    given = "" if item["type"] in {"missing", "value_error"} else f" (got {item['input']!r})"
    return f"`{path}`: {message[0].lower()}{message[1:]}{given}"
